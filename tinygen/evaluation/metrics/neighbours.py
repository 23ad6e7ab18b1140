"""Precision, recall, density and coverage, from balls around images that reach to the k-th nearest neighbour.

Distances are computed in blocks: memory does not grow with the number of images, except for a few numbers per image.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tinygen.errors import UserError
from tinygen.evaluation.metrics.moments import check_finite

OF_RECALL, OF_COVERAGE = 3, 5  # numbers of neighbours in the papers
ROWS = 1024  # rows of each side converted to float64 at a time
NUMBERS = 2**23  # distances in memory at a time: 64 MiB
SAME = 1e-12  # of the sum of both squared norms: closer rows differ only by the network's rounding


class PrecisionRecall(NamedTuple):
    """Shares of images inside the other side's balls."""

    precision: float  # of samples, in the ball of at least one real image
    recall: float  # of real images, in the ball of at least one sample


class DensityCoverage(NamedTuple):
    """How densely samples fill the balls of real images, and how many of these."""

    density: float  # the mean number of balls that a sample is in, divided by k; may exceed 1
    coverage: float  # the share of balls that contain at least one sample


def precision_recall(features: np.ndarray, reference: np.ndarray, *, k: int = OF_RECALL) -> PrecisionRecall:
    """Kynkäänniemi et al. 2019: of samples with features [N, D] and real images with features [M, D].

    k: the radius of a (closed) ball is the distance to the k-th nearest neighbour on the same side
    Raises UserError if a side has k rows or fewer, or features are not finite.
    """
    _check(features, reference, k)
    real, drawn = _radii(reference, k), _radii(features, k)
    precise, recalled = 0, np.zeros(len(reference), bool)
    for rows, distances in _blocks(features, reference):
        precise += int((distances <= real).any(1).sum())
        recalled |= (distances <= drawn[rows, None]).any(0)
    return PrecisionRecall(precise / len(features), float(recalled.mean()))


def density_coverage(features: np.ndarray, reference: np.ndarray, *, k: int = OF_COVERAGE) -> DensityCoverage:
    """Naeem et al. 2020: of samples with features [N, D] and real images with features [M, D].

    k: the radius of a (closed) ball is the distance to the k-th nearest other real image
    Raises UserError if a side has k rows or fewer, or features are not finite.
    """
    _check(features, reference, k)
    real = _radii(reference, k)
    inside, covered = 0, np.zeros(len(reference), bool)
    for _, distances in _blocks(features, reference):
        within = distances <= real
        inside += int(within.sum())
        covered |= within.any(0)
    return DensityCoverage(inside / (k * len(features)), float(covered.mean()))


def _radii(features: np.ndarray, k: int) -> np.ndarray:
    """The squared distance [N] of each row to its k-th nearest neighbour. Equal rows are neighbours at distance 0."""
    radii = np.empty(len(features))
    for rows, distances in _blocks(features, features):
        distances[np.arange(rows.stop - rows.start), np.arange(rows.start, rows.stop)] = np.inf  # a row is not its own neighbour
        radii[rows] = np.partition(distances, k - 1, axis=1)[:, k - 1]
    return radii


def _blocks(left: np.ndarray, right: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Iterates over blocks of rows of `left` and their squared distances [n, M] to all of `right`."""
    step = max(1, min(ROWS, NUMBERS // len(right)))
    for start in range(0, len(left), step):
        rows = slice(start, min(start + step, len(left)))
        x = left[rows].astype(np.float64)
        distances = np.empty((len(x), len(right)))
        for first in range(0, len(right), ROWS):
            distances[:, first : first + ROWS] = _squared(x, right[first : first + ROWS].astype(np.float64))
        yield rows, distances


def _squared(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Squared distances [n, m] between rows; exactly 0 for copies, which a ball of radius 0 must contain."""
    norms = np.einsum("nd,nd->n", x, x)[:, None] + np.einsum("md,md->m", y, y)
    squared = norms - 2 * (x @ y.T)
    return np.where(squared > SAME * norms, squared, 0.0)


def _check(features: np.ndarray, reference: np.ndarray, k: int) -> None:
    if features.shape[1] != reference.shape[1]:
        raise UserError(f"the samples have {features.shape[1]} features and the reference {reference.shape[1]}: not the same network's")
    if min(len(features), len(reference)) <= k:
        raise UserError(
            f"the {k} nearest neighbours need {k + 1} images or more on both sides: "
            f"{len(features)} samples and {len(reference)} of the reference are too few"
        )
    check_finite(features)
    check_finite(reference)
