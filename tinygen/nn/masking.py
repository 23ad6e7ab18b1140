"""Deferred masking: a transformer's dear blocks see a random share of an example's tokens (Sehwag et al. 2024, arXiv 2407.15811)."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from tinygen.errors import UserError


def num_kept(tokens: int, mask: float) -> int:
    """How many of an example's tokens are kept where a share `mask` is dropped. Raises UserError for a share that leaves none."""
    if not 0 <= mask < 1:
        raise UserError(f"config.model.mask={mask} must lie in [0, 1): the share of an image's patches that is dropped in training")
    kept = math.floor((1 - mask) * tokens + 0.5)
    if not kept:
        raise UserError(f"config.model.mask={mask} leaves none of an image's {tokens} patches: lower it, or config.model.patch")
    if mask and kept == tokens:
        raise UserError(f"config.model.mask={mask} drops none of an image's {tokens} patches: raise it, or put it to 0")
    return kept


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Kept:
    """Which tokens of each example are kept: another random choice an example.

    rank: int32 [B, L], where each token stands in a random order; the first `num` are kept
    order: int32 [B, num], the tokens of those ranks
    """

    rank: jax.Array
    order: jax.Array

    def of(self, x: jax.Array) -> jax.Array:
        """[B, L, D] -> [B, num, D]."""
        return jnp.take_along_axis(x, self.order[..., None], 1)

    def back(self, x: jax.Array) -> jax.Array:
        """[B, num, D] -> [B, L, D]: each kept token where it was, and zeros."""
        missing = self.rank.shape[1] - x.shape[1]
        return jnp.take_along_axis(jnp.pad(x, ((0, 0), (0, missing), (0, 0))), self.rank[..., None], 1)

    @property
    def weight(self) -> jax.Array:
        """float32 [B, L]: 1 where a token is kept."""
        return (self.rank < self.order.shape[1]).astype(jnp.float32)


def choose(key: jax.Array, batch: int, tokens: int, num: int) -> Kept:
    """`num` of each example's tokens, every choice as likely as any other."""
    shuffled: Any = jnp.argsort(jax.random.bits(key, (batch, tokens), "uint32"), 1)  # floats would have 23 bits, and so ties
    return Kept(rank=jnp.argsort(shuffled, 1), order=shuffled[:, :num])
