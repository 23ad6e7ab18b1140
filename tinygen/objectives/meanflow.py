"""MeanFlow: learn a flow's average velocity over any interval, so that one step maps noise to data (Geng et al. 2025, arXiv 2505.13447).

u(z, t, r) = 1 / (t - r) ∫ from r to t of v, r <= t, satisfies u = v - (t - r)·du/dt along the flow; the loss enforces this identity.
With forward-mode differentiation du/dt costs about as much as u.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from tinygen.errors import UserError
from tinygen.objectives import average_velocity
from tinygen.objectives.average_velocity import AverageVelocity, Draw
from tinygen.samplers import guidance
from tinygen.samplers.guidance import Cond
from tinygen.samplers.paths import along


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeanFlow(AverageVelocity):
    """MeanFlow with guidance built in: the model learns the average guided velocity and samples with one evaluation per step.

    shape: of an example. The other fields are described in `tinygen.config.schema.OBJECTIVES`.
    """

    omega: float
    kappa: float
    omega_interval: tuple[float, float]

    inputs = ("h",)
    guidance = 1.0  # none at sampling

    def __post_init__(self) -> None:
        super().__post_init__()
        if not math.isfinite(self.omega) or not 0 <= self.kappa < 1:
            raise UserError(f"config.objective.omega={self.omega} must be finite and kappa={self.kappa} lie in [0, 1)")
        guidance.check_interval("omega_interval", self.omega_interval)
        if self.guides and self.cond_drop == 0:
            raise UserError(
                f"guidance by config.objective.omega={self.omega} and kappa={self.kappa} needs cond_drop > 0, "
                "which trains the null condition; without guidance set omega=1 and kappa=0"
            )

    @property
    def guides(self) -> bool:
        return (self.omega, self.kappa) != (1.0, 0.0)

    def _unguided(self, batch: int, conditional: bool) -> dict[str, jax.Array] | None:
        return None if conditional and self.guides else {}

    def _error(self, model: Any, draw: Draw, cond: Cond, key: jax.Array, *, train: bool) -> average_velocity.Error:
        target = self._guided(model, draw, cond) if cond and self.guides else draw.v
        out, rate = average_velocity.with_rate(model, draw, target, cond, key, train=train)
        goal = jax.lax.stop_gradient(target - along(draw.t - draw.r, draw.z) * rate)
        return average_velocity.Error((jnp.square(out.pred - goal),), out)

    def _guided(self, model: Any, draw: Draw, cond: Cond) -> jax.Array:
        """ω·v + (1 - ω - κ)·u(z, t, t | null) + κ·u(z, t, t | c) inside the interval; v outside it and for dropped conditions."""
        kept, null = average_velocity.both(model, draw.z, draw.t, cond, {**cond, "keep": jnp.zeros(len(draw.z), bool)})
        guided = self.omega * draw.v + (1 - self.omega - self.kappa) * null + self.kappa * kept
        low, high = self.omega_interval
        acts = cond["keep"] & (draw.t >= low) & (draw.t <= high)
        return jnp.where(along(acts, draw.z), guided, draw.v)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImprovedMeanFlow(AverageVelocity):
    """Improved MeanFlow (Geng et al. 2025, arXiv 2512.02012): a velocity regression, with guidance as an input of the network.

    V = u + (t - r)·sg(du/dt) is regressed on v, which does not depend on the network; du/dt is taken along the predicted velocity, not
    the sampled one. The network is conditioned on the guidance weight ω and the interval of t where guidance acts.

    shape: of an example. The other fields are described in `tinygen.config.schema.OBJECTIVES`.
    """

    velocity: str
    omega_max: float
    guidance: float
    guidance_interval: tuple[float, float]

    inputs = ("h", "omega", "t_lo", "t_hi")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.velocity not in ("head", "boundary"):
            raise UserError(f"config.objective.velocity={self.velocity!r} must be 'head' or 'boundary'")
        if not 1 <= self.omega_max < math.inf:
            raise UserError(f"config.objective.omega_max={self.omega_max} must be 1 (no guidance is learned) or more")
        if self.omega_max > 1 and self.cond_drop == 0:
            raise UserError(
                f"guidance up to config.objective.omega_max={self.omega_max} needs cond_drop > 0, which trains the null condition; "
                "without guidance set omega_max=1"
            )
        if not 1 <= self.guidance <= self.omega_max:
            raise UserError(f"guidance {self.guidance}: this model learns weights from 1, which is off, to omega_max={self.omega_max}")
        guidance.check_interval("guidance_interval", self.guidance_interval)
        low, high = self.guidance_interval
        if not low <= 0.5 <= high:
            raise UserError(f"guidance_interval={self.guidance_interval}: this model learns intervals of t that hold 0.5")

    @property
    def head(self) -> bool:
        """Whether a second output predicts the instantaneous velocity."""
        return self.velocity == "head"

    def _error(self, model: Any, draw: Draw, cond: Cond, key: jax.Array, *, train: bool) -> average_velocity.Error:
        omega_key, low_key, high_key, key = jax.random.split(key, 4)
        B, equal = len(draw.t), draw.t == draw.r
        given = cond if cond and self.omega_max > 1 else {}
        omega = jnp.exp(jax.random.uniform(omega_key, (B,)) * math.log(self.omega_max)) if given else jnp.ones(B)
        low = jnp.where(equal, 0.0, 0.5 * jax.random.uniform(low_key, (B,)))
        high = jnp.where(equal, 1.0, 0.5 + 0.5 * jax.random.uniform(high_key, (B,)))
        guided = {**cond, "omega": omega, "t_lo": low, "t_hi": high}
        # Query velocities as examples with r = t are trained: with the whole interval, and weight 1 outside the example's own interval.
        whole = {**cond, **self._unguided(B, bool(cond))}
        if given:
            acts = cond["keep"] & (draw.t >= low) & (draw.t <= high)
            own, null = {**whole, "omega": jnp.where(acts, omega, 1.0)}, {**whole, "keep": jnp.zeros(B, bool)}
            velocity, unconditional = average_velocity.both(model, draw.z, draw.t, own, null, head=self.head)
            target = draw.v + along(jnp.where(acts, 1 - 1 / omega, 0.0), draw.z) * (velocity - unconditional)
        else:
            velocity, target = average_velocity.instantaneous(model, draw.z, draw.t, whole, head=self.head), draw.v
        out, rate = average_velocity.with_rate(model, draw, velocity, guided, key, train=train)
        composed = out.pred + along(draw.t - draw.r, draw.z) * jax.lax.stop_gradient(rate)
        terms = (jnp.square(composed - target),) + ((jnp.square(out.head - target),) if self.head else ())
        return average_velocity.Error(terms, out)

    def _unguided(self, batch: int, conditional: bool) -> dict[str, jax.Array]:
        return {"omega": jnp.ones(batch), "t_lo": jnp.zeros(batch), "t_hi": jnp.ones(batch)}

    def _sampling(self, batch: int, conditional: bool) -> dict[str, jax.Array]:
        if not conditional:  # trained without guidance
            return self._unguided(batch, conditional)
        low, high = self.guidance_interval
        return {"omega": jnp.full(batch, self.guidance), "t_lo": jnp.full(batch, low), "t_hi": jnp.full(batch, high)}
