"""Causal self-attention of a language model, over a whole window or incrementally with a cache of keys and values."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from tinygen.errors import UserError
from tinygen.nn.attention import HEADS, Projections, attention, choose, masked_softmax, platform
from tinygen.nn.layers import pin
from tinygen.nn.matmul import product, wide

NOWHERE = -1  # the position of an empty cache slot


class Cache(NamedTuple):
    """Keys and values of the newest W tokens of each row: token p is in slot p mod W.

    key, value: [B, W, N', K], keys already rotated by their positions
    position: int32 [B, W], NOWHERE for an empty slot
    """

    key: jax.Array
    value: jax.Array
    position: jax.Array


class CausalAttention(Projections):
    """Token i attends to tokens 0 to i of its segment; with a cache, to those of the last `window` positions."""

    def __init__(
        self, width: int, heads: int, *, kv_heads: int, qk_norm: bool, precision: str, attention: str, rngs: nnx.Rngs
    ):  # fmt: skip
        super().__init__(width, heads, kv_heads, width // heads, zero=True, qk_norm=qk_norm, precision=precision, rngs=rngs)
        self.method = attention
        choose(attention, backend=platform(), precision=precision, head_size=self.head_size, segments=True, needs_jvp=False)

    def check_mesh(self, tensor: int, keys: Mapping[str, Any]) -> None:
        """Raises UserError unless mesh.tensor splits the heads evenly, though it may well split the products' width."""
        own = {} if self.kv_heads == self.heads else {"kv_heads": self.kv_heads}
        for key, heads in {**own, "heads": self.heads}.items():
            if heads % tensor:
                raise UserError(f"config.model.{key}={heads} is not a multiple of config.mesh.tensor={tensor}, which splits the heads")

    def __call__(
        self, x: jax.Array, segment: jax.Array | None, position: jax.Array, angles: jax.Array | None, cache: Cache | None
    ) -> tuple[jax.Array, Cache | None]:
        """x [B, T, D] -> ([B, T, D], the cache with these tokens).

        segment: int32 [B, T], 0 = padding, or None for a single segment; position: int32 [B, T]; angles: [B, T, K/2], or None
        """
        B, T, _ = x.shape
        q, k, v = self.project(x, None, angles)
        if cache is not None:
            mixed, cache = self._cached(q, k, v, jnp.ones((B, T), bool) if segment is None else segment > 0, position, cache)
            return self.out(mixed), cache
        shared = self.heads // self.kv_heads
        k, v = (each if shared == 1 else jnp.repeat(each, shared, 2) for each in (k, v))
        segments = None if segment is None else (segment, segment)
        mixed = attention(q, k, v, causal=True, segments=segments, precision=self.precision, method=self.method)
        return self.out(mixed.reshape(B, T, -1)), None

    def _cached(
        self, q: jax.Array, k: jax.Array, v: jax.Array, there: jax.Array, position: jax.Array, cache: Cache
    ) -> tuple[jax.Array, Cache]:
        """([B, T, N·K], the cache with these tokens).

        A single token is written first, over one that is out of every window. Several tokens attend to the old cache and to each
        other, since writing the later ones would overwrite what the earlier ones attend to.
        """
        written = write(cache, k, v, there, position)
        at = jnp.where(there, position, NOWHERE)
        both = [jnp.concatenate(pair, 1) for pair in zip(cache, (k, v, at), strict=True)]  # XLA removes it if unused
        seen = written if q.shape[1] == 1 else Cache(*both)
        window = cache.position.shape[1]
        reach, place = at[:, :, None], seen.position[:, None, :]  # [B, T, 1], [B, 1, S]
        visible = (place != NOWHERE) & (place <= reach) & (place > reach - window)
        return self._mixed(q, seen.key, seen.value, visible), written

    def _mixed(self, q: jax.Array, k: jax.Array, v: jax.Array, visible: jax.Array) -> jax.Array:
        """q [B, T, N, K], k and v [B, S, N', K], visible bool [B, T, S] -> [B, T, N·K]."""
        B, T, N, K = q.shape
        groups = self.kv_heads
        heads = pin(jnp.swapaxes((wide(q) * K**-0.5).reshape(B, T, groups, -1, K), 1, 2), "batch", "tensor", ...)  # [B, N', T, N/N', K]
        rows = heads.reshape(B, groups, T * (N // groups), K)
        k, v = (jnp.swapaxes(each, 1, 2) for each in (k, v))  # [B, N', S, K]
        scores = wide(product(rows, k, ((3,), (3,)), HEADS, precision=self.precision))
        weights = masked_softmax(scores, jnp.repeat(visible, N // groups, 1)[:, None])  # [B, N', T·N/N', S]
        mixed = product(weights, v, ((3,), (2,)), HEADS, precision=self.precision)
        return jnp.swapaxes(mixed.reshape(B, groups, T, -1, K), 1, 2).reshape(B, T, N * K)


def write(cache: Cache, k: jax.Array, v: jax.Array, there: jax.Array, position: jax.Array) -> Cache:
    """The cache with those tokens that are `there`, at most the newest W per row, so that no slot is written twice."""
    window = cache.position.shape[1]
    last = jnp.max(jnp.where(there, position, NOWHERE), 1, keepdims=True)
    kept = there & (position > last - window)
    place = jnp.where(kept, position % window, window)  # beyond the end: dropped
    row = jnp.arange(len(place))[:, None]
    new = (k, v, position)
    return Cache(*(old.at[row, place].set(each.astype(old.dtype), mode="drop") for old, each in zip(cache, new, strict=True)))


def empty_cache(batch: int, window: int, heads: int, size: int, dtype: jnp.dtype) -> Cache:
    """A cache without tokens."""
    nothing = jnp.zeros((batch, window, heads, size), dtype)
    return Cache(nothing, nothing, jnp.full((batch, window), NOWHERE, jnp.int32))
