"""Flow matching: learn the velocity that carries noise to data in a straight line (Lipman et al. 2023; Liu et al. 2023).

z_t = (1 - t)·x + t·ε, v = ε - x, t = sigmoid(N(t_mean, t_std)) (Esser et al. 2024): t = 0 is data, t = 1 noise.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tinygen import rng
from tinygen.errors import UserError
from tinygen.objectives.base import Objective
from tinygen.samplers import guidance, time_grids
from tinygen.samplers.paths import Path
from tinygen.samplers.table import Integration

BINS = 4  # of t, for the raw loss


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlowMatching(guidance.Denoising, Objective):
    """shape: of an example, [H, W, C]. The other fields are described in `tinygen.config.schema.OBJECTIVES`."""

    shape: tuple[int, ...]
    t_mean: float
    t_std: float
    cond_drop: float
    sampler: str
    nfe: int
    guidance: float
    guidance_interval: tuple[float, float]
    time_grid: str
    shift: float
    tolerance: float

    def __post_init__(self) -> None:
        guidance.check(self.cond_drop, self.sampler, self.nfe, self.guidance)
        if not (0 < self.t_std < math.inf and math.isfinite(self.t_mean)):
            raise UserError(f"config.objective.t_std={self.t_std} must be positive and t_mean={self.t_mean} finite")
        if len(self.guidance_interval) != 2 or not 0 <= self.guidance_interval[0] <= self.guidance_interval[1] <= 1:
            raise UserError(f"config.objective.guidance_interval={self.guidance_interval} must be (low, high) with 0 <= low <= high <= 1")
        time_grids.check(self.time_grid, self.shift)
        guidance.check_tolerance(self.tolerance)
        if np.diff(np.float32(self.grid(conditional=True))).max() >= 0:
            raise UserError(f"time_grid={self.time_grid} with nfe={self.nfe} has times that are equal in float32: lower nfe or use uniform")

    def loss(self, model: Any, batch: Mapping[str, jax.Array], key: jax.Array, *, train: bool) -> tuple[jax.Array, dict[str, Any]]:
        """Mean squared error of the velocity over the model's predictions and the batch's valid examples.

        Metrics, (sum, weight) pairs: `loss`, `raw_loss` (equal to it) and `raw_loss_t0` to `raw_loss_t3`, by quarter of t.
        """
        x = batch["x"]
        B = x.shape[0]
        time_key, noise_key, keep_key, mask_key = jax.random.split(key, 4)
        t = jax.nn.sigmoid(self.t_mean + self.t_std * jax.random.normal(time_key, (B,)))
        noise = jax.random.normal(noise_key, x.shape)
        cond = guidance.conditions_of(batch, keep_key, self.cond_drop if train else 0.0)
        at = t.reshape(B, *[1] * (x.ndim - 1))
        out = model((1 - at) * x + at * noise, t, cond=cond, rngs=nnx.Rngs(mask=mask_key) if train else None)
        error = mean_over(jnp.square(out.pred - (noise - x)), out.weight)  # [B]
        weight = batch.get("weight", jnp.ones(B))
        total = (jnp.sum(weight * error), jnp.sum(weight))
        metrics = {"loss": total, "raw_loss": total, **by_time(error, weight, t), **out.stats}
        return total[0] / jnp.maximum(total[1], 1e-12), metrics

    def _sample(
        self, model: Any, keys: jax.Array, cond: Mapping[str, jax.Array] | None, negative: Mapping[str, jax.Array] | None
    ) -> tuple[jax.Array, jax.Array]:
        predict = guidance.guided(model, keys.shape[0], cond, negative, self.guidance, self._interval)
        noise, conditional = rng.normal(keys, self.shape), bool(cond)
        grid = self.grid(conditional=conditional)
        return self._integration(conditional).run(lambda x, t, r: predict(x, t, t), noise, keys, grid)

    def _integration(self, conditional: bool) -> Integration:
        acts: dict[str, Any] = dict(conditional=conditional, weight=self.guidance)
        shape = time_grids.Shape(self.t_mean, self.t_std, self.shift)
        return Integration(
            sampler=self.sampler, path=Path(decay=1.0), times=lambda num: time_grids.times(self.time_grid, num, shape), nfe=self.nfe,
            cost=functools.partial(guidance.cost, **acts, interval=self._interval), price=guidance.price(**acts),
            tolerance=self.tolerance,
        )  # fmt: skip

    @property
    def _interval(self) -> tuple[float, float]:
        low, high = self.guidance_interval
        return (low, math.inf) if high == 1 else (low, high)


def mean_over(square: jax.Array, weight: jax.Array | None) -> jax.Array:
    """Mean of `square` [B, ...] over each example [B], with the weights of a masked model's predictions (`Output.weight`).

    The divisor is the number of all values, not of predicted ones, which varies as patches at an edge have fewer values: in expectation
    this is the mean without a mask.
    """
    return jnp.mean(square if weight is None else square * weight, tuple(range(1, square.ndim)))


def by_time(error: jax.Array, weight: jax.Array, t: jax.Array) -> dict[str, tuple[jax.Array, jax.Array]]:
    """The errors [B] in equal bins of t, as (sum, weight) pairs named `raw_loss_t0`, ..."""
    inside = weight * (jnp.arange(BINS)[:, None] == jnp.minimum((t * BINS).astype(jnp.int32), BINS - 1))  # [BINS, B]
    return {f"raw_loss_t{index}": (jnp.sum(row * error), jnp.sum(row)) for index, row in enumerate(inside)}
