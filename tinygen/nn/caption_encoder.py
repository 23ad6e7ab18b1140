"""A small transformer that encodes captions for an image model and is trained with it.

Its input is tokens, or the embeddings of a pretrained text encoder (CLIP, T5).
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from tinygen.nn.attention import Attention
from tinygen.nn.feed_forward import SwiGLU
from tinygen.nn.layers import Embedding, Linear, RMSNorm, pin


class TextBlock(nnx.Module):
    """x += attention(norm x); x += feed-forward(norm x): every token attends to all tokens that are not padding."""

    def __init__(self, width: int, heads: int, hidden: int, *, precision: str, rngs: nnx.Rngs, **kind: Any):
        """kind: keywords of `Attention`"""
        self.attention = Attention(width, heads, width // heads, precision=precision, rngs=rngs, **kind)
        self.feed_forward = SwiGLU(width, hidden, precision=precision, rngs=rngs)
        self.attention_norm, self.feed_forward_norm = RMSNorm(width), RMSNorm(width)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:  # [B, S, D], bool [B, S] -> [B, S, D]
        x = pin(x, "batch", ...)
        x = x + self.attention(self.attention_norm(x), mask=mask)
        return x + self.feed_forward(self.feed_forward_norm(x))


class TextEncoder(nnx.Module):
    """Tokens int32 [B, S], 0 for padding, or embeddings [B, S, features] -> (features [B, S, D], bool [B, S] where there is a token).

    Embeddings get no positions, since their encoder has added its own. Padding does not affect the other tokens' features.
    An example whose caption is dropped or missing has a single token, the learned null.
    """

    SHARDING = (*Attention.SHARDING, *SwiGLU.SHARDING)

    def __init__(
        self, *, vocabulary: int, length: int, features: int, width: int, depth: int, heads: int, hidden: int, precision: str,
        rngs: nnx.Rngs, **kind: Any,
    ):  # fmt: skip
        """features: of an embedding; 0 = the input is tokens. kind: keywords of `Attention`"""
        self.project = Linear(features, width, precision=precision, rngs=rngs) if features else None
        self.embedding = None if features else Embedding(vocabulary, width, rngs=rngs)
        self.positions = None if features else Embedding(length, width, rngs=rngs)
        self.blocks = nnx.List([TextBlock(width, heads, hidden, precision=precision, rngs=rngs, **kind) for _ in range(depth)])
        self.norm = RMSNorm(width)
        self.null = nnx.Param(jax.random.normal(rngs.params(), (width,)))  # on the scale of the norm's output

    def __call__(
        self, given: jax.Array, keep: jax.Array | None = None, mask: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:  # fmt: skip
        """given: tokens, or embeddings with `mask` bool [B, S], False for padding; keep: bool [B], False for the null"""
        if self.project is not None:
            assert mask is not None
            x = self.project(given)
        else:
            assert self.embedding is not None
            assert self.positions is not None
            mask = given > 0
            x = self.embedding(given) + self.positions(jnp.arange(given.shape[1]))
        for block in self.blocks:
            x = block(x, mask)
        present = jnp.any(mask, 1) if keep is None else jnp.any(mask, 1) & keep
        null, alone = self.null_caption(*mask.shape)
        return jnp.where(present[:, None, None], self.norm(x), null), jnp.where(present[:, None], mask, alone)

    def null_caption(self, batch: int, length: int) -> tuple[jax.Array, jax.Array]:
        """The output for examples without a caption: the null alone."""
        null = jnp.broadcast_to(self.null[...], (batch, length, self.null.shape[0]))
        return null, jnp.broadcast_to(jnp.arange(length) == 0, (batch, length))


def pooled(features: jax.Array, mask: jax.Array) -> jax.Array:
    """[B, S, D] -> [B, D], the mean over the tokens that are not padding."""
    return jnp.sum(features * mask[..., None], 1) / jnp.maximum(jnp.sum(mask, 1, keepdims=True), 1)
