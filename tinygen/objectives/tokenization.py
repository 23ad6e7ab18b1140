"""Tokenization of images (van den Oord et al. 2017, arXiv 1711.00937): reconstruct them from the codes of a quantizer."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tinygen.errors import UserError
from tinygen.media.preview import Preview
from tinygen.objectives.autoencoder import side_by_side
from tinygen.objectives.base import Batch, Objective, weighted, weights
from tinygen.objectives.image_quality import quality


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokenization(Objective):
    """The field is described in `tinygen.config.schema.OBJECTIVES`."""

    commitment: float

    def __post_init__(self) -> None:
        if not 0 <= self.commitment < math.inf:
            raise UserError(f"config.objective.commitment={self.commitment} must be 0 or positive")

    def loss(self, model: Any, batch: Batch, key: jax.Array, *, train: bool) -> tuple[jax.Array, dict[str, Any]]:
        """Mean absolute error + commitment · the quantizer's penalty over the batch's valid examples. Training updates the codebook.

        Metrics, all (sum, weight) pairs: `loss`; `raw_loss`, the absolute error; `commitment`, the penalty; `psnr` in decibels and
        `ssim`, means over images; held out also `code_share`, an array: the share of each code in the tokens.
        """
        x = batch["x"]
        weight = weights(batch, len(x))
        decoded, quantized = model(x, weight=weight, rngs=nnx.Rngs(revival=key) if train else None)
        error, penalty = jnp.mean(jnp.abs(decoded - x), tuple(range(1, x.ndim))), quantized.penalty  # [B]
        loss, metrics = weighted(batch, loss=error + self.commitment * penalty, raw_loss=error, commitment=penalty, **quality(decoded, x))
        if not train:
            metrics["code_share"] = counted(quantized.tokens, weight, model.codes)
        return loss, metrics

    def derived(self, means: Mapping[str, Any]) -> dict[str, float]:
        """`code_use`, the share of codes that occur, and `code_perplexity`, exp of the codes' entropy: means over stages."""
        if "code_share" not in means:
            return {}
        share = means["code_share"]  # [stages, codes]
        entropy = -np.sum(share * np.log(np.maximum(share, 1e-30)), -1)
        return {"code_use": float(np.mean(share > 0)), "code_perplexity": float(np.mean(np.exp(entropy)))}

    def preview(self, raw: Any, averaged: Any, batch: Batch, keys: jax.Array) -> dict[str, Preview]:
        """Each image of the batch beside its reconstruction."""
        return side_by_side(batch["x"], averaged)


def counted(tokens: jax.Array, weight: jax.Array, codes: int) -> tuple[jax.Array, jax.Array]:
    """(how often each code occurs [stages, codes], tokens per stage): examples of tokens [B, h, w] or [B, h, w, stages] by weight [B]."""
    B, h, w = tokens.shape[:3]
    each = jnp.repeat(weight, h * w)
    stages = tokens.reshape(B * h * w, -1).T
    return jax.vmap(lambda row: jnp.bincount(row, each, length=codes))(stages), jnp.sum(each)
