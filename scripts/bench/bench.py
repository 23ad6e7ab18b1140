"""How fast this machine trains and samples, compared with its fastest matrix products and with a peer.

    python scripts/bench/bench.py step [--width=384 --depth=6 ...] [--set precision=bfloat16] [--against model.adaln=shared] [--peer=PYTHON]
    python scripts/bench/bench.py sampling [the same]
    python scripts/bench/bench.py compile [--config=dit_digits | --depth=2,28 ...]
    python scripts/bench/bench.py start [--config=dit_digits] [--num=16] [--against=CHECKOUT]
    python scripts/bench/bench.py products
    python scripts/bench/bench.py loop [--config=dit_digits] [--steps=300]
    python scripts/bench/bench.py calls [--config=dit_digits8] [--calls=10]
    python scripts/bench/bench.py guards [--config=dit_digits] [--block=10]
    python scripts/bench/bench.py steps --configs A.py:wide A.py:deep --shape=32,32,3 --batch_size=8
    python scripts/bench/bench.py samples --configs A.py B.py --shape=28,28,1 --batch_size=64 --nfe=1,50

`step` and `sampling` build a DiT of any size (DiT-S/2 on latents of 32x32x4 by default) and time it on noise. The contestants
take turns, in an order that is reversed every round: tinygen with other settings (`--against`), and the same network in PyTorch
(`--peer`, an interpreter that has torch and diffusers; it runs `bench_peer.py`). Width, depth, heads and batch size may be lists:
256,384 is an axis of a grid. `step`, `sampling`, `compile` and `products` need only JAX, Flax, Optax, NumPy, absl and
ml_collections. `start` times commands of this checkout and of others, each in its own process.

Timings on a busy machine are wrong: the script first checks that the machine is idle, and exits with status 2 if it is not.
`--json=FILE` stores every single timing with its settings.
"""

import argparse
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from benchmarks import REPOSITORY, calls, compiling, guards, loop, machine, ours, peer, products, race, recipes, start

from tinygen.config import recipes as recipes_of_ours
from tinygen.errors import UserError, unknown

DIGITS = str(REPOSITORY / "configs" / "dit_digits.py")
BATCH = {"step": 8, "sampling": 64, "compile": 8}


class Command(NamedTuple):
    """define: adds its arguments to the parser; measure: arguments -> result; table: result -> text"""

    summary: str
    define: Callable[[argparse.ArgumentParser], None]
    measure: Callable[[argparse.Namespace], dict[str, Any]]
    table: Callable[[dict[str, Any]], str]


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see --help)\n")


def main(argv: list[str] | None = None) -> int:
    parser = Parser(description="Measures how fast this machine trains and samples.")
    what = parser.add_subparsers(dest="what", required=True)
    for name, command in COMMANDS.items():
        own = what.add_parser(name, help=command.summary, description=command.summary)
        command.define(own)
        own.add_argument("--json", type=Path, metavar="FILE", help="also write all numbers to this file")
        own.add_argument("--force", action="store_true", help="measure even if the machine is busy")
    arguments = parser.parse_args(argv)
    command = COMMANDS[arguments.what]

    if arguments.json and not arguments.json.absolute().parent.is_dir():
        print(f"bench: --json={arguments.json}: there is no folder {arguments.json.parent}", file=sys.stderr)
        return 2
    busy = machine.busy_share()
    if busy > machine.BUSY and not arguments.force:
        print(
            f"bench: others use {busy:.0%} of this machine's processors: timings would be wrong (--force measures anyway)", file=sys.stderr
        )
        return 2
    kept = ours.prepare_process()
    try:
        measured = command.measure(arguments)
    except UserError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 130
    result = {"what": arguments.what, **measured, "machine": {**machine.facts(), "memory_kept": kept}, "busy_before": round(busy, 3)}
    print(command.table(result))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return int(text)


def seconds(text: str) -> float:
    if not 0 <= float(text) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return float(text)


def modes(text: str) -> list[str]:
    for mode in text.split(","):
        if mode not in peer.MODES:
            raise argparse.ArgumentTypeError(f"{mode!r} is not one of {', '.join(peer.MODES)}")
    return text.split(",")


