"""Dormand and Prince's method of order 5(4), 1980: steps as long as each example's error allows.

Libraries control the step for the whole batch, or evaluate the network for one example at a time.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tinygen.samplers.paths import Field, Given, Sampler, along

TIMES = (0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0)  # of the stages, as shares of the step from t to s
WEIGHTS = (  # of the slopes so far in each stage's x. The last stage is the step's end, and its slope the next step's first
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
ERROR = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)  # the fifth order minus the fourth
STEP = len(TIMES) - 1  # evaluations per step after the first
LEAST = 1 + STEP
SAFETY, SHRINK, GROW = 0.9, 0.2, 2.0  # of the next step's length. After a small error by chance, faster growth would lead too far


class State(NamedTuple):
    """The integration of B examples.

    x: [B, ...]; slope: the field at x
    t, h: [B], times, and the lengths of the next steps
    calls: int32 [B], evaluations so far
    """

    x: jax.Array
    slope: jax.Array
    t: jax.Array
    h: jax.Array
    calls: jax.Array


def dopri5(field: Field, x: jax.Array, grid: np.ndarray, given: Given) -> tuple[jax.Array, jax.Array]:
    """(x at grid[-1], evaluations of the field [B]). Only the ends of the grid are used; the field gets times [B].

    A step is accepted for an example if the root mean square of its error is within tolerance·(1 + |x|). If the evaluations left
    allow only one more step, it reaches the end and is accepted.
    """
    start, end = jnp.asarray(grid[[0, -1]], x.dtype)
    B = len(x)

    def advance(now: State) -> State:
        going = now.t > end
        last = now.calls + 2 * STEP > given.most
        s = jnp.where(last | (now.t - 1.01 * now.h <= end), end, now.t - now.h)  # avoids a tiny last step
        after, slope, error = _step(field, now, s, given.tolerance)
        taken = going & (last | (error <= 1))
        longer = jnp.clip(jnp.nan_to_num(SAFETY * error ** (-1 / 5), nan=SHRINK), SHRINK, GROW)
        moved = along(taken, after)
        x, slope = jnp.where(moved, after, now.x), jnp.where(moved, slope, now.slope)
        return State(x, slope, jnp.where(taken, s, now.t), (now.t - s) * longer, now.calls + STEP * going)

    first = jnp.full((B,), start)
    h = (start - end) * given.tolerance ** (1 / 5)  # fits a field that changes as much as its own size along the way
    begun = State(x, field(x, first, first), first, jnp.full((B,), h), jnp.ones(B, jnp.int32))
    arrived = jax.lax.while_loop(lambda now: jnp.any(now.t > end), advance, begun)
    return arrived.x, arrived.calls


def _step(field: Field, now: State, s: jax.Array, tolerance: float) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(x at s, the slope there, the step's error [B] in units of the tolerance)."""
    h, x, slopes = along(s - now.t, now.x), now.x, [now.slope]
    for share, weights in zip(TIMES[1:], WEIGHTS, strict=True):
        at = (1 - share) * now.t + share * s  # the last exactly s
        x = now.x + h * sum(weight * slope for weight, slope in zip(weights, slopes, strict=True))
        slopes.append(field(x, at, at))
    off = h * sum(weight * slope for weight, slope in zip(ERROR, slopes, strict=True))
    allowed = tolerance * (1 + jnp.maximum(jnp.abs(now.x), jnp.abs(x)))
    return x, slopes[-1], jnp.sqrt(jnp.mean(jnp.square(off / allowed), tuple(range(1, x.ndim))))


SAMPLERS = {"dopri5": Sampler(dopri5, lambda t, s, path: [t] * LEAST, adaptive=True)}  # order 5
