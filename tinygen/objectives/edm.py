"""EDM: learn to remove noise of any level (Karras et al. 2022, arXiv 2206.00364).

z = x + σ·ε, ln σ = P_mean + P_std·n. Preconditioning gives the network F inputs and targets of unit variance:
D(z, σ) = c_skip·z + c_out·F(c_in·z, ln σ / 4). Samplers integrate dz/dσ = (z - D) / σ from σ_max to 0.

At small σ both D - x and z - D are small differences of large numbers, so neither is computed from D. With s² = σ² + σ_d²:
D - x = c_out·(F - (σ·x - σ_d²·ε) / (σ_d·s)), and (z - D) / σ = (σ / s²)·z - (σ_d / s)·F.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tinygen.errors import UserError, check_positive
from tinygen.objectives.base import Batch, Objective, weighted
from tinygen.objectives.flow import by_time, mean_over
from tinygen.samplers import guidance
from tinygen.samplers.guidance import Predict
from tinygen.samplers.paths import Path, along


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
    path = Path(decay=0.0)
    field_ends = True  # the slope is undefined at σ = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("objective", sigma_data=self.sigma_data, p_std=self.p_std, rho=self.rho)
        if not math.isfinite(self.p_mean):
            raise UserError(f"config.objective.p_mean={self.p_mean} must be finite")
        if not 0 < self.sigma_min < self.sigma_max < math.inf:
            raise UserError(f"config.objective.sigma_min={self.sigma_min} and sigma_max={self.sigma_max} must be 0 < sigma_min < sigma_max")
        if len(self.guidance_interval) != 2 or not 0 <= self.guidance_interval[0] <= self.guidance_interval[1]:
            raise UserError(f"config.objective.guidance_interval={self.guidance_interval} must be (low, high) with 0 <= low <= high, of σ")
        guidance.check_tolerance(self.tolerance)
        self.grid(conditional=True)

    def loss(self, model: Any, batch: Batch, key: jax.Array, *, train: bool) -> tuple[jax.Array, dict[str, Any]]:
        """λ(σ)·‖D(x + σε, σ) - x‖², λ = 1 / c_out²: the squared error of F over its predictions and the batch's valid examples.

        Metrics: `loss`, `raw_loss` (of D, without λ) and `raw_loss_t0` to `raw_loss_t3`, by quarter of the noise levels: (sum, weight).
        """
        x = batch["x"]
        sigma_key, noise_key, keep_key, mask_key = jax.random.split(key, 4)
        n = jax.random.normal(sigma_key, (len(x),))
        sigma = jnp.exp(self.p_mean + self.p_std * n)
        cond = guidance.conditions_of(batch, keep_key, self.cond_drop if train else 0.0)
        at = along(sigma, x)
        noise, into = jax.random.normal(noise_key, x.shape), self._into(at)
        given = model(into * (x + at * noise), jnp.log(sigma) / 4, cond=cond, rngs=nnx.Rngs(mask=mask_key) if train else None)
        target = into * (at / self.sigma_data * x - self.sigma_data * noise)
        scaled = mean_over(jnp.square(given.pred - target), given.weight)  # [B]
        error = scaled * (sigma * self.sigma_data * self._into(sigma)) ** 2
        loss, metrics = weighted(batch, loss=scaled, raw_loss=error)
        return loss, {**metrics, **by_time(batch, error, jax.scipy.stats.norm.cdf(n)), **given.stats}

    def _slope(self, predict: Predict, z: jax.Array, sigma: jax.Array, r: jax.Array) -> jax.Array:
        """dz/dσ = (z - D) / σ."""
        at = along(sigma, z)
        into = self._into(at)
        return into * (at * into * z - self.sigma_data * predict(into * z, jnp.log(sigma) / 4, sigma))

    @property
    def start(self) -> float:
        return self.sigma_max

    def _times(self, steps: int) -> np.ndarray:
        """`steps` noise levels from σ_max to σ_min, evenly spaced in σ^(1/ρ), and 0."""
        ends = self.sigma_max ** (1 / self.rho), self.sigma_min ** (1 / self.rho)
        return np.append(np.linspace(*ends, steps) ** self.rho, 0.0)

    def _into(self, sigma: jax.Array) -> jax.Array:
        """c_in = 1 / √(σ² + σ_d²); c_skip is (σ_d·c_in)², and c_out is σ·σ_d·c_in."""
        return jax.lax.rsqrt(sigma**2 + self.sigma_data**2)
