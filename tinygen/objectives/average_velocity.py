"""Base of objectives that learn an average velocity u(z, t, r) = 1 / (t - r) ∫ from r to t of v: loss, metrics and sampling."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from tinygen.errors import UserError
from tinygen.objectives.base import Batch, mean, weights
from tinygen.objectives.flow import BINS, Flow, between, by_time, mean_over
from tinygen.samplers import guidance
from tinygen.samplers.guidance import Cond, Predict


class Draw(NamedTuple):
    """Noisy examples z = (1 - t)·x + t·ε [B, ...], their velocity v = ε - x, and times t >= r [B]."""

    z: jax.Array
    v: jax.Array
    t: jax.Array
    r: jax.Array


class Error(NamedTuple):
    """terms: the squared errors [B, ...] to minimise, that of the average velocity first; out: the model's output"""

    terms: tuple[jax.Array, ...]
    out: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class AverageVelocity(Flow):
    """shape: of an example. The other fields are described in `tinygen.config.schema.OBJECTIVES`.

    A subclass defines `_error(model, draw, cond, key, train=...)` and the model's extra inputs: `inputs`, with their values in
    `_unguided` and `_sampling`.
    """

    equal: float
    power: float
    offset: float

    learns = "average"
    tolerance = math.nan  # the sampler of average velocities is not adaptive
    needs_jvp = True
    max_time_scale = 100.0  # it multiplies du/dt too

    _error: ClassVar[Callable[..., Error]]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.equal <= 1:
            raise UserError(f"config.objective.equal={self.equal} must lie in [0, 1]: the share of examples with r = t")
        if not 0 <= self.power <= 2:
            raise UserError(f"config.objective.power={self.power} must lie in [0, 2]; 0 weighs all examples equally")
        if not 0 < self.offset < math.inf:
            raise UserError(f"config.objective.offset={self.offset} must be positive: it keeps the weights finite where the error is 0")
        self.grid(conditional=True)

    def loss(self, model: Any, batch: Batch, key: jax.Array, *, train: bool) -> tuple[jax.Array, dict[str, Any]]:
        """Mean of S / sg((S + offset)^power) over the batch's valid examples, where S is an example's sum of squared errors.

        With power 1 each term is always about 1 and has the gradient of log(S + offset): read `raw_loss` instead.
        Metrics, (sum, weight) pairs: `loss`; `raw_loss`, the mean squared error of the average velocity, also by quarter of t and
        where r = t (`raw_loss_equal`); the shares of examples with r = t and by quarter of t - r (`share_equal`, `share_h0` to `_h3`);
        in evaluation `velocity_loss`, the flow matching loss of the unguided u(z, t, t) where the model learns it, on the times and
        noise that flow matching draws, so that the two are comparable.
        """
        x = batch["x"]
        B = len(x)
        time_key, noise_key, keep_key, key = jax.random.split(key, 4)  # the same as in flow matching
        second_key, equal_key, key = jax.random.split(key, 3)
        first, second = self.draw_t(time_key, B), self.draw_t(second_key, B)
        noise = jax.random.normal(noise_key, x.shape)
        t, r = jnp.maximum(first, second), jnp.minimum(first, second)
        r = jnp.where(jax.random.uniform(equal_key, (B,)) < self.equal, t, r)
        cond = guidance.conditions_of(batch, keep_key, self.cond_drop if train else 0.0)
        terms, out = self._error(model, Draw(between(x, noise, t), noise - x, t, r), cond, key, train=train)
        weight = weights(batch, B)

        def total(each: jax.Array, share: jax.Array | float = 1.0) -> tuple[jax.Array, jax.Array]:
            return jnp.sum(weight * share * each), jnp.sum(weight * share)

        error, equal = mean_over(terms[0], out.weight), (t == r).astype(weight.dtype)  # [B]
        adapted = sum(adaptive(mean_over(term, out.weight) * covered(term, out.weight), self.power, self.offset) for term in terms)
        metrics = {"loss": total(jnp.asarray(adapted)), "raw_loss": total(error), **by_time(batch, error, t), **out.stats}
        metrics |= {"raw_loss_equal": total(error, equal), "share_equal": total(equal)}
        spans = jnp.minimum(((t - r) * BINS).astype(jnp.int32), BINS - 1)
        metrics |= {f"share_h{index}": total((spans == index).astype(weight.dtype)) for index in range(BINS)}
        if len(terms) > 1:
            metrics["head_loss"] = total(mean_over(terms[1], out.weight))
        if not train and (plain := self._unguided(B, bool(cond))) is not None:
            velocity = instantaneous(model, between(x, noise, first), first, {**cond, **plain})
            metrics["velocity_loss"] = total(mean_over(jnp.square(velocity - (noise - x)), None))
        return mean(metrics["loss"]), metrics

    def _unguided(self, batch: int, conditional: bool) -> dict[str, jax.Array] | None:
        """The extra inputs that ask for the unguided velocity; None if the model does not learn it."""
        return {}

    def _sampling(self, batch: int, conditional: bool) -> dict[str, jax.Array]:
        """The extra inputs while sampling."""
        return {}

    def _sample(self, model: Any, keys: jax.Array, cond: Cond | None, negative: Cond | None) -> tuple[jax.Array, jax.Array]:
        if negative is not None:
            raise UserError("--negative: this model learnt its guidance in training, without a negative prompt")
        return super()._sample(model, keys, {**(cond or {}), **self._sampling(len(keys), bool(cond))}, None)

    def _slope(self, predict: Predict, z: jax.Array, t: jax.Array, r: jax.Array) -> jax.Array:
        return predict(z, t, t, r)

    def _guided_levels(self, conditional: bool) -> None:
        """Guidance was learned in training, and takes no evaluations."""


