"""Time grids of flow matching's samplers, from exactly 1 (noise) to exactly 0 (data), by name."""

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from tinygen.errors import UserError, unknown


class Shape(NamedTuple):
    """Parameters of the grids: those of t = sigmoid(N(mean, std)) in training, and `shift`. See `tinygen.config.schema.OBJECTIVES`."""

    mean: float
    std: float
    shift: float


def logit_normal(share: np.ndarray, shape: Shape) -> np.ndarray:
    """Quantiles of the times in training: the steps are as dense as the examples were."""
    normal = NormalDist(shape.mean, shape.std)
    return np.exp(-np.logaddexp(0, [-normal.inv_cdf(each) for each in share.tolist()]))


def shifted(share: np.ndarray, shape: Shape) -> np.ndarray:
    """shift·t / (1 + (shift - 1)·t), Esser et al. 2024, arXiv 2403.03206: above 1, more of the steps are near the noise."""
    return shape.shift * share / (1 + (shape.shift - 1) * share)


GRIDS: dict[str, Callable[[np.ndarray, Shape], np.ndarray]] = {
    "uniform": lambda share, shape: share,
    "logit_normal": logit_normal,
    "shifted": shifted,
}


def times(name: str, steps: int, shape: Shape) -> np.ndarray:
    """float64 [steps + 1]: 1, a row's image of the evenly spaced times in between, and 0."""
    even = np.linspace(1.0, 0.0, steps + 1)
    return np.concatenate([[1.0], GRIDS[name](even[1:-1], shape), [0.0]])


def check(name: str, shift: float) -> None:
    if name not in GRIDS:
        raise unknown("time_grid", name, GRIDS)
    if not 0 < shift < math.inf:
        raise UserError(f"shift={shift} must be positive; 1 is no shift, 3 has more of the steps near the noise")
