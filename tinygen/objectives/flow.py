"""Flow matching: learn the velocity that carries noise to data in a straight line (Lipman et al. 2023; Liu et al. 2023).

z_t = (1 - t)·x + t·ε, v = ε - x, t = sigmoid(N(t_mean, t_std)) (Esser et al. 2024): t = 0 is data, t = 1 noise.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tinygen.errors import UserError
from tinygen.objectives.base import Batch, Objective, weighted, weights
from tinygen.samplers import guidance, time_grids
from tinygen.samplers.guidance import Predict
from tinygen.samplers.paths import Path, along

BINS = 4  # of t, for the raw loss


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flow(guidance.Denoising, Objective):
    """What flow matching and average velocities share: the path from data to noise, and its times in training and sampling.

    shape: of an example. The other fields are described in `tinygen.config.schema.OBJECTIVES`.
    """

    shape: tuple[int, ...]
    t_mean: float
    t_std: float
    cond_drop: float
    sampler: str
    nfe: int
    time_grid: str
    shift: float

    path = Path(decay=1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 < self.t_std < math.inf and math.isfinite(self.t_mean)):
            raise UserError(f"config.objective.t_std={self.t_std} must be positive and t_mean={self.t_mean} finite")
        time_grids.check(self.time_grid, self.shift)

    def draw_t(self, key: jax.Array, num: int) -> jax.Array:
        """[num] times for training."""
        return jax.nn.sigmoid(self.t_mean + self.t_std * jax.random.normal(key, (num,)))

    def _times(self, steps: int) -> np.ndarray:
        return time_grids.times(self.time_grid, steps, time_grids.Shape(self.t_mean, self.t_std, self.shift))


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlowMatching(Flow):
    """shape: of an example, [H, W, C]. The other fields are described in `tinygen.config.schema.OBJECTIVES`."""

    guidance: float
    guidance_interval: tuple[float, float]
    tolerance: float

    def __post_init__(self) -> None:
        super().__post_init__()
        guidance.check_interval("guidance_interval", self.guidance_interval)
        guidance.check_tolerance(self.tolerance)
        if np.diff(np.float32(self.grid(conditional=True))).max() >= 0:
            raise UserError(f"time_grid={self.time_grid} with nfe={self.nfe} has times that are equal in float32: lower nfe or use uniform")

    def loss(self, model: Any, batch: Batch, key: jax.Array, *, train: bool) -> tuple[jax.Array, dict[str, Any]]:
        """Mean squared error of the velocity over the model's predictions and the batch's valid examples.

        Metrics, (sum, weight) pairs: `loss`, `raw_loss` (equal to it) and `raw_loss_t0` to `raw_loss_t3`, by quarter of t.
        """
        x = batch["x"]
        time_key, noise_key, keep_key, mask_key = jax.random.split(key, 4)
        t, noise = self.draw_t(time_key, len(x)), jax.random.normal(noise_key, x.shape)
        cond = guidance.conditions_of(batch, keep_key, self.cond_drop if train else 0.0)
        out = model(between(x, noise, t), t, cond=cond, rngs=nnx.Rngs(mask=mask_key) if train else None)
        error = mean_over(jnp.square(out.pred - (noise - x)), out.weight)  # [B]
        loss, metrics = weighted(batch, loss=error, raw_loss=error)
        return loss, {**metrics, **by_time(batch, error, t), **out.stats}

    def _slope(self, predict: Predict, z: jax.Array, t: jax.Array, r: jax.Array) -> jax.Array:
        return predict(z, t, t)


def between(x: jax.Array, noise: jax.Array, t: jax.Array) -> jax.Array:
    """z = (1 - t)·x + t·ε."""
    return (1 - along(t, x)) * x + along(t, x) * noise


def mean_over(square: jax.Array, weight: jax.Array | None) -> jax.Array:
    """Mean of `square` [B, ...] over each example [B], with the weights of a masked model's predictions (`Output.weight`).

    The divisor is the number of all values, not of predicted ones, which varies as patches at an edge have fewer values: in expectation
    this is the mean without a mask.
    """
    return jnp.mean(square if weight is None else square * weight, tuple(range(1, square.ndim)))


def by_time(batch: Batch, error: jax.Array, t: jax.Array) -> dict[str, tuple[jax.Array, jax.Array]]:
    """The errors [B] in equal bins of t, as (sum, weight) pairs named `raw_loss_t0`, ..."""
    inside = weights(batch, len(t)) * (jnp.arange(BINS)[:, None] == jnp.minimum((t * BINS).astype(jnp.int32), BINS - 1))  # [BINS, B]
    return {f"raw_loss_t{index}": (jnp.sum(row * error), jnp.sum(row)) for index, row in enumerate(inside)}
