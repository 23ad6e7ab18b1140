"""Speed of Inception-v3 feature extraction on this machine, against pytorch-fid's.

    python scripts/bench/bench_features.py [--batch_size=8,16,32] [--images=32] [--rounds=6] [--peer=PYTHON]

Weights are random and inputs are 299x299 noise, so only the network is timed. tinygen at each batch size and
pytorch-fid's InceptionV3 (`--peer`, a Python interpreter with torch, torchvision and pytorch-fid, which runs
`bench_features_peer.py`) take turns of `--images` images, in an order that is reversed every round. On a busy machine
all of them are slower; the reported ratio is the median of the per-round ratios.
"""

import argparse
import contextlib
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from benchmarks import arguments, machine, peer, turns
from flax import nnx
from flax.traverse_util import unflatten_dict

from tinygen.errors import UserError
from tinygen.evaluation.features import inception

WORKER = Path(__file__).resolve().with_name("bench_features_peer.py")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure the speed of Inception-v3 feature extraction.")
    arguments.add(parser, "--batch_size", arguments.comma_separated(int), "8,16,32", "B,...", "images per batch")
    arguments.add(parser, "--images", int, 32, "N", "images per turn")
    arguments.add_rounds(parser, 6, "turns of each")
    parser.add_argument(
        "--peer",
        default="",
        metavar="PYTHON",
        help="Python interpreter with torch, torchvision and pytorch-fid, to compare with",
    )
    args = parser.parse_args(argv)
    print(f"other processes use {machine.busy_share():.0%} of the CPU")
    try:
        print(measure(args.batch_size, args.images, args.rounds, args.peer))
    except UserError as error:
        print(f"bench_features: {error}", file=sys.stderr)
        return 2
    return 0


def measure(sizes: list[int], images: int, rounds: int, python: str) -> str:
    """A table of images per second and, with a peer, the speed relative to it."""
    if wrong := [size for size in sizes if size < 1 or images % size]:
        raise UserError(f"--images={images} is not a multiple of --batch_size={wrong[0]}")
    with contextlib.ExitStack() as stack:
        opponents = {}
        if python:
            options = {"batch_size": max(sizes), "images": images}
            worker = stack.enter_context(
                peer.started(python, "eager", options, patience=120.0, worker=WORKER, needs="torch, torchvision and pytorch-fid")
            )
            if not worker.prepare():
                raise UserError("the peer takes more than two minutes per turn: reduce --images")
            opponents["pytorch-fid"] = worker.turn
        contestants = {f"ours, batches of {size}": ours(size, images) for size in sizes} | opponents
        seconds = dict(zip(contestants, turns.take(list(contestants.values()), rounds), strict=True))
    lines = []
    for name, own in seconds.items():
        ratio = f"  {turns.ratio(own, seconds['pytorch-fid']):.2f}x" if python else ""
        lines.append(f"{name:<24} {images / statistics.median(own):7.2f} images/s{ratio}")
    return "\n".join(lines)


def ours(batch_size: int, images: int) -> Callable[[], float]:
    """A compiled turn: extracts features from `images` images."""
    graphdef, shapes = inception.graph()
    random = np.random.default_rng(0)
    arrays = {path: random.normal(0, 0.02, shape).astype(np.float32) for path, shape in shapes.items()}
    variables = jax.device_put(unflatten_dict(arrays))
    batch = jax.device_put(random.uniform(-1, 1, (batch_size, 299, 299, 3)).astype(np.float32))
    features = jax.jit(lambda variables, x: nnx.merge(graphdef, variables)(x)["features"])

    def work() -> None:
        for _ in range(images // batch_size):
            features(variables, batch).block_until_ready()

    work()
    return turns.timed(work)


if __name__ == "__main__":
    sys.exit(main())
