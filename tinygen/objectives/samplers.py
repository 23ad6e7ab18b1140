"""Integrators of dx/dt = v(x, t) from noise at t = 1 to data at t = 0: one table, one signature.

A step takes x at t to x at s < t. Nothing couples the examples of a batch.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

Velocity = Callable[[jax.Array, jax.Array], jax.Array]  # (x [B, ...], t scalar) -> [B, ...]


@dataclasses.dataclass(frozen=True)
class Sampler:
    """step: (velocity, x, t, s) -> x at s. stages: where in [s, t] it evaluates the velocity, as shares of the way from t to s."""

    step: Callable[[Velocity, jax.Array, jax.Array, jax.Array], jax.Array]
    stages: tuple[float, ...]


def _euler(velocity: Velocity, x: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
    return x + (s - t) * velocity(x, t)


def _heun(velocity: Velocity, x: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
    slope = velocity(x, t)
    return x + (s - t) / 2 * (slope + velocity(x + (s - t) * slope, s))


SAMPLERS = {
    "euler": Sampler(_euler, stages=(0.0,)),  # order 1
    "heun": Sampler(_heun, stages=(0.0, 1.0)),  # order 2
    "average": Sampler(_euler, stages=(0.0,)),
}


def uniform_grid(steps: int) -> np.ndarray:
    """Times 1 = t₀ > t₁ > ... > t_steps = 0, evenly spaced."""
    return np.linspace(1.0, 0.0, steps + 1, dtype=np.float32)


def integrate(sampler: Sampler, velocity: Velocity, x: jax.Array, grid: np.ndarray) -> jax.Array:
    """x at grid[0] carried to grid[-1], compiled once whatever the number of steps."""

    def advance(x: jax.Array, times: jax.Array) -> tuple[jax.Array, None]:
        return sampler.step(velocity, x, times[0], times[1]), None

    return jax.lax.scan(advance, x, jnp.stack([grid[:-1], grid[1:]], -1))[0]


def evaluations(sampler: Sampler, grid: np.ndarray, cost: Callable[[np.ndarray], np.ndarray]) -> int:
    """Network evaluations of an integration, where one velocity at time t takes cost(t) of them."""
    t, s = grid[:-1], grid[1:]
    return int(sum(cost(t + np.float32(stage) * (s - t)).sum() for stage in sampler.stages))


def grid_for(sampler: Sampler, nfe: int, cost: Callable[[np.ndarray], np.ndarray]) -> np.ndarray | None:
    """The longest uniform grid that takes at most `nfe` network evaluations; None if not even one step does."""
    for steps in range(nfe // len(sampler.stages), 0, -1):
        grid = uniform_grid(steps)
        if evaluations(sampler, grid, cost) <= nfe:
            return grid
    return None
