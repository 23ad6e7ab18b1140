"""The standard error of a Fréchet distance due to the random choice of samples.

The variance of the distance has a part linear in the samples, V₁, a quadratic part, V₂, and smaller ones. Any jackknife, and the
influence function at the samples themselves, estimate V₁ + 2 V₂ (Efron & Stein 1981): if both sides have equal distributions, there is no
linear part, and the error would be 1.4 times too large. So V₂ is measured separately and subtracted.
"""

import functools
import itertools

import numpy as np

from tinygen.errors import UserError
from tinygen.evaluation.metrics.frechet import Distance
from tinygen.evaluation.metrics.moments import BLOCK, Moments, moments_of

GROUPS, SPLITS = 8, 16
FLOOR = 0.1  # minimum of the difference as a share of V₂; by chance it can be lower, unlike V₁ + V₂
RANK = 1e-10  # of the largest eigenvalue: directions with less have no samples


def enough(dim: int) -> int:
    """The number of samples needed for an error: half of them still give a covariance of full rank."""
    return 2 * max(dim + 1, GROUPS)


def standard_error(features: np.ndarray, distance: Distance, *, seed: int = 0) -> float:
    """The standard error of the distance from features [N, D], which may be memory-mapped.

    It covers the random choice of samples only, not the reference, nor the bias.
    distance: `distance_from` the reference
    seed: of the halves
    Raises UserError for fewer samples than `enough`.
    """
    count, dim = features.shape
    if count < enough(dim):
        raise UserError(f"{count} samples are too few for a standard error over {dim} features: give {enough(dim)} or more")
    quadratic = _quadratic(features, distance, seed)
    whole = float(np.var(influence(features, distance), ddof=1)) / count
    return float(np.sqrt(max(whole - quadratic, FLOOR * quadratic)))


def influence(features: np.ndarray, distance: Distance) -> np.ndarray:
    """The influence [N] of each of the samples [N, D]: N - 1 times the decrease of the distance without it, to second order.

    With Σ₂ = CCᵀ, CᵀΣ₁C = U diag(λ) Uᵀ and y = UᵀCᵀ(x - μ₁) the first derivative of the distance towards x is
    2 (μ₁ - μ₂)ᵀ(x - μ₁) + |x - μ₁|² - Σ y²/√λ and a constant, and the second, from Daleckii & Krein's formula for the matrix root,
    Σ (yₖyₗ - δₖₗλₖ)² / (√λₖ√λₗ(√λₖ + √λₗ)) + 2 Σ y²/√λ.
    """
    moments = moments_of(features)
    values, vectors = np.linalg.eigh(distance.root.T @ moments.covariance @ distance.root)
    kept = values > RANK * values.max(initial=0)
    roots, basis = np.sqrt(values[kept]), distance.root @ vectors[:, kept]
    weights = 1 / (np.outer(roots, roots) * np.add.outer(roots, roots))
    found = np.empty(len(features))
    for start in range(0, len(features), BLOCK):
        rows = slice(start, start + BLOCK)
        away = np.asarray(features[rows], np.float64) - moments.mean
        squares = (away @ basis) ** 2
        root = squares @ (1 / roots)
        second = np.sum(squares @ weights * squares, 1) + root  # without its constant
        found[rows] = 2 * away @ (moments.mean - distance.mean) + np.sum(away**2, 1) - root - second / (2 * (len(features) - 1))
    return found


def _quadratic(features: np.ndarray, distance: Distance, seed: int) -> float:
    """V₂: the variance of (f(A) + f(B)) / 2, in which linear parts cancel, over splits of the samples into halves A and B.

    Halves consist of G groups: the quadratic part within a group does not vary, and the signs of a split are not independent. If
    interactions between groups have equal variance, the estimate covers (G - 2) / (G - 1) of V₂.
    """
    random = np.random.default_rng(seed)
    # random groups, since groups in order might coincide with classes
    groups = [moments_of(features, np.sort(rows)) for rows in np.array_split(random.permutation(len(features)), GROUPS)]
    # halves with the first group, so that each split occurs once
    divisions = list(itertools.combinations(range(1, GROUPS), GROUPS // 2 - 1))
    found = []
    for each in random.choice(divisions, SPLITS, replace=False):
        sides = {0, *each}, {*range(1, GROUPS)} - {*each}
        halves = [functools.reduce(Moments.merge, (groups[one] for one in sorted(side))) for side in sides]
        found.append(np.mean([distance(half.mean, half.covariance) for half in halves]))
    seen = (GROUPS - 2) / (GROUPS - 1)
    return float(np.var(found, ddof=1)) * (1 - 1 / len(divisions)) / seen  # finite population, without replacement