def define_model(parser: argparse.ArgumentParser, batch_size: int) -> None:
    parser.add_argument("--width", type=numbers, default=[384], metavar="N,...", help="features per token (384)")
    parser.add_argument("--depth", type=numbers, default=[12], metavar="N,...", help="blocks (12)")
    parser.add_argument("--heads", type=numbers, default=[0], metavar="N,...", help="attention heads; 0 = heads of 64 features (0)")
    parser.add_argument("--patch", type=numbers, default=[2], metavar="N,...", help="pixels per side of a patch (2)")
    parser.add_argument("--batch_size", type=numbers, default=[batch_size], metavar="N,...", help=f"batch size ({batch_size})")
    parser.add_argument("--shape", type=numbers, default=[32, 32, 4], metavar="H,W,C", help="shape of an image (32,32,4)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a configuration key, such as precision=bfloat16; repeatable",
    )


def sizes(arguments: argparse.Namespace) -> dict[str, list[int]]:
    return {name: getattr(arguments, name) for name in (*ours.OPTIONS, "batch_size")}


def define_race(parser: argparse.ArgumentParser, batch_size: int) -> None:
    define_model(parser, batch_size)
    parser.add_argument(
        "--against", nargs="+", action="append", default=[], metavar="KEY=VALUE", help="also time tinygen with these keys; repeatable"
    )
    parser.add_argument("--rounds", type=positive, default=6, metavar="N", help="rounds per contestant (6)")
    parser.add_argument(
        "--product_seconds",
        type=seconds,
        default=3,
        metavar="S",
        help="seconds to measure the fastest product, before and after; 0: skip (3)",
    )
    parser.add_argument("--peer", default="", metavar="PYTHON", help="an interpreter that has torch and diffusers")
    parser.add_argument(
        "--peer_modes",
        type=modes,
        default=list(peer.MODES),
        metavar="MODE,...",
        help=f"among {', '.join(peer.MODES)} (all)",
    )
    parser.add_argument(
        "--peer_patience", type=seconds, default=60, metavar="S", help="a peer that is slower than this gets one round only (60)"
    )


def define_sampling(parser: argparse.ArgumentParser) -> None:
    define_race(parser, BATCH["sampling"])
    parser.add_argument("--nfe", type=int, default=50, metavar="N", help="network evaluations per sample, with Euler's method (50)")


def measure_race(arguments: argparse.Namespace) -> dict[str, Any]:
    sampler = [f"objective.nfe={arguments.nfe}", *race.SAMPLER] if arguments.what == "sampling" else []
    return race.measure(
        arguments.what,
        sizes(arguments),
        arguments.shape,
        [*sampler, *arguments.set],
        arguments.against,
        rounds=arguments.rounds,
        opponents=race.Opponents(arguments.peer, arguments.peer_modes, arguments.peer_patience),
        product_seconds=arguments.product_seconds,
    )


def define_compile(parser: argparse.ArgumentParser) -> None:
    define_model(parser, BATCH["compile"])
    parser.add_argument("--config", default="", metavar="PATH[:VARIANT]", help="a recipe in place of a model of these sizes")


def measure_compile(arguments: argparse.Namespace) -> dict[str, Any]:
    return compiling.measure(arguments.config, sizes(arguments), arguments.shape, arguments.set)


def define_start(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", type=recipe_name, default="dit_digits", metavar="NAME[:VARIANT]", help="a recipe in configs/ (dit_digits)"
    )
    parser.add_argument("--num", type=positive, default=16, metavar="N", help="samples (16)")
    parser.add_argument("--rounds", type=positive, default=5, metavar="N", help="starts per version (5)")
    parser.add_argument(
        "--against",
        type=checkout,
        action="append",
        default=[],
        metavar="CHECKOUT",
        help="checkout of another version to compare with; repeatable",
    )


def recipe_name(text: str) -> str:
    name, known = text.partition(":")[0], recipes_of_ours.names()
    if name not in known:
        raise argparse.ArgumentTypeError(str(unknown("recipe", name, known)))
    return text


