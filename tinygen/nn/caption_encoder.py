"""A small transformer that reads captions: what image models are told by words. It is trained with the model that it serves.

It reads tokens, or what a text encoder that was trained elsewhere, CLIP or T5, has made of them.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from tinygen.nn.attention import Attention
from tinygen.nn.feed_forward import SwiGLU
from tinygen.nn.layers import Embedding, Linear, RMSNorm, pin


class TextBlock(nnx.Module):
    """x += attention(norm x); x += feed-forward(norm x): all tokens see all that are there."""

    def __init__(
        self, width: int, heads: int, hidden: int, *, qk_norm: bool, precision: str, attention: str, needs_jvp: bool, rngs: nnx.Rngs
    ):  # fmt: skip
        self.attention = Attention(
            width, heads, width // heads, qk_norm=qk_norm, precision=precision, attention=attention, needs_jvp=needs_jvp, rngs=rngs
        )
        self.feed_forward = SwiGLU(width, hidden, precision=precision, rngs=rngs)
        self.attention_norm, self.feed_forward_norm = RMSNorm(width), RMSNorm(width)

    def __call__(self, x: jax.Array, there: jax.Array) -> jax.Array:  # [B, S, D], bool [B, S] -> [B, S, D]
        x = pin(x, "batch", ...)
        x = x + self.attention(self.attention_norm(x), mask=there)
        return x + self.feed_forward(self.feed_forward_norm(x))


class TextEncoder(nnx.Module):
    """Tokens int32 [B, S], 0 for padding, or embeddings [B, S, features] -> (features [B, S, D], bool [B, S] where there is a token).

    Embeddings get no positions of ours: their encoder has put its own in.
    Padding changes nothing of the others' features. Where an example is to go without its caption, or has none, its one token is the
    learned null.
    """

    SHARDING = (*Attention.SHARDING, *SwiGLU.SHARDING)

    def __init__(
        self, *, vocabulary: int, length: int, features: int, width: int, depth: int, heads: int, hidden: int, qk_norm: bool,
        precision: str, attention: str, needs_jvp: bool, rngs: nnx.Rngs,
    ):  # fmt: skip
        """features: of an embedding; 0 = it reads tokens"""
        self.project = Linear(features, width, precision=precision, rngs=rngs) if features else None
        self.embedding = None if features else Embedding(vocabulary, width, rngs=rngs)
        self.positions = None if features else Embedding(length, width, rngs=rngs)
        self.blocks = nnx.List(
            [
                TextBlock(
                    width, heads, hidden, qk_norm=qk_norm, precision=precision, attention=attention, needs_jvp=needs_jvp, rngs=rngs
                )
                for _ in range(depth)
            ]
        )  # fmt: skip
        self.norm = RMSNorm(width)
        self.null = nnx.Param(jax.random.normal(rngs.params(), (width,)))  # of the size of what the norm gives

    def __call__(
        self, given: jax.Array, keep: jax.Array | None = None, there: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:  # fmt: skip
        """given: tokens, or embeddings and bool [B, S], where `there` are some; keep: bool [B], False for the null"""
        if self.project is not None:
            assert there is not None
            x = self.project(given)
        else:
            assert self.embedding is not None
            assert self.positions is not None
            there = given > 0
            x = self.embedding(given) + self.positions(jnp.arange(given.shape[1]))
        for block in self.blocks:
            x = block(x, there)
        told = jnp.any(there, 1) if keep is None else jnp.any(there, 1) & keep
        null, alone = self.without(*there.shape)
        return jnp.where(told[:, None, None], self.norm(x), null), jnp.where(told[:, None], there, alone)

    def without(self, batch: int, length: int) -> tuple[jax.Array, jax.Array]:
        """The same for examples without a caption: the null and nothing else."""
        null = jnp.broadcast_to(self.null[...], (batch, length, self.null.shape[0]))
        return null, jnp.broadcast_to(jnp.arange(length) == 0, (batch, length))


def pooled(features: jax.Array, there: jax.Array) -> jax.Array:
    """[B, S, D] -> [B, D], the mean over the tokens that are there."""
    return jnp.sum(features * there[..., None], 1) / jnp.maximum(jnp.sum(there, 1, keepdims=True), 1)
