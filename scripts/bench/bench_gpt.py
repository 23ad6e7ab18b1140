"""Benchmarks of language models: training against PyTorch, cached decoding, the loss of a large vocabulary, meshes.

    python scripts/bench/bench_gpt.py step [--config=gpt_shakespeare] [--vocabulary=1024] [--peer=PYTHON]
    python scripts/bench/bench_gpt.py decoding [--num=1]
    python scripts/bench/bench_gpt.py loss [--config=gpt_tinystories] [--vocabulary=50257] [--batch_size=64]
    python scripts/bench/bench_gpt.py meshes [--meshes=8x1,4x2] [--batch_sizes=64,256] [--steps=0]

`step` times the recipe's model, the same model with GPT-2's components, and the latter in PyTorch (`--peer`, an interpreter that
has torch; it runs `bench_gpt_peer.py`). `decoding` compares generation with a cache of keys and values to a full pass per token.
Contestants take turns, in an order that is reversed every round; the result is the median of the rounds' ratios. `meshes` is the
profile of the miniGPT tutorial: batches of 64 and 256 on eight devices that shard the batch, or the batch and the model. On a CPU
(JAX_PLATFORMS=cpu) the devices are fake: their FLOPs, memory and communication are those of real ones, but not the times. All
inputs are random tokens.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import machine, ours
from benchmarks.peer import MODES

from tinygen.errors import UserError

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Benchmarks of language models.")
    what = parser.add_subparsers(dest="what", required=True)
    for name, (summary, define, _) in COMMANDS.items():
        define(own := what.add_parser(name, help=summary, description=summary))
        own.add_argument("--config", default=str(CONFIGS / RECIPES[name]), metavar="PATH[:VARIANT]", help=f"recipe ({RECIPES[name]})")
        own.add_argument("--force", action="store_true", help="measure even if the machine is busy")
    arguments = parser.parse_args(argv)
    if arguments.what == "meshes":  # before JAX counts the devices
        most = max(data * tensor for data, tensor in arguments.meshes)
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={most}".strip()
    busy = machine.busy_share()
    if busy > machine.BUSY and arguments.what in TIMED and not arguments.force:
        said = f"others use {busy:.0%} of this machine's processors: timings would be wrong (--force measures anyway)"
        print(f"bench_gpt: {said}", file=sys.stderr)
        return 2
    ours.prepare_process()
    try:
        table = COMMANDS[arguments.what][2](arguments)
    except UserError as error:
        print(f"bench_gpt: {error}", file=sys.stderr)
        return 2
    print(machine.head(machine.facts()))
    print("\n".join([table, *(machine.caution(busy) if arguments.what in TIMED else [])]))
    return 0


def numbers(text: str) -> list[int]:
    return [positive(number) for number in text.split(",")]


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return int(text)


def meshes(text: str) -> list[tuple[int, int]]:
    cut = [each.split("x") for each in text.split(",")]
    pairs = [(int(pair[0]), int(pair[1])) for pair in cut if len(pair) == 2 and all(size.isdecimal() and int(size) for size in pair)]
    if len(pairs) < len(cut) or len({data * tensor for data, tensor in pairs}) != 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list such as 8x1,4x2 (batch x model, all with the same number of devices)")
    return pairs


def words(text: str) -> int:
    if not text.isdecimal() or not 257 < int(text) <= 2**16:
        raise argparse.ArgumentTypeError(f"{text} must lie in 258 to {2**16:,}")
    return int(text)


def define_common(parser: argparse.ArgumentParser, vocabulary: int) -> None:
    parser.add_argument("--vocabulary", type=words, default=vocabulary, metavar="V", help=f"vocabulary size ({vocabulary})")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a configuration key; repeatable")


def define_step(parser: argparse.ArgumentParser) -> None:
    define_common(parser, 1024)
    parser.add_argument("--rounds", type=positive, default=6, metavar="N", help="steps per contestant (6)")
    parser.add_argument("--peer", default="", metavar="PYTHON", help="an interpreter that has torch")
    parser.add_argument("--peer_modes", type=lambda text: text.split(","), default=["eager", "bf16"], help=f"among {', '.join(MODES)}")
    parser.add_argument("--peer_patience", type=float, default=120, metavar="S", help="time limit of a peer's step in seconds (120)")


def measure_step(given: argparse.Namespace) -> str:
    from benchmarks import gpt_step

    if wrong := [mode for mode in given.peer_modes if mode not in MODES]:
        raise UserError(f"--peer_modes={wrong[0]} is not one of {', '.join(MODES)}")
    return gpt_step.measure(given.config, given.set, given.vocabulary, given.rounds, given.peer, given.peer_modes, given.peer_patience)


def define_decoding(parser: argparse.ArgumentParser) -> None:
    define_common(parser, 1024)
    parser.add_argument("--num", type=positive, default=1, metavar="N", help="texts generated at once (1)")
    parser.add_argument("--rounds", type=positive, default=6, metavar="N", help="repetitions (6)")


def measure_decoding(given: argparse.Namespace) -> str:
    from benchmarks import decoding

    return decoding.measure(given.config, given.set, given.vocabulary, given.num, given.rounds)


def define_loss(parser: argparse.ArgumentParser) -> None:
    define_common(parser, 50_257)
    parser.add_argument("--batch_size", type=positive, default=64, metavar="B", help="windows per batch (64)")


def measure_loss(given: argparse.Namespace) -> str:
    from benchmarks import loss_memory

    return loss_memory.measure(given.config, given.set, given.vocabulary, given.batch_size)


def define_meshes(parser: argparse.ArgumentParser) -> None:
    define_common(parser, 50_257)
    parser.add_argument("--meshes", type=meshes, default=[(8, 1), (4, 2)], metavar="DxT,...", help="batch x model (8x1,4x2)")
    parser.add_argument("--batch_sizes", type=numbers, default=[64, 256], metavar="B,...", help="windows per step (64,256)")
    parser.add_argument(
        "--steps",
        type=lambda text: 0 if text == "0" else positive(text),
        default=0,
        metavar="N",
        help="steps to time; 0: only the compiler's estimates (0)",
    )


def measure_meshes(given: argparse.Namespace) -> str:
    from benchmarks import meshes

    return meshes.measure(given.config, given.set, given.vocabulary, given.meshes, given.batch_sizes, given.steps)


COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None], Callable[[Any], str]]] = {
    "step": ("a training step, beside the same network in PyTorch", define_step, measure_step),
    "decoding": ("text by a cache, beside a full pass for every token", define_decoding, measure_decoding),
    "loss": ("memory of the loss, whole and in pieces", define_loss, measure_loss),
    "meshes": ("what a device computes, holds and sends on several meshes", define_meshes, measure_meshes),
}
RECIPES = {"step": "gpt_shakespeare.py", "decoding": "gpt_shakespeare.py", "loss": "gpt_tinystories.py", "meshes": "gpt_tinystories.py"}

TIMED = ("step", "decoding")

if __name__ == "__main__":
    sys.exit(main())
