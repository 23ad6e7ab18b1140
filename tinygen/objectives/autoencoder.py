"""Variational autoencoder (Kingma & Welling 2014, arXiv 1312.6114): reconstruct images from latents kept close to N(0, 1)."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from tinygen.errors import UserError
from tinygen.media import Image
from tinygen.media.preview import Preview
from tinygen.objectives.base import Batch, Objective, weighted
from tinygen.objectives.image_quality import quality


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reconstruction(Objective):
    """The field is described in `tinygen.config.schema.OBJECTIVES`."""

    kl_weight: float

    def __post_init__(self) -> None:
        if not 0 <= self.kl_weight < math.inf:
            raise UserError(f"config.objective.kl_weight={self.kl_weight} must be 0 (latents of any size) or positive")

    def loss(self, model: Any, batch: Batch, key: jax.Array, *, train: bool) -> tuple[jax.Array, dict[str, Any]]:
        """Mean absolute error + kl_weight · KL over the batch's valid examples, with latents sampled from the posterior.

        Evaluation samples them too, with fixed noise. The absolute error, as in latent diffusion, blurs uncertain edges less than the
        squared error. Metrics, all (sum, weight) pairs: `loss`; `raw_loss`, the absolute error; `kl`, nats per example; `psnr`, the mean
        of the images' PSNR in decibels; `ssim`, of their structural similarity, for images of 11x11 or more.
        """
        del train
        x = batch["x"]
        decoded, mean, deviation = model(x, rngs=nnx.Rngs(posterior=key))
        error = jnp.mean(jnp.abs(decoded - x), tuple(range(1, x.ndim)))  # [B]
        apart = divergence(mean, deviation)
        return weighted(batch, loss=error + self.kl_weight * apart, raw_loss=error, kl=apart, **quality(decoded, x))

    def preview(self, raw: Any, averaged: Any, batch: Batch, keys: jax.Array) -> dict[str, Preview]:
        """Each image of the batch beside its reconstruction from the posterior mean."""
        return side_by_side(batch["x"], averaged)


def side_by_side(x: jax.Array, model: Any) -> dict[str, Preview]:
    """Images beside their reconstructions, the first of the model's results; none for images that cannot be shown."""
    if x.shape[-1] not in (1, 3):
        return {}
    return {"reconstructions": Preview(jnp.concatenate([x, model(x)[0]], 2), Image())}


def divergence(mean: jax.Array, deviation: jax.Array) -> jax.Array:
    """KL(N(mean, deviation²) ‖ N(0, 1)) = ½ Σ (μ² + σ² - 1 - ln σ²) for each example [B, ...], in nats."""
    each = jnp.square(mean) + jnp.square(deviation) - 1.0 - 2.0 * jnp.log(deviation)
    return 0.5 * jnp.sum(each, tuple(range(1, each.ndim)))
