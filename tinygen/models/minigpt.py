"""miniGPT: a decoder-only transformer over tokens (Radford et al. 2019), with a choice of modern components.

Pre-norm blocks; learned positions (GPT-2) or RoPE; a GELU or SwiGLU feed-forward; a separate or tied output layer; grouped-query
attention. Every block is initially the identity.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from tinygen.errors import UserError, check_positive, check_share, unknown
from tinygen.nn import causal_attention, layers, rope, stack
from tinygen.nn.attention import LOWEST
from tinygen.nn.causal_attention import Cache, CausalAttention
from tinygen.nn.feed_forward import GELU, SwiGLU, swiglu_hidden
from tinygen.nn.layers import Embedding, LayerNorm, drop
from tinygen.nn.matmul import product

POSITIONS = ("rope", "learned")
FEED_FORWARDS = ("swiglu", "gelu")


class Block(nnx.Module):
    """x += attention(norm x); x += feed-forward(norm x)."""

    def __init__(
        self, width: int, heads: int, hidden: int, *, kv_heads: int, feed_forward: str, dropout: float, qk_norm: bool, precision: str,
        attention: str, rngs: nnx.Rngs,
    ):  # fmt: skip
        self.attention = CausalAttention(
            width, heads, kv_heads=kv_heads, qk_norm=qk_norm, precision=precision, attention=attention, rngs=rngs
        )
        self.feed_forward = (SwiGLU if feed_forward == "swiglu" else GELU)(width, hidden, precision=precision, rngs=rngs, zero=True)
        self.attention_norm, self.feed_forward_norm = LayerNorm(width), LayerNorm(width)
        self.dropout = dropout

    def __call__(
        self, stream: tuple[jax.Array, Cache | None, jax.Array | None], segment: jax.Array | None, position: jax.Array, angles: Any
    ) -> tuple[jax.Array, Cache | None, jax.Array | None]:
        """stream: x [B, T, D], this block's cache or None, and the key of dropout's masks or None."""
        x, cache, key = stream
        x = layers.pin(x, "batch", ...)
        mixed, cache = self.attention(self.attention_norm(x), segment, position, angles, cache)
        keys = (None, None, None) if key is None else tuple(jax.random.split(key, 3))
        x = x + drop(mixed, self.dropout, keys[0])
        return x + drop(self.feed_forward(self.feed_forward_norm(x)), self.dropout, keys[1]), cache, keys[2]


class MiniGPT(nnx.Module):
    """Tokens int32 [B, T] -> logits [B, T, V']: V' is the vocabulary padded to a multiple; padding has zero probability.

    length: tokens of the window
    vocabulary: number of tokens
    The other keywords are described in `tinygen.config.schema.MODELS`.
    """

    SHARDING = (*CausalAttention.SHARDING, *SwiGLU.SHARDING, (r"(tokens|head)/embedding$", ("tensor",)))

    def __init__(
        self, *, length: int, vocabulary: int, width: int, depth: int, heads: int, kv_heads: int, feed_forward: str, mlp_ratio: float,
        mlp_multiple: int, positions: str, tied: bool, dropout: float, qk_norm: bool, vocabulary_multiple: int, precision: str,
        attention: str, remat: str, scan: int, rngs: nnx.Rngs,
    ):  # fmt: skip
        sizes = dict(width=width, depth=depth, heads=heads, mlp_ratio=mlp_ratio, mlp_multiple=mlp_multiple)
        check_positive("model", **sizes, vocabulary_multiple=vocabulary_multiple)
        check_share("model", dropout=dropout)
        if width % heads or width // heads % 2:
            raise UserError(f"config.model.heads={heads} must divide config.model.width={width} into heads of an even size")
        groups = kv_heads or heads
        if groups < 0 or heads % groups:
            raise UserError(f"config.model.kv_heads={kv_heads} must be 0 (as many as heads) or divide config.model.heads={heads}")
        if positions not in POSITIONS:
            raise unknown("config.model.positions", positions, POSITIONS)
        if feed_forward not in FEED_FORWARDS:
            raise unknown("config.model.feed_forward", feed_forward, FEED_FORWARDS)
        stack.check(remat, scan, depth)
        self.length, self.vocabulary, self.size, self.groups = length, vocabulary, width // heads, groups
        self.dropout, self.precision, self.remat, self.scan = dropout, precision, remat, scan
        padded = -(-vocabulary // vocabulary_multiple) * vocabulary_multiple
        hidden = swiglu_hidden(width, mlp_ratio if feed_forward == "swiglu" else 1.5 * mlp_ratio, mlp_multiple)
        self.tokens = Embedding(padded, width, rngs=rngs)
        self.places = Embedding(length, width, rngs=rngs) if positions == "learned" else None
        common: dict[str, Any] = dict(dropout=dropout, qk_norm=qk_norm, precision=precision, attention=attention, rngs=rngs)
        self.blocks = nnx.List([Block(width, heads, hidden, kv_heads=groups, feed_forward=feed_forward, **common) for _ in range(depth)])
        self.norm = LayerNorm(width)
        self.head = None if tied else Embedding(padded, width, rngs=rngs)

    def check_mesh(self, tensor: int, keys: Mapping[str, Any]) -> None:
        """Raises UserError unless mesh.tensor splits the rows of the embedding evenly."""
        if (rows := self.tokens.embedding.shape[0]) % tensor:
            cure = f"config.model.vocabulary_multiple={keys['vocabulary_multiple']} must be a multiple of it"
            raise UserError(f"config.mesh.tensor={tensor} splits the embedding, which has {rows} rows: {cure}")

    def __call__(
        self, tokens: jax.Array, *, segment: jax.Array | None = None, position: jax.Array | None = None, rngs: nnx.Rngs | None = None
    ) -> jax.Array:
        """Logits [B, T, V'] of the token after each; arguments as for `features`."""
        return self.unembed(self.features(tokens, segment=segment, position=position, rngs=rngs)[0])

    def features(
        self, tokens: jax.Array, *, segment: jax.Array | None = None,
        position: jax.Array | None = None, cache: tuple[Cache, ...] | None = None, rngs: nnx.Rngs | None = None,
    ) -> tuple[jax.Array, tuple[Cache, ...] | None]:  # fmt: skip
        """tokens int32 [B, T] -> (h [B, T, D], the cache with these tokens).

        segment: int32 [B, T]: tokens attend to their own segment only; 0 is padding
        position: int32 [B, T]; None = counted from the start of each segment. With a cache: from the start of the text; tokens `length` or
            more positions back are not attended to. Learned positions end at `length`.
        rngs: the stream `dropout`, in training; None = no dropout
        """
        if position is None:
            position = jnp.arange(tokens.shape[1], dtype=jnp.int32) if segment is None else segment_positions(segment)
        position = jnp.broadcast_to(position, tokens.shape)
        x = self.tokens(tokens)
        if self.places is not None:
            x = x + self.places(position)
        key = rngs.dropout() if rngs is not None and self.dropout else None
        keys = (None, None) if key is None else tuple(jax.random.split(key))
        x = drop(x, self.dropout, keys[0])
        angles = None if self.places is not None else rope.line_angles(position, self.size)
        if cache is None:
            x, _, _ = stack.apply(self.blocks, (x, None, keys[1]), segment, position, angles, remat=self.remat, scan=self.scan)
            return self.norm(x), None
        grown: list[Any] = []
        for block, kept in zip(self.blocks, cache, strict=True):
            x, kept, _ = block((x, kept, None), segment, position, angles)
            grown.append(kept)
        return self.norm(x), tuple(grown)

    def table(self, batch: int) -> jax.Array:
        """The output embedding [V', D]; if devices shard the `batch` into N parts, [N, V', D], one copy per shard.

        With a copy per shard, gradients are accumulated locally and reduced across devices once. A shared table would be reduced
        after every chunk of the loss.
        """
        table, parts = (self.head or self.tokens).embedding[...], layers.batch_shards()
        if parts == 1 or batch % parts:
            return table
        return layers.pin(jnp.broadcast_to(table, (parts, *table.shape)), "batch", "tensor", None)

    def unembed(self, h: jax.Array, table: jax.Array | None = None) -> jax.Array:
        """Features [..., D] -> logits [..., V'].

        table: [V', D], or [N, V', D] for h [N, ..., D]; None = the model's own
        """
        table = (self.head or self.tokens).embedding[...] if table is None else table
        *lead, padded, D = table.shape
        rows, own = h.reshape(*lead, -1, D), tuple(range(len(lead)))
        last = (len(lead) + 1,)
        logits = product(rows, table, (last, last), (own, own), precision=self.precision).reshape(*h.shape[:-1], padded)
        if padded > self.vocabulary:
            logits = jnp.where(jnp.arange(padded) < self.vocabulary, logits, LOWEST)
        return layers.pin(logits, "batch", *[None] * (h.ndim - 2), "tensor")

    def init_cache(self, batch: int) -> tuple[Cache, ...]:
        """An empty cache for `batch` rows of up to `length` tokens."""
        dtype = jnp.bfloat16 if self.precision == "bfloat16_activations" else jnp.float32
        return tuple(causal_attention.empty_cache(batch, self.length, self.groups, self.size, dtype) for _ in self.blocks)


def segment_positions(segment: jax.Array) -> jax.Array:
    """Positions int32 [B, T] from the start of each token's segment. The tokens of a segment are contiguous."""
    index = jnp.arange(segment.shape[1], dtype=jnp.int32)[None]
    begins = jnp.pad(segment[:, 1:] != segment[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    return index - jax.lax.cummax(jnp.where(begins, index, 0), axis=1)
