"""What a language model costs: training against PyTorch, decoding with a cache, the loss of a large vocabulary, meshes.

    python scripts/bench/bench_gpt.py step [--config=gpt_shakespeare] [--vocabulary=1024] [--peer=PYTHON]
    python scripts/bench/bench_gpt.py decoding [--num=1]
    python scripts/bench/bench_gpt.py loss [--config=gpt_tinystories] [--vocabulary=50257] [--batch_size=64]
    python scripts/bench/bench_gpt.py meshes [--meshes=8x1,4x2] [--batch_sizes=64,256] [--steps=0]

`step` times the recipe's model, the same model with GPT-2's components, and the latter in PyTorch (`--peer`, a Python
interpreter with torch, which runs `bench_gpt_peer.py`). `decoding` compares generation with a key-value cache with a
full forward pass per token. Contestants take turns, in an order that is reversed every round, and are compared by the
median of the per-round ratios. `meshes` reproduces the setting of the miniGPT tutorial: batches of 64 and 256 on eight
devices that split either only the batch, or the batch and the model. On a CPU (JAX_PLATFORMS=cpu) the devices are
simulated: what each of them computes, holds and sends is the same as on real devices, but the timings are not. All
inputs are random tokens.
"""

import argparse
import os
import sys
from collections.abc import Callable
from typing import NamedTuple

from benchmarks import arguments, machine, ours

from tinygen.errors import UserError


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure what a language model costs.")
    subparsers = parser.add_subparsers(dest="what", required=True)
    for name, command in COMMANDS.items():
        own = subparsers.add_parser(name, help=command.summary, description=command.summary)
        command.define(own)
        arguments.add(own, "--config", str, command.recipe, "RECIPE[:VARIANT]", "recipe")
        arguments.add(own, "--vocabulary", vocabulary, command.vocabulary, "V", "size of the vocabulary")
        arguments.add_set(own)
        own.add_argument("--force", action="store_true", help="measure even if the machine is busy")
    args = parser.parse_args(argv)
    command = COMMANDS[args.what]
    if args.what == "meshes":  # before JAX counts the devices
        devices = args.meshes[0][0] * args.meshes[0][1]
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}".strip()
    busy = machine.busy_share()
    if busy > machine.BUSY and command.timed and not args.force:
        print(f"bench_gpt: {machine.refusal(busy)}", file=sys.stderr)
        return 2
    ours.prepare_process()
    try:
        table = command.measure(args)
    except UserError as error:
        print(f"bench_gpt: {error}", file=sys.stderr)
        return 2
    print(machine.head(machine.facts()))
    print("\n".join([table, *(machine.caution(busy) if command.timed else [])]))
    return 0


def meshes(text: str) -> list[tuple[int, int]]:
    sizes = [each.split("x") for each in text.split(",")]
    valid = all(len(pair) == 2 and all(size.isdecimal() and int(size) for size in pair) for pair in sizes)
    pairs = [(int(data), int(tensor)) for data, tensor in sizes] if valid else []
    if len({data * tensor for data, tensor in pairs}) != 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of DATAxTENSOR meshes with equally many devices")
    return pairs


def vocabulary(text: str) -> int:
    if not text.isdecimal() or not 257 < int(text) <= 2**16:
        raise argparse.ArgumentTypeError(f"{text} must be between 258 and {2**16:,}")
    return int(text)


def define_step(parser: argparse.ArgumentParser) -> None:
    arguments.add_rounds(parser, 6, "timed steps of each")
    arguments.add_peer(parser, "eager,bf16", 120)


def measure_step(args: argparse.Namespace) -> str:
    from benchmarks import gpt_step

    return gpt_step.measure(args.config, args.set, args.vocabulary, args.rounds, args.peer, args.peer_modes, args.peer_patience)


def define_decoding(parser: argparse.ArgumentParser) -> None:
    arguments.add(parser, "--num", arguments.positive, 1, "N", "texts per batch")
    arguments.add_rounds(parser, 6, "timed generations of each")


def measure_decoding(args: argparse.Namespace) -> str:
    from benchmarks import decoding

    return decoding.measure(args.config, args.set, args.vocabulary, args.num, args.rounds)


def define_loss(parser: argparse.ArgumentParser) -> None:
    arguments.add(parser, "--batch_size", arguments.positive, 64, "B", "windows per batch")


def measure_loss(args: argparse.Namespace) -> str:
    from benchmarks import loss_memory

    return loss_memory.measure(args.config, args.set, args.vocabulary, args.batch_size)


def define_meshes(parser: argparse.ArgumentParser) -> None:
    arguments.add(parser, "--meshes", meshes, "8x1,4x2", "DxT,...", "meshes, as devices along data x tensor")
    arguments.add(parser, "--batch_sizes", arguments.comma_separated(arguments.positive), "64,256", "B,...", "windows per step")
    arguments.add(parser, "--steps", arguments.non_negative, 0, "N", "steps to time; 0 = none, only the compiler's plan")


def measure_meshes(args: argparse.Namespace) -> str:
    from benchmarks import meshes

    return meshes.measure(args.config, args.set, args.vocabulary, args.meshes, args.batch_sizes, args.steps)


class Command(NamedTuple):
    """A subcommand.

    define: adds its flags to a parser
    measure: runs it and returns a table
    recipe, vocabulary: default values of these flags
    timed: whether it measures time, which needs an idle machine
    """

    summary: str
    define: Callable[[argparse.ArgumentParser], None]
    measure: Callable[[argparse.Namespace], str]
    recipe: str
    vocabulary: int
    timed: bool


COMMANDS = {
    "step": Command(
        "Time a training step, against the same network in PyTorch",
        define_step,
        measure_step,
        "gpt_shakespeare",
        1024,
        True,
    ),
    "decoding": Command(
        "Time decoding with a key-value cache, against a full forward pass per token",
        define_decoding,
        measure_decoding,
        "gpt_shakespeare",
        1024,
        True,
    ),
    "loss": Command(
        "Measure the memory of the loss, with the logits computed at once and in chunks",
        define_loss,
        measure_loss,
        "gpt_tinystories",
        50_257,
        False,
    ),
    "meshes": Command(
        "Measure what each device computes, holds and sends on several meshes",
        define_meshes,
        measure_meshes,
        "gpt_tinystories",
        50_257,
        False,
    ),
}


if __name__ == "__main__":
    sys.exit(main())