def instantaneous(model: Any, z: jax.Array, t: jax.Array, cond: Cond, *, head: bool = False) -> jax.Array:
    """The model's velocity without gradient: u(z, t, t), or its second output there."""
    out = model(z, t, t, cond=cond)
    return jax.lax.stop_gradient(out.head if head else out.pred)


def both(model: Any, z: jax.Array, t: jax.Array, first: Cond, second: Cond, *, head: bool = False) -> tuple[jax.Array, jax.Array]:
    """`instantaneous` for each of two conditions, in one evaluation of twice the batch."""
    twice = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), dict(first), dict(second))
    one, other = jnp.split(instantaneous(model, jnp.concatenate([z, z]), jnp.concatenate([t, t]), twice, head=head), 2)
    return one, other


def with_rate(model: Any, draw: Draw, velocity: jax.Array, cond: Cond, key: jax.Array, *, train: bool) -> tuple[Any, jax.Array]:
    """(the model's output at (z, t, r), du/dt along the flow): the derivative along (dz, dt, dr) = (velocity, 1, 0)."""

    def predict(z: jax.Array, t: jax.Array, r: jax.Array) -> tuple[jax.Array, Any]:
        out = model(z, t, r, cond=cond, rngs=nnx.Rngs(mask=key) if train else None)
        return out.pred, out

    direction = (velocity, jnp.ones_like(draw.t), jnp.zeros_like(draw.r))
    _, rate, out = jax.jvp(predict, (draw.z, draw.t, draw.r), direction, has_aux=True)
    return out, rate


def adaptive(square: jax.Array, power: float, offset: float) -> jax.Array:
    """S / sg((S + offset)^power) for each example's sum of squared errors S [B]."""
    return square / jax.lax.stop_gradient((square + offset) ** power)


def covered(square: jax.Array, weight: jax.Array | None) -> jax.Array:
    """The number of predicted values of each example: [B], or a scalar without a mask."""
    if weight is None:
        return jnp.asarray(math.prod(square.shape[1:]), square.dtype)
    return jnp.sum(jnp.broadcast_to(weight > 0, square.shape), tuple(range(1, square.ndim)), dtype=square.dtype)
