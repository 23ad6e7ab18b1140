"""Training and sampling speed on this machine, against its best matrix product and against a PyTorch peer.

    python scripts/bench/bench.py step [--width=384 --depth=6 ...] [--set precision=bfloat16] [--against model.adaln=shared] [--peer=PYTHON]
    python scripts/bench/bench.py sampling [the same flags]
    python scripts/bench/bench.py compile [--config=dit_digits | --depth=2,28 ...]
    python scripts/bench/bench.py start [--config=dit_digits] [--num=16] [--against=CHECKOUT]
    python scripts/bench/bench.py products
    python scripts/bench/bench.py loop [--config=dit_digits] [--steps=300]
    python scripts/bench/bench.py calls [--config=dit_digits8] [--calls=10]
    python scripts/bench/bench.py guards [--config=dit_digits] [--block=10]
    python scripts/bench/bench.py steps --configs A.py:wide A.py:deep --shape=32,32,3 --batch_size=8
    python scripts/bench/bench.py samples --configs A.py B.py --shape=28,28,1 --batch_size=64 --nfe=1,50

`step` and `sampling` build a DiT of any size (by default DiT-S/2 on 32x32x4 latents) and time it on noise. Contestants
take turns within one process, in an order that is reversed every round: tinygen, tinygen with other settings
(`--against`), and the same network in PyTorch (`--peer`, a Python interpreter with torch and diffusers, which runs
`bench_peer.py`). Sizes may be lists, whose combinations are all measured: --width=256,384. `step`, `sampling`,
`compile` and `products` need only JAX, Flax, Optax, NumPy, absl and ml_collections. `start` times the commands of this
checkout and of others in separate processes.

A busy machine gives unreliable timings: the script first checks that the machine is idle, and exits with status 2 if it
is not. `--json=FILE` writes every single timing along with the machine, the versions and the settings.
"""

import argparse
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from benchmarks import arguments, calls, compiling, guards, loop, machine, ours, peer, products, race, recipes, start

from tinygen.config import recipes as known_recipes
from tinygen.errors import UserError, unknown

INTEGERS = arguments.comma_separated(int)


class Command(NamedTuple):
    """A subcommand.

    define: adds its flags to a parser
    measure: runs it and returns the result
    table: formats the result
    """

    summary: str
    define: Callable[[argparse.ArgumentParser], None]
    measure: Callable[[argparse.Namespace], dict[str, Any]]
    table: Callable[[dict[str, Any]], str]


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see --help)\n")


def main(argv: list[str] | None = None) -> int:
    parser = Parser(description="Measure how fast this machine trains and samples.")
    subparsers = parser.add_subparsers(dest="what", required=True)
    for name, command in COMMANDS.items():
        own = subparsers.add_parser(name, help=command.summary, description=command.summary)
        command.define(own)
        own.add_argument("--json", type=Path, metavar="FILE", help="also write all numbers to this file")
        own.add_argument("--force", action="store_true", help="measure even if the machine is busy")
    args = parser.parse_args(argv)
    command = COMMANDS[args.what]

    if args.json and not args.json.absolute().parent.is_dir():
        print(f"bench: --json={args.json}: no such folder: {args.json.parent}", file=sys.stderr)
        return 2
    busy = machine.busy_share()
    if busy > machine.BUSY and not args.force:
        print(f"bench: {machine.refusal(busy)}", file=sys.stderr)
        return 2
    keeps_memory = ours.prepare_process()
    try:
        measured = command.measure(args)
    except UserError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 130
    facts = {**machine.facts(), "memory_kept": keeps_memory}
    result = {"what": args.what, **measured, "machine": facts, "busy_before": round(busy, 3)}
    print(command.table(result))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def define_model(parser: argparse.ArgumentParser, batch_size: int) -> None:
    sizes = {
        "width": ("384", "features per token"),
        "depth": ("12", "number of blocks"),
        "heads": ("0", "attention heads; 0 = one per 64 features"),
        "patch": ("2", "patch size in pixels"),
        "batch_size": (str(batch_size), "images per batch"),
    }
    for name, (default, text) in sizes.items():
        arguments.add(parser, f"--{name}", INTEGERS, default, "N,...", text)
    arguments.add(parser, "--shape", INTEGERS, "32,32,4", "H,W,C", "image shape")
    arguments.add_set(parser)


def sizes(args: argparse.Namespace) -> dict[str, list[int]]:
    return {name: getattr(args, name) for name in (*ours.OPTIONS, "batch_size")}


def define_race(parser: argparse.ArgumentParser, batch_size: int) -> None:
    define_model(parser, batch_size)
    parser.add_argument(
        "--against",
        nargs="+",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="add a contestant: tinygen with these overrides on top of --set; repeatable",
    )
    arguments.add_rounds(parser, 6, "turns of each contestant")
    arguments.add(parser, "--product_seconds", arguments.seconds, 3, "S", "time for matrix products, before and after; 0 = none")
    arguments.add_peer(parser, ",".join(peer.MODES), 60)


def define_sampling(parser: argparse.ArgumentParser) -> None:
    define_race(parser, 64)
    arguments.add(parser, "--nfe", int, 50, "N", "network evaluations per sample, with Euler steps")


def measure_race(args: argparse.Namespace) -> dict[str, Any]:
    sampler = [f"objective.nfe={args.nfe}", *race.SAMPLER] if args.what == "sampling" else []
    return race.measure(
        args.what,
        sizes(args),
        args.shape,
        [*sampler, *args.set],
        args.against,
        rounds=args.rounds,
        opponents=race.Opponents(args.peer, args.peer_modes, args.peer_patience),
        product_seconds=args.product_seconds,
    )


