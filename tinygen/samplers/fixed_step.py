"""Samplers with times fixed in advance: a step takes x at t to x at s < t. The examples of a batch are independent."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tinygen import rng
from tinygen.samplers.paths import Field, Given, Path, Sampler

Step = Callable[[Field, jax.Array, jax.Array, jax.Array, Path], jax.Array]  # (field, x [B, ...], t, s: scalars, path) -> x at s
Ended = tuple[jax.Array, None]


def each(step: Step) -> Callable[[Field, jax.Array, np.ndarray, Given], Ended]:
    """The integration that takes this step from each time to the next."""
    return lambda field, x, grid, given: (_scan(lambda x, t, s: step(field, x, t, s, given.path), x, grid), None)


def _scan(advance: Callable[[Any, jax.Array, jax.Array], Any], first: Any, grid: np.ndarray) -> Any:
    """Compiled once whatever the number of steps."""
    times = jnp.asarray(grid)
    return jax.lax.scan(lambda carry, pair: (advance(carry, *pair), None), first, (times[:-1], times[1:]))[0]


def euler(field: Field, x: jax.Array, t: jax.Array, s: jax.Array, path: Path) -> jax.Array:
    return x + (s - t) * field(x, t, t)


def heun(field: Field, x: jax.Array, t: jax.Array, s: jax.Array, path: Path) -> jax.Array:
    slope = field(x, t, t)
    return x + (s - t) / 2 * (slope + field(x + (s - t) * slope, s, s))


def midpoint(field: Field, x: jax.Array, t: jax.Array, s: jax.Array, path: Path) -> jax.Array:
    middle = t + (s - t) / 2
    return x + (s - t) * field(x + (s - t) / 2 * field(x, t, t), middle, middle)


def rk4(field: Field, x: jax.Array, t: jax.Array, s: jax.Array, path: Path) -> jax.Array:
    """The classical Runge-Kutta method."""
    h, middle = s - t, t + (s - t) / 2
    a = field(x, t, t)
    b = field(x + h / 2 * a, middle, middle)
    c = field(x + h / 2 * b, middle, middle)
    return x + h / 6 * (a + 2 * b + 2 * c + field(x + h * c, s, s))


def average(field: Field, x: jax.Array, t: jax.Array, s: jax.Array, path: Path) -> jax.Array:
    """x_s = x_t - (t - s)·u(x_t, t, s): as exact as u (Geng et al. 2025, arXiv 2505.13447)."""
    return x - (t - s) * field(x, t, s)


def edm_heun(field: Field, x: jax.Array, t: jax.Array, s: jax.Array, path: Path) -> jax.Array:
    """Heun's step of y = z/α in σ = t/α (Karras et al. 2022, arXiv 2206.00364): dy/dσ = ε, as y = x + σ·ε.

    y_s = y_t + (σ_s - σ_t)·(ε_t + ε_s)/2, times α_s: z_s = (α_s/α_t)·z_t + (s - t·α_s/α_t)·(ε_t + ε_s)/2. With ε_t alone this is
    Euler's step, α_s·D + s·ε_t, which also holds from σ = ∞ (t = 1 of a flow). That step and the one to σ = 0 are Euler's.
    """
    data, noise = path.ends(x, t, field(x, t, t))
    reached = path.alpha(s) * data + s * noise

    def corrected() -> jax.Array:
        _, later = path.ends(reached, s, field(reached, s, s))
        return reached + (s - t * path.alpha(s) / path.alpha(t)) / 2 * (later - noise)

    return jax.lax.cond((path.alpha(t) > 0) & (s > 0), corrected, lambda: reached)


def dpmpp_2m(field: Field, x: jax.Array, grid: np.ndarray, given: Given) -> Ended:
    """DPM-Solver++(2M), Lu et al. 2022, arXiv 2211.01095: z_s = (s/t)·z_t + (α_s - α_t·s/t)·D̄.

    D̄ = D + (D - D')·h/(2h'): D is the data predicted at t, D' at the previous time, h the step's length in λ = ln(α/t), h' that of
    the previous step. In the first step, and if h or h' is infinite (from t = 1 of a flow, and to 0), D̄ = D, which has order 1.
    """
    path = given.path

    def advance(carry: Any, t: jax.Array, s: jax.Array) -> Any:
        x, before, h_before = carry
        data, _ = path.ends(x, t, field(x, t, t))
        h = jnp.log(path.alpha(s) * t / (s * path.alpha(t)))
        share = jnp.where(jnp.isfinite(h) & jnp.isfinite(h_before), h / (2 * h_before), 0)
        x = s / t * x + (path.alpha(s) - path.alpha(t) * s / t) * (data + share * (data - before))
        return x, data, h

    first = (x, jnp.zeros_like(x), jnp.full((), jnp.inf, x.dtype))
    return _scan(advance, first, grid)[0], None


def sde(field: Field, x: jax.Array, grid: np.ndarray, given: Given) -> Ended:
    """Ancestral sampling, DDIM's with η = 1 (Song et al. 2021, arXiv 2010.02502): z_s = α_s·D + √(s² - σ̂²)·ε + σ̂·n, n fresh noise.

    σ̂² = (s/t)²·(t² - (α_t/α_s)²·s²) = s²·(1 - ρ²) with ρ = α_t·s / (α_s·t), so √(s² - σ̂²) = s·ρ. From t = 1 of a flow all the
    noise is fresh; at s = 0 there is none.
    """
    path = given.path

    def advance(carry: Any, t: jax.Array, s: jax.Array) -> Any:
        index, x = carry
        data, noise = path.ends(x, t, field(x, t, t))
        kept = jnp.minimum(path.alpha(t) * s / (path.alpha(s) * t), 1)
        fresh = rng.normal(rng.folded(given.keys, index), x.shape[1:])
        return index + 1, path.alpha(s) * data + s * (kept * noise + jnp.sqrt(1 - kept**2) * fresh)

    return _scan(advance, (0, x), grid)[1], None


def _first(t: np.ndarray, s: np.ndarray, path: Path) -> list[np.ndarray]:
    return [t]


def _middle(t: np.ndarray, s: np.ndarray) -> np.ndarray:
    return t + (s - t) / 2


SAMPLERS: dict[str, Sampler] = {
    "euler": Sampler(each(euler), _first),  # order 1
    "heun": Sampler(each(heun), lambda t, s, path: [t, s]),  # order 2
    "midpoint": Sampler(each(midpoint), lambda t, s, path: [t, _middle(t, s)]),  # order 2
    "rk4": Sampler(each(rk4), lambda t, s, path: [t, _middle(t, s), _middle(t, s), s]),  # order 4
    "dpmpp_2m": Sampler(dpmpp_2m, _first),  # order 2
    "edm_heun": Sampler(each(edm_heun), lambda t, s, path: [t, s[(s > 0) & (path.alpha(t) > 0)]]),  # order 2
    "sde": Sampler(sde, _first),  # stochastic
    "average": Sampler(each(average), _first, needs="average"),  # as exact as the field
}
