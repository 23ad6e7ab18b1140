"""Regression: predict y from x by least squares."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from tinygen.errors import UserError
from tinygen.media import Curve
from tinygen.media.preview import Preview
from tinygen.objectives.base import Batch, Objective, weighted


@dataclasses.dataclass(frozen=True, kw_only=True)
class Regression(Objective):
    """shape, target_shape: of an example's x and y. The other field is described in `tinygen.config.schema.OBJECTIVES`."""

    shape: tuple[int, ...]
    target_shape: tuple[int, ...]
    target_noise: float

    def __post_init__(self) -> None:
        if not 0 <= self.target_noise < math.inf:
            raise UserError(f"config.objective.target_noise={self.target_noise} must be 0 (none) or positive")

    def loss(self, model: Any, batch: Batch, key: jax.Array, *, train: bool) -> tuple[jax.Array, dict[str, Any]]:
        """Mean squared error of y over the batch's valid examples. Training uses dropout and noisy targets.

        Metrics: `loss` and `raw_loss`, which are equal, as (sum, weight) pairs.
        """
        noise_key, dropout_key = jax.random.split(key)
        target = batch["y"]
        if train and self.target_noise:
            target = target + self.target_noise * jax.random.normal(noise_key, target.shape)
        pred = model(batch["x"], rngs=nnx.Rngs(dropout=dropout_key) if train else None)
        error = jnp.mean(jnp.square(pred - target), tuple(range(1, pred.ndim)))  # [B]
        return weighted(batch, loss=error, raw_loss=error)

    def preview(self, raw: Any, averaged: Any, batch: Batch, keys: jax.Array) -> dict[str, Preview]:
        """A plot of y and of the predictions of the raw and the averaged weights over x; nothing unless x and y are scalars."""
        if self.shape != (1,) or self.target_shape != (1,):
            return {}
        x = batch["x"]
        points = jnp.concatenate([x, batch["y"], raw(x), averaged(x)], -1)  # [N, 4]
        return {"curve": Preview(points[jnp.argsort(x[:, 0])], Curve(curves=("truth", "raw weights", "averaged weights")))}
