"""The interface of objectives. Every member has a default, so callers need no `hasattr`."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tinygen.media.preview import Preview

Batch = Mapping[str, jax.Array]


class Objective:
    """What a model learns, and how it is sampled. Subclasses are frozen dataclasses whose fields are the keys of their configuration.

    A new objective is a subclass in a file of its own, a row of `tinygen.build.OBJECTIVES` and its keys in `tinygen.config.objectives`.
    """

    generates: ClassVar[bool] = False  # whether it can be sampled
    streams: ClassVar[bool] = False  # whether samples grow token by token, by `begin` and `more`, from a context of `length` tokens
    infills: ClassVar[bool] = False  # whether it can draw the rest of given tokens, and has a `history`
    needs_jvp: ClassVar[bool] = False  # whether the loss takes forward-mode derivatives of the model, which some kernels lack
    inputs: ClassVar[tuple[str, ...]] = ()  # the model's scalar inputs besides the time, by name
    max_time_scale: ClassVar[float] = math.inf  # the largest config.model.time_scale with stable training
    passes: ClassVar[tuple[str, ...]] = ()  # arguments that it passes to the model and that tell its kind of model from others
    length = new_tokens = 0  # tokens of context, and most new tokens per sample

    @property
    def head(self) -> bool:
        """Whether the model needs a second output."""
        return False

    def facts(self) -> dict[str, Any]:
        """Keywords for the model's constructor, in place of the data's or in addition to them."""
        return {"needs_jvp": self.needs_jvp, "inputs": self.inputs, "head": self.head}

    def loss(self, model: Any, batch: Batch, key: jax.Array, *, train: bool) -> tuple[jax.Array, dict[str, Any]]:
        """(the scalar to minimise, metrics): floats, or (sum, weight) pairs that are summed over batches before the division.

        Held-out sums may be arrays, such as a histogram: see `derived`.
        """
        raise NotImplementedError

    def draw(
        self, model: Any, keys: jax.Array, cond: Batch | None = None, negative: Batch | None = None
    ) -> tuple[jax.Array, jax.Array | None]:
        """(samples [B, ...], one per key; network evaluations of each, int32 [B], or None where they are not counted)."""
        raise NotImplementedError

    def history(self, model: Any, keys: jax.Array, cond: Batch | None = None, negative: Batch | None = None) -> jax.Array:
        """The samples of `draw` in the making: [steps + 1, B, ...]."""
        raise NotImplementedError

    def begin(self, model: Any, prompt: jax.Array, prompt_mask: jax.Array, keys: jax.Array) -> Any:
        """The state after reading the prompts, int32 [B, P], where prompt_mask is True."""
        raise NotImplementedError

    def more(self, model: Any, state: Any, num: int) -> tuple[Any, jax.Array]:
        """(the next state, `num` new tokens int32 [B, num])."""
        raise NotImplementedError

    def evaluations(self, *, conditional: bool) -> int | None:
        """Maximum network evaluations per sample; None where they are not counted."""
        return None

    def preview(self, raw: Any, averaged: Any, batch: Batch, keys: jax.Array) -> dict[str, Preview]:
        """Previews during training, by name. raw, averaged: the model with its raw and with its averaged weights."""
        return {}

    def derived(self, means: Mapping[str, Any]) -> dict[str, float]:
        """Metrics derived from means, such as the perplexity. Any mean may be missing. Those of arrays go here and nowhere else."""
        return {}


def weights(batch: Batch, num: int) -> jax.Array:
    """[num], the weights of a batch's examples: 0 for those that only fill the batch."""
    return batch.get("weight", jnp.ones(num))


def weighted(batch: Batch, **values: jax.Array) -> tuple[jax.Array, dict[str, Any]]:
    """(the mean of `loss` over the batch's valid examples, the metrics: (sum, weight) pairs) from the values [B] of each metric."""
    weight = weights(batch, len(values["loss"]))
    count = jnp.sum(weight)
    metrics = {name: (jnp.sum(weight * each), count) for name, each in values.items()}
    return mean(metrics["loss"]), metrics


def mean(pair: tuple[jax.Array, jax.Array]) -> jax.Array:
    """The mean of a (sum, weight) pair; 0 without examples."""
    return pair[0] / jnp.maximum(pair[1], 1e-12)


def finalise(metrics: Mapping[str, Any], objective: Objective) -> dict[str, float]:
    """Device metrics as floats: the means of (sum, weight) pairs with positive weight, and what the objective derives from means."""
    fetched = jax.device_get(dict(metrics))
    pairs = {name: value if isinstance(value, tuple) else (value, 1.0) for name, value in fetched.items()}
    means = {name: np.asarray(total, np.float64) / float(weight) for name, (total, weight) in pairs.items() if weight > 0}
    floats = {name: float(mean) for name, mean in means.items() if mean.ndim == 0}
    return {**floats, **objective.derived(means | floats)}
