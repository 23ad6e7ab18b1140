"""The straight paths from data to noise that samplers follow backwards, and the interface of samplers."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Field = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""(x [B, ...], t, r: scalars or [B]) -> [B, ...], the average velocity from r to t, which for r = t is the velocity."""


class Path(NamedTuple):
    """z_t = α(t)·x + t·ε with α(t) = 1 - decay·t: decay 1 is flow matching's, 0 is EDM's, where t is σ."""

    decay: float

    def alpha(self, t: Any) -> Any:
        return 1 - self.decay * t

    def ends(self, z: jax.Array, t: jax.Array, velocity: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The (data, noise) that a velocity predicts: v = dz/dt = ε - decay·x, so x = z - t·v and ε = v + decay·x."""
        data = z - t * velocity
        return data, velocity + self.decay * data


class Given(NamedTuple):
    """The inputs of an integration besides the field, x and the times.

    keys: [B], one per example, for noise
    tolerance: error per step of an adaptive sampler
    most: its maximum evaluations of the field per example
    """

    path: Path
    keys: jax.Array
    tolerance: float
    most: int


def along(t: jax.Array, x: jax.Array) -> jax.Array:
    """t, a scalar or [B], shaped to multiply x [B, ...]."""
    return t.reshape(-1, *[1] * (x.ndim - 1)) if jnp.ndim(t) else t


class Sampler(NamedTuple):
    """A row of the table.

    integrate: (field, x at grid[0], grid, given) -> (x at grid[-1], evaluations of the field [B], or None for those of `evaluates`)
    evaluates: (t, s, path), the ends of all steps [steps] -> the times at which the field is evaluated
    needs: the kind of field, "velocity" or "average"
    adaptive: chooses the times itself for each example, between the ends of the grid
    """

    integrate: Callable[[Field, jax.Array, np.ndarray, Given], tuple[jax.Array, jax.Array | None]]
    evaluates: Callable[[np.ndarray, np.ndarray, Path], Sequence[np.ndarray]]
    needs: str = "velocity"
    adaptive: bool = False
