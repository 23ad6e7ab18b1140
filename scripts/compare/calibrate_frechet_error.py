"""Compares the reported standard error of a Fréchet distance with the true one, where the true one can be measured.

    python scripts/compare/calibrate_frechet_error.py [--repetitions=400] [--errors=100] [--seed=0]

The true error is the standard deviation of the distance over independent draws of all samples. It is printed with the
root mean square of the estimates from some of those draws, and with their ratio and its standard error. Features are
Gaussian, rectified Gaussian (like pooled features of a network), or a mixture of ten classes; their variances are
equal, decay as 1/k, or decay exponentially to e^-8.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tinygen.evaluation.metrics.frechet import distance_from
from tinygen.evaluation.metrics.frechet_error import standard_error
from tinygen.evaluation.metrics.moments import moments_of


class Case(NamedTuple):
    """A distribution of features.

    reference: number of reference samples; 0 = the true moments
    kind: "gaussian", "rectified" or "classes"
    spectrum: how the variances decay: "equal", "1/k" or "exponential"
    shift, scale: of the samples relative to the reference, in standard deviations
    """

    features: int
    samples: int
    reference: int
    kind: str
    spectrum: str
    shift: float = 0.0
    scale: float = 1.0


CASES = (
    Case(256, 600, 0, "gaussian", "equal"),
    Case(128, 400, 2000, "rectified", "exponential"),
    Case(64, 1000, 2000, "rectified", "1/k"),
    Case(64, 300, 2000, "gaussian", "1/k", 0.3, 1.1),
    Case(64, 2000, 2000, "classes", "exponential"),
    Case(64, 400, 2000, "classes", "equal"),
    Case(32, 2000, 2000, "rectified", "1/k", 0.1, 1.05),
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=400, help="independent draws for the true error (default: %(default)s)")
    parser.add_argument("--errors", type=int, default=100, help="draws whose error is estimated (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    arguments = parser.parse_args(argv)
    print("| features | samples | reference | distribution | variances | shift, scale | true error | estimated | ratio |")
    print("|---|---|---|---|---|---|---|---|---|")
    for number, case in enumerate(CASES):
        random = np.random.default_rng([arguments.seed, number])
        true, estimates = measure(case, arguments.repetitions, arguments.errors, random)
        squares = estimates**2
        ratio = np.sqrt(np.mean(squares)) / true
        ratio_error = ratio * np.hypot(
            np.std(squares) / np.mean(squares) / 2 / np.sqrt(len(squares)), 1 / np.sqrt(2 * arguments.repetitions)
        )
        print(
            f"| {case.features} | {case.samples:,} | {case.reference or 'true moments'} | {case.kind} | {case.spectrum} "
            f"| {case.shift}, {case.scale} | {true:.4f} | {ratio * true:.4f} | {ratio:.2f} ± {ratio_error:.2f} |",
            flush=True,
        )
    return 0


def measure(case: Case, repetitions: int, errors: int, random: np.random.Generator) -> tuple[float, np.ndarray]:
    """(the standard deviation of the distance over draws, the estimates of it from some of them)"""
    deviations = np.sqrt(variances(case))
    if case.reference:
        reference = moments_of(draw(case.kind, case.reference, case.features, random) * deviations)
        distance = distance_from(reference.mean, reference.covariance)
    else:
        distance = distance_from(np.zeros(case.features), np.diag(deviations**2))
    distances, estimates = [], []
    for number in range(repetitions):
        rows = (draw(case.kind, case.samples, case.features, random) * case.scale + case.shift) * deviations
        found = moments_of(rows)
        distances.append(distance(found.mean, found.covariance))
        if number < errors:
            estimates.append(standard_error(rows, distance, seed=number))
    return float(np.std(distances, ddof=1)), np.array(estimates)


def variances(case: Case) -> np.ndarray:
    ranks = np.arange(case.features)
    return {"equal": np.ones(case.features), "1/k": 1 / (ranks + 1), "exponential": np.exp(-8 * ranks / case.features)}[case.spectrum]


def draw(kind: str, num: int, dim: int, random: np.random.Generator) -> np.ndarray:
    """Rows [num, dim] with mean 0 and variance 1, except for "classes", which differ in their first ten features."""
    rows = random.normal(size=(num, dim))
    if kind == "rectified":
        return (np.maximum(rows, 0) - 1 / np.sqrt(2 * np.pi)) / np.sqrt(0.5 - 0.5 / np.pi)
    if kind == "classes":
        rows += 3 * np.eye(dim)[random.integers(10, size=num)]
    return rows


if __name__ == "__main__":
    sys.exit(main())