def define_compile(parser: argparse.ArgumentParser) -> None:
    define_model(parser, 8)
    parser.add_argument("--config", default="", metavar="RECIPE[:VARIANT]", help="recipe to compile, instead of these sizes")


def measure_compile(args: argparse.Namespace) -> dict[str, Any]:
    return compiling.measure(args.config, sizes(args), args.shape, args.set)


def define_start(parser: argparse.ArgumentParser) -> None:
    arguments.add(parser, "--config", recipe_name, "dit_digits", "NAME[:VARIANT]", "recipe, by name")
    arguments.add(parser, "--num", arguments.positive, 16, "N", "samples to draw")
    arguments.add_rounds(parser, 5, "timed runs of each command")
    parser.add_argument(
        "--against",
        type=checkout,
        action="append",
        default=[],
        metavar="CHECKOUT",
        help="compare with another checkout; repeatable",
    )


def recipe_name(text: str) -> str:
    name, known = text.partition(":")[0], known_recipes.names()
    if name not in known:
        raise argparse.ArgumentTypeError(str(unknown("recipe", name, known)))
    return text


def checkout(text: str) -> Path:
    if not (Path(text) / "tinygen" / "__main__.py").is_file():
        raise argparse.ArgumentTypeError(f"not a checkout of tinygen: {text}/tinygen/__main__.py does not exist")
    return Path(text)


def measure_start(args: argparse.Namespace) -> dict[str, Any]:
    return start.measure(args.config, args.num, args.rounds, args.against)


def define_products(parser: argparse.ArgumentParser) -> None:
    arguments.add(parser, "--seconds", arguments.seconds, 10, "S", "time per dtype")


def define_loop(parser: argparse.ArgumentParser) -> None:
    define_config(parser)
    arguments.add(parser, "--steps", int, 300, "N", "steps of the loop to time, in blocks of the recipe's log_every")


def define_config(parser: argparse.ArgumentParser) -> None:
    arguments.add(parser, "--config", str, "dit_digits", "RECIPE[:VARIANT]", "recipe, by name or path")


def define_calls(parser: argparse.ArgumentParser) -> None:
    define_config(parser)
    arguments.add(parser, "--calls", arguments.positive, 10, "K", "steps per call")
    arguments.add(parser, "--block", arguments.positive, 100, "N", "steps per block, a multiple of --calls")
    arguments.add_rounds(parser, 6, "timed blocks of each")


def measure_calls(args: argparse.Namespace) -> dict[str, Any]:
    if args.block % args.calls:
        raise UserError(f"--block={args.block} is not a multiple of --calls={args.calls}")
    return calls.measure(args.config, args.calls, args.block, args.rounds)


def define_guards(parser: argparse.ArgumentParser) -> None:
    define_config(parser)
    arguments.add(parser, "--block", arguments.positive, 10, "N", "steps per block")
    arguments.add_rounds(parser, 20, "timed blocks of each")


def define_steps(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--configs",
        nargs="+",
        required=True,
        metavar="RECIPE[:VARIANT]",
        help="recipes; all are compared with the first",
    )
    arguments.add(parser, "--shape", INTEGERS, "32,32,3", "H,W,C", "shape of an example")
    arguments.add(parser, "--batch_size", arguments.positive, 8, "B", "examples per batch")
    arguments.add_rounds(parser, 6, "timed steps or batches of each recipe")


def define_samples(parser: argparse.ArgumentParser) -> None:
    define_steps(parser)
    arguments.add(parser, "--nfe", INTEGERS, "1,50", "N,...", "network evaluations per sample")


def measure_steps(args: argparse.Namespace) -> dict[str, Any]:
    return recipes.measure(args.configs, args.shape, args.batch_size, args.rounds, getattr(args, "nfe", ()))


COMMANDS = {
    "products": Command(
        "Measure the FLOP/s of single matrix products, to find the best of this machine",
        define_products,
        lambda args: {"products": products.measure(args.seconds)},
        products.table,
    ),
    "step": Command(
        "Time a training step of a DiT on noise, against other settings and peers",
        lambda parser: define_race(parser, 8),
        measure_race,
        race.table,
    ),
    "sampling": Command(
        "Time a batch of samples from a DiT, against other settings and peers",
        define_sampling,
        measure_race,
        race.table,
    ),
    "compile": Command(
        "Time tracing, lowering and compiling a training step, with and without a compilation cache",
        define_compile,
        measure_compile,
        compiling.table,
    ),
    "start": Command(
        "Time the start-up of `tinygen train` and `tinygen sample` from a shell",
        define_start,
        measure_start,
        start.table,
    ),
    "loop": Command(
        "Measure the overhead of the training loop over the bare jitted step",
        define_loop,
        lambda args: loop.measure(args.config, args.steps),
        loop.table,
    ),
    "calls": Command("Measure the speedup from taking several steps per call", define_calls, measure_calls, calls.table),
    "guards": Command(
        "Measure the overhead of the checks for non-finite updates",
        define_guards,
        lambda args: guards.measure(args.config, args.block, args.rounds),
        guards.table,
    ),
    "steps": Command("Time the training steps of several recipes side by side", define_steps, measure_steps, recipes.table),
    "samples": Command("Time a batch of samples from several recipes side by side", define_samples, measure_steps, recipes.table),
}


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
