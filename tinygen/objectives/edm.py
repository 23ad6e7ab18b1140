"""EDM: learn to remove noise of any level (Karras et al. 2022, arXiv 2206.00364).

z = x + σ·ε, ln σ = P_mean + P_std·n. Preconditioning gives the network F inputs and targets of unit variance:
D(z, σ) = c_skip·z + c_out·F(c_in·z, ln σ / 4). Samplers integrate dz/dσ = (z - D) / σ from σ_max to 0.

At small σ both D - x and z - D are small differences of large numbers, so neither is computed from D. With s² = σ² + σ_d²:
D - x = c_out·(F - (σ·x - σ_d²·ε) / (σ_d·s)), and (z - D) / σ = (σ / s²)·z - (σ_d / s)·F.
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
from tinygen.objectives.flow import by_time, mean_over
from tinygen.samplers import guidance
from tinygen.samplers.guidance import Predict
from tinygen.samplers.paths import Path, along
from tinygen.samplers.table import Integration


@dataclasses.dataclass(frozen=True, kw_only=True)
class EDM(guidance.Denoising, Objective):
    """shape: of an example, [H, W, C]. The other fields are described in `tinygen.config.schema.OBJECTIVES`."""

    shape: tuple[int, ...]
    sigma_data: float
    p_mean: float
    p_std: float
    cond_drop: float
    sampler: str
    nfe: int
    guidance: float
    guidance_interval: tuple[float, float]
    sigma_min: float
    sigma_max: float
    rho: float
    tolerance: float

    max_time_scale = 1.0  # of the model's time input, ln σ / 4

    def __post_init__(self) -> None:
        guidance.check(self.cond_drop, self.sampler, self.nfe, self.guidance)
        for key in ("sigma_data", "p_std", "rho"):
            if not 0 < getattr(self, key) < math.inf:
                raise UserError(f"config.objective.{key}={getattr(self, key)} must be positive")
        if not math.isfinite(self.p_mean):
            raise UserError(f"config.objective.p_mean={self.p_mean} must be finite")
        if not 0 < self.sigma_min < self.sigma_max < math.inf:
            raise UserError(f"config.objective.sigma_min={self.sigma_min} and sigma_max={self.sigma_max} must be 0 < sigma_min < sigma_max")
        if len(self.guidance_interval) != 2 or not 0 <= self.guidance_interval[0] <= self.guidance_interval[1]:
            raise UserError(f"config.objective.guidance_interval={self.guidance_interval} must be (low, high) with 0 <= low <= high, of σ")
        guidance.check_tolerance(self.tolerance)
        self.grid(conditional=True)

    def loss(self, model: Any, batch: Mapping[str, jax.Array], key: jax.Array, *, train: bool) -> tuple[jax.Array, dict[str, Any]]:
        """λ(σ)·‖D(x + σε, σ) - x‖², λ = 1 / c_out²: the squared error of F over its predictions and the batch's valid examples.

        Metrics: `loss`, `raw_loss` (of D, without λ) and `raw_loss_t0` to `raw_loss_t3`, by quarter of the noise levels: (sum, weight).
        """
        x = batch["x"]
        B = x.shape[0]
        sigma_key, noise_key, keep_key, mask_key = jax.random.split(key, 4)
        n = jax.random.normal(sigma_key, (B,))
        sigma = jnp.exp(self.p_mean + self.p_std * n)
        cond = guidance.conditions_of(batch, keep_key, self.cond_drop if train else 0.0)
        at = sigma.reshape(B, *[1] * (x.ndim - 1))
        noise, into = jax.random.normal(noise_key, x.shape), self._into(at)
        given = model(into * (x + at * noise), jnp.log(sigma) / 4, cond=cond, rngs=nnx.Rngs(mask=mask_key) if train else None)
        target = into * (at / self.sigma_data * x - self.sigma_data * noise)
        weighted = mean_over(jnp.square(given.pred - target), given.weight)  # [B]
        error = weighted * (sigma * self.sigma_data * self._into(sigma)) ** 2
        weight = batch.get("weight", jnp.ones(B))
        total, raw = ((jnp.sum(weight * each), jnp.sum(weight)) for each in (weighted, error))
        metrics = {"loss": total, "raw_loss": raw, **by_time(error, weight, jax.scipy.stats.norm.cdf(n)), **given.stats}
        return total[0] / jnp.maximum(total[1], 1e-12), metrics

    def _sample(
        self, model: Any, keys: jax.Array, cond: Mapping[str, jax.Array] | None, negative: Mapping[str, jax.Array] | None
    ) -> tuple[jax.Array, jax.Array]:
        predict = guidance.guided(model, keys.shape[0], cond, negative, self.guidance, self._interval)
        noise, conditional = rng.normal(keys, self.shape), bool(cond)
        grid = self.grid(conditional=conditional)
        return self._integration(conditional).run(functools.partial(self._slope, predict), self.sigma_max * noise, keys, grid)

    def _slope(self, predict: Predict, z: jax.Array, sigma: jax.Array, r: jax.Array) -> jax.Array:
        """dz/dσ = (z - D) / σ at z [B, ...]; `r`, the end of a step, is not used."""
        del r
        at = along(sigma, z)
        into = self._into(at)
        return into * (at * into * z - self.sigma_data * predict(into * z, jnp.log(sigma) / 4, sigma))

    def _integration(self, conditional: bool) -> Integration:
        """Over the noise levels σ_max > ... > σ_min > 0. The last is an Euler step, as the slope is undefined at σ = 0."""
        acts: dict[str, Any] = dict(conditional=conditional, weight=self.guidance)
        return Integration(
            sampler=self.sampler, path=Path(decay=0.0), times=self._levels, nfe=self.nfe,
            cost=functools.partial(guidance.cost, **acts, interval=self._interval), price=guidance.price(**acts),
            tolerance=self.tolerance, field_ends=True,
        )  # fmt: skip

    @property
    def _interval(self) -> tuple[float, float]:
        low, high = self.guidance_interval
        return (low, math.inf) if high >= self.sigma_max else (low, high)

    def _levels(self, steps: int) -> np.ndarray:
        """`steps` levels from σ_max to σ_min, evenly spaced in σ^(1/ρ), and 0."""
        ends = self.sigma_max ** (1 / self.rho), self.sigma_min ** (1 / self.rho)
        return np.append(np.linspace(*ends, steps) ** self.rho, 0.0)

    def _into(self, sigma: jax.Array) -> jax.Array:
        """c_in = 1 / √(σ² + σ_d²); c_skip is (σ_d·c_in)², and c_out is σ·σ_d·c_in."""
        return jax.lax.rsqrt(sigma**2 + self.sigma_data**2)
