"""Throughput of Inception-v3 features in images per second, compared with pytorch-fid.

    python scripts/bench/bench_features.py [--batch_size=8,16,32] [--images=32] [--rounds=6] [--peer=PYTHON]

Only the networks are timed: weights are random, and the images are noise of 299x299. Contestants process `--images` images in turn,
in an order that is reversed every round: tinygen at each batch size, and pytorch-fid's InceptionV3 (`--peer`, an interpreter that
has torch, torchvision and pytorch-fid; it runs `bench_features_peer.py`). A busy machine slows all of them down; the reported ratio
is the median of the rounds' ratios.
"""

import argparse
import contextlib
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from benchmarks import machine, peer, turns
from flax import nnx
from flax.traverse_util import unflatten_dict

from tinygen.errors import UserError
from tinygen.evaluation.features import inception

WORKER = Path(__file__).resolve().with_name("bench_features_peer.py")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measures how many images a second Inception-v3 makes features of.")
    parser.add_argument("--batch_size", type=lambda text: [int(size) for size in text.split(",")], default=[8, 16, 32], metavar="B,...")
    parser.add_argument("--images", type=int, default=32, metavar="N", help="images per turn (32)")
    parser.add_argument("--rounds", type=int, default=6, metavar="N", help="turns per contestant (6)")
    parser.add_argument("--peer", default="", metavar="PYTHON", help="an interpreter that has torch, torchvision and pytorch-fid")
    arguments = parser.parse_args(argv)
    print(f"others use {machine.busy_share():.0%} of this machine's processors")
    try:
        print(measured(arguments.batch_size, arguments.images, arguments.rounds, arguments.peer))
    except UserError as error:
        print(f"bench_features: {error}", file=sys.stderr)
        return 2
    return 0


def measured(sizes: list[int], images: int, rounds: int, python: str) -> str:
    """A table: images a second, and how many times as fast as the peer, where there is one."""
    if odd := [size for size in sizes if size < 1 or images % size]:
        raise UserError(f"--images={images} is not a multiple of --batch_size={odd[0]}")
    with contextlib.ExitStack() as stack:
        opponents = {}
        if python:
            options = {"batch_size": max(sizes), "images": images}
            worker = stack.enter_context(
                peer.started(python, "eager", options, patience=120.0, worker=WORKER, needs="torch, torchvision and pytorch-fid")
            )
            if not worker.prepare():
                raise UserError("the peer takes more than two minutes a turn: fewer --images")
            opponents["pytorch-fid"] = worker.turn
        contestants = {f"ours, batches of {size}": ours(size, images) for size in sizes} | opponents
        seconds = dict(zip(contestants, turns.take(list(contestants.values()), rounds), strict=True))
    lines = []
    for name, own in seconds.items():
        beside = f"  {turns.ratio(own, seconds['pytorch-fid']):.2f}x" if python else ""
        lines.append(f"{name:<24} {images / statistics.median(own):7.2f} images/s{beside}")
    return "\n".join(lines)


def ours(batch_size: int, images: int) -> Callable[[], float]:
    """A turn, compiled."""
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