def checkout(text: str) -> Path:
    if not (Path(text) / "tinygen" / "__main__.py").is_file():
        raise argparse.ArgumentTypeError(f"there is no {text}/tinygen/__main__.py")
    return Path(text)


def measure_start(arguments: argparse.Namespace) -> dict[str, Any]:
    return start.measure(arguments.config, arguments.num, arguments.rounds, arguments.against)


def define_products(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=seconds, default=10, metavar="S", help="seconds per kind of operands (10)")


def define_loop(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", default=DIGITS, metavar="PATH[:VARIANT]", help="recipe")
    parser.add_argument("--steps", type=int, default=300, metavar="N", help="steps to time, in blocks of the recipe's log_every")


def define_calls(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", default=DIGITS, metavar="PATH[:VARIANT]", help="recipe")
    parser.add_argument("--calls", type=positive, default=10, metavar="K", help="steps per call (10)")
    parser.add_argument("--block", type=positive, default=100, metavar="N", help="steps per timed block; a multiple of K (100)")
    parser.add_argument("--rounds", type=positive, default=6, metavar="N", help="blocks per contestant (6)")


def measure_calls(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.block % arguments.calls:
        raise UserError(f"--block={arguments.block} is not a multiple of --calls={arguments.calls}")
    return calls.measure(arguments.config, arguments.calls, arguments.block, arguments.rounds)


def define_guards(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", default=DIGITS, metavar="PATH[:VARIANT]", help="recipe")
    parser.add_argument("--block", type=positive, default=10, metavar="N", help="steps per timed block (10)")
    parser.add_argument("--rounds", type=positive, default=20, metavar="N", help="blocks per contestant (20)")


def define_steps(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--configs", nargs="+", required=True, metavar="PATH[:VARIANT]", help="recipes; the first is the reference")
    parser.add_argument("--shape", type=numbers, default=[32, 32, 3], metavar="H,W,C", help="shape of an example")
    parser.add_argument("--batch_size", type=positive, default=8, metavar="B")
    parser.add_argument("--rounds", type=positive, default=6, metavar="N", help="steps or batches per recipe")


def define_samples(parser: argparse.ArgumentParser) -> None:
    define_steps(parser)
    parser.add_argument("--nfe", type=numbers, default=[1, 50], metavar="N,...", help="network evaluations per sample (1,50)")


def measure_steps(arguments: argparse.Namespace) -> dict[str, Any]:
    nfes = getattr(arguments, "nfe", ())
    return recipes.measure(arguments.configs, arguments.shape, arguments.batch_size, arguments.rounds, nfes)


COMMANDS = {
    "products": Command(
        "the speed of the fastest matrix products",
        define_products,
        lambda arguments: {"products": products.measure(arguments.seconds)},
        products.table,
    ),
    "step": Command(
        "a training step of a DiT on noise, compared with other settings and peers",
        lambda parser: define_race(parser, BATCH["step"]),
        measure_race,
        race.table,
    ),
    "sampling": Command("sampling a batch from a DiT, compared with other settings and peers", define_sampling, measure_race, race.table),
    "compile": Command("compilation time of a training step, with and without a cache", define_compile, measure_compile, compiling.table),
    "start": Command("time from the shell to the first step, and to a few samples", define_start, measure_start, start.table),
    "loop": Command(
        "the loop's overhead over the bare jitted step",
        define_loop,
        lambda arguments: loop.measure(arguments.config, arguments.steps),
        loop.table,
    ),
    "calls": Command("the gain from several steps per call", define_calls, measure_calls, calls.table),
    "guards": Command(
        "the cost of checking for non-finite updates",
        define_guards,
        lambda arguments: guards.measure(arguments.config, arguments.block, arguments.rounds),
        guards.table,
    ),
    "steps": Command("the training steps of several recipes, side by side", define_steps, measure_steps, recipes.table),
    "samples": Command("sampling a batch from several recipes, side by side", define_samples, measure_steps, recipes.table),
}


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
