"""Kernel Inception Distance: the squared maximum mean discrepancy of two sets of features (Bińkowski et al. 2018)."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from tinygen.errors import UserError
from tinygen.evaluation.metrics.moments import check_finite

SUBSETS, SIZE = 100, 1000
FEWEST = 4  # images per side: two in a subset of half of them
SEED = 2020  # torch-fidelity's default

Subset = tuple[np.ndarray, np.ndarray]  # row numbers of one side and of the other


class KID(NamedTuple):
    """Mean and standard deviation over the subsets. The estimate is unbiased, so it can be negative for similar sides.

    The deviation is that of subsets of `subset_size` images, as in published numbers, not the standard error of the mean.
    """

    mean: float
    std: float


def kid(features: np.ndarray, reference: np.ndarray, *, seed: int = SEED, subsets: Iterable[Subset] | None = None) -> KID:
    """The distance of features [N, D] from the reference's [M, D]; both may be memory-mapped.

    seed: of the 100 subsets of each side, each of `subset_size` rows
    subsets: row indices of both sides, in equal number, instead of random ones
    Raises UserError if a side has fewer than FEWEST rows, or features are not finite.
    """
    if features.shape[1] != reference.shape[1]:
        raise UserError(
            f"KID: the samples have {features.shape[1]} features and the reference {reference.shape[1]}: not the same network's"
        )
    if subsets is None:
        subsets = draw_subsets(len(features), len(reference), seed=seed)
    values = [mmd2(features[mine], reference[theirs]) for mine, theirs in subsets]
    return KID(float(np.mean(values)), float(np.std(values)))


def subset_size(num: int, num_reference: int) -> int:
    """1,000, or half of the smaller side: with larger subsets, which overlap, the spread would be meaningless."""
    return min(SIZE, num // 2, num_reference // 2)


def draw_subsets(num: int, num_reference: int, *, subsets: int = SUBSETS, size: int | None = None, seed: int = SEED) -> Iterator[Subset]:
    """Row indices of `num` and of `num_reference` rows, without replacement, the same as torch-fidelity's with this seed.

    size: rows per subset; None: `subset_size`
    """
    if min(num, num_reference) < FEWEST:
        raise UserError(f"KID needs {FEWEST} images or more on both sides: {num} samples and {num_reference} of the reference are too few")
    size = size or subset_size(num, num_reference)
    draws = np.random.RandomState(seed)  # torch-fidelity's generator
    for _ in range(subsets):
        yield draws.choice(num, size, replace=False), draws.choice(num_reference, size, replace=False)


def mmd2(x: np.ndarray, y: np.ndarray) -> float:
    """The unbiased estimate of the squared discrepancy of x [n, D] and y [n, D], with the kernel (xᵀy / D + 1)³, in float64."""
    check_finite(x)
    check_finite(y)
    x, y = x.astype(np.float64), y.astype(np.float64)
    n = len(x)

    def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        k = a @ b.T / a.shape[1] + 1
        return k * k * k  # ten times as fast as k**3

    def off_diagonal(matrix: np.ndarray) -> float:
        return float((matrix.sum() - np.trace(matrix)) / (n * (n - 1)))

    return off_diagonal(kernel(x, x)) + off_diagonal(kernel(y, y)) - 2 * float(kernel(x, y).mean())
