"""Cost of the scores apart from the network: time and error of the Fréchet distance, memory of streamed features.

    python scripts/bench/bench_scores.py [--dim=2048] [--num=50000]

Goals: a distance over 2,048 features in 15 s on two cores, within 1e-8 of SciPy's matrix square root; mean and
covariance of 50,000 x 2,048 features read from disk within 1 GB.
"""

import argparse
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.linalg

from tinygen.evaluation.features.feature_file import FeatureFile
from tinygen.evaluation.metrics.frechet import frechet_distance
from tinygen.evaluation.metrics.moments import moments_of

ROWS = 3000  # samples per covariance
BLOCK = 1000  # rows written at a time


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dim", type=int, default=2048, help="features per image (default: %(default)s)")
    parser.add_argument("--num", type=int, default=50_000, help="images whose features are streamed (default: %(default)s)")
    arguments = parser.parse_args(argv)
    seconds, error = distance(arguments.dim)
    print(f"Fréchet distance over {arguments.dim:,} features: {seconds:.2f} s, {error:.1e} relative error")
    peak = streamed(arguments.num, arguments.dim) / 2**20
    print(f"moments of {arguments.num:,} x {arguments.dim:,} features: {peak:.0f} MiB peak memory")
    return 0


def distance(dim: int) -> tuple[float, float]:
    """(seconds, relative error against SciPy's matrix square root) of the distance between two sets of Gaussian rows."""
    numbers = np.random.default_rng(0)
    one, other = (moments_of((numbers.normal(size=(ROWS, dim)) * scale).astype(np.float32)) for scale in (1.0, 1.1))
    began = time.perf_counter()
    ours = frechet_distance(one.mean, one.covariance, other.mean, other.covariance)
    seconds = time.perf_counter() - began
    root = np.trace(np.real(np.asarray(scipy.linalg.sqrtm(one.covariance @ other.covariance))))
    theirs = np.sum((one.mean - other.mean) ** 2) + np.trace(one.covariance) + np.trace(other.covariance) - 2 * root
    return seconds, abs(ours - theirs) / theirs


def streamed(num: int, dim: int) -> int:
    """Peak bytes while the mean and covariance of features on disk are computed."""
    numbers = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        file = FeatureFile(Path(folder) / "features", dim, "noise")
        for start in range(0, num, BLOCK):
            file.append(start, numbers.normal(size=(min(BLOCK, num - start), dim)).astype(np.float32))
        tracemalloc.start()
        moments_of(file.read())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


if __name__ == "__main__":
    sys.exit(main())
