"""The Fréchet distance between Gaussians fitted to two sets of features, and its bias.

    d² = |μ₁ - μ₂|² + tr(Σ₁ + Σ₂ - 2 (Σ₁Σ₂)^½)        (Dowson & Landau 1982; Heusel et al. 2017)

It is called FID only over Inception's features.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tinygen.errors import UserError
from tinygen.evaluation.metrics.moments import Moments, moments_of

NEGATIVE = 1e-5  # of the largest eigenvalue: anything more negative is not rounding, not even in float32


def frechet_distance(mu1: np.ndarray, sigma1: np.ndarray, mu2: np.ndarray, sigma2: np.ndarray) -> float:
    """The distance between the Gaussians (mu1 [D], sigma1 [D, D]) and (mu2, sigma2), never below 0; see `distance_from`."""
    return distance_from(mu2, sigma2)(mu1, sigma1)


@dataclasses.dataclass(frozen=True)
class Distance:
    """The distance from a fixed reference, as a function of a mean [D] and a covariance [D, D]."""

    mean: np.ndarray  # [D], of the reference
    root: np.ndarray  # [D, D], A with AAᵀ the reference's covariance
    trace: float  # of that covariance
    largest: float  # its largest eigenvalue

    def __call__(self, mean: np.ndarray, covariance: np.ndarray) -> float:
        mu, sigma = _checked(mean, covariance, "the samples")
        if mu.shape != self.mean.shape:
            raise UserError(
                f"the reference has {len(self.mean)} dimensions and the samples have {len(mu)}: "
                "their features are not from the same network"
            )
        product = self.root.T @ sigma @ self.root
        shared = np.linalg.eigvalsh((product + product.T) / 2)
        _check_positive(shared, self.largest * float(np.linalg.norm(sigma)), "the samples")
        cross = float(np.sum(np.sqrt(np.maximum(shared, 0))))
        return max(0.0, float(np.sum((mu - self.mean) ** 2)) + float(np.trace(sigma)) + self.trace - 2 * cross)


def distance_from(mean: np.ndarray, covariance: np.ndarray) -> Distance:
    """The distance from a reference as a function of a mean [D] and a covariance [D, D], in float64.

    The trace of (Σ₁Σ₂)^½ is the sum of the square roots of the eigenvalues of AᵀΣ₁A with AAᵀ = Σ₂, which are real. Eigenvalues and
    distances that are negative by rounding count as 0. Each direction in which a covariance is rank-deficient may add about 1e-8 of the
    largest variance, the square root of float64's rounding.
    Raises UserError for mismatched shapes, non-finite numbers, and matrices that are not covariances.
    """
    mean, covariance = _checked(mean, covariance, "the reference")
    values, vectors = np.linalg.eigh(covariance)
    largest = float(np.max(values, initial=0))
    _check_positive(values, largest, "the reference")
    return Distance(mean, vectors * np.sqrt(np.maximum(values, 0)), float(np.trace(covariance)), largest)


def too_few(num: int, dim: int) -> str:
    """Why `num` samples are too few for a distance over `dim` features; "" if they are enough.

    The distance from few samples is biased upwards, by about a constant over their number; from `dim` samples or fewer the covariance is
    also rank-deficient. The size of the bias depends on the features; `extrapolated` measures it.
    """
    needed = f"from fewer than {dim + 1} their covariance lacks full rank, and the distance comes out far too large"
    return "" if num > dim else f"{num} samples are too few for a distance over {dim} features: {needed}"


class Extrapolation(NamedTuple):
    """A line fitted to distances against 1/size."""

    distance: float  # at infinitely many samples; a negative one means "close to 0"
    sizes: list[int]
    distances: list[float]


def extrapolated(features: np.ndarray, distance: Distance, *, num: int = 15, seed: int = 0) -> Extrapolation:
    """The distance from features [N, D] extrapolated to infinitely many samples, which removes its bias of order 1/N.

    A line is fitted to the distances of `num` nested random subsets of increasing size against 1/size (Chong & Forsyth 2020, FID∞), in
    one pass over the features. The smallest is a tenth of all rows, but at least 2 (D + 1): closer to D the bias is not linear in 1/size,
    and the result would be somewhat too small. The bias of the reference remains.

    distance: `distance_from` the reference
    Raises UserError for fewer than 2 (D + 1) rows.
    """
    count, dim = features.shape
    enough = 2 * (dim + 1)
    if count < enough:
        raise UserError(
            f"{count} samples are too few to extrapolate a distance over {dim} features to infinitely many: give {enough} or more"
        )
    smallest = max(count // 10, min(enough, count // 2))
    sizes = np.unique(np.linspace(smallest, count, num).round().astype(int)).tolist()
    order = np.random.default_rng(seed).permutation(count)
    moments, distances, done = Moments.empty(dim), [], 0
    for size in sizes:
        moments = moments.merge(moments_of(features, np.sort(order[done:size])))
        distances.append(distance(moments.mean, moments.covariance))
        done = size
    return Extrapolation(_intercept(sizes, distances), sizes, distances)


def _intercept(sizes: Sequence[int], distances: Sequence[float]) -> float:
    """The intercept at 1/size = 0 of the least squares line of distances against 1/size."""
    return float(np.polynomial.Polynomial.fit(1 / np.asarray(sizes), distances, 1)(0.0))


def _checked(mean: np.ndarray, covariance: np.ndarray, whose: str) -> tuple[np.ndarray, np.ndarray]:
    mean, covariance = np.asarray(mean, np.float64), np.asarray(covariance, np.float64)
    if mean.ndim != 1 or covariance.shape != (len(mean), len(mean)):
        raise UserError(f"{whose}: a mean of shape {mean.shape} and a covariance of shape {covariance.shape} do not fit")
    if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
        raise UserError(f"{whose}: the mean or the covariance holds NaN or infinity")
    if np.abs(covariance - covariance.T).max(initial=0) > NEGATIVE * np.abs(covariance).max(initial=0):
        raise UserError(f"{whose}: the covariance is not symmetric")
    return mean, covariance


def _check_positive(values: np.ndarray, scale: float, whose: str) -> None:
    if np.min(values, initial=0) < -NEGATIVE * scale:
        raise UserError(f"{whose}: the covariance has negative eigenvalues")
