"""Deferred masking: the expensive blocks of a transformer run on a random subset of the tokens (Sehwag et al. 2024, arXiv 2407.15811)."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from tinygen.errors import UserError


def num_kept(tokens: int, mask: float) -> int:
    """The number of tokens kept per example when a share `mask` is dropped. Raises UserError if that is none, or all."""
    if not 0 <= mask < 1:
        raise UserError(f"config.model.mask={mask} must lie in [0, 1): the share of an image's patches dropped in training")
    kept = math.floor((1 - mask) * tokens + 0.5)
    if not kept:
        raise UserError(f"config.model.mask={mask} leaves none of an image's {tokens} patches: lower it, or config.model.patch")
    if mask and kept == tokens:
        raise UserError(f"config.model.mask={mask} drops none of an image's {tokens} patches: raise it, or set it to 0")
    return kept


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Kept:
    """A random subset of the tokens of each example.

    rank: int32 [B, L], the rank of each token in a random order; the first `num` are kept
    order: int32 [B, num], the tokens of those ranks
    """

    rank: jax.Array
    order: jax.Array

    def gather(self, x: jax.Array) -> jax.Array:
        """[B, L, D] -> [B, num, D]."""
        return jnp.take_along_axis(x, self.order[..., None], 1)

    def scatter(self, x: jax.Array) -> jax.Array:
        """[B, num, D] -> [B, L, D]: the kept tokens in their places, zeros elsewhere."""
        missing = self.rank.shape[1] - x.shape[1]
        return jnp.take_along_axis(jnp.pad(x, ((0, 0), (0, missing), (0, 0))), self.rank[..., None], 1)

    @property
    def weight(self) -> jax.Array:
        """float32 [B, L]: 1 where a token is kept."""
        return (self.rank < self.order.shape[1]).astype(jnp.float32)


def choose(key: jax.Array, batch: int, tokens: int, num: int) -> Kept:
    """`num` of the tokens of each example, uniformly at random."""
    shuffled: Any = jnp.argsort(jax.random.bits(key, (batch, tokens), "uint32"), 1)  # floats have 23 random bits, so ties
    return Kept(rank=jnp.argsort(shuffled, 1), order=shuffled[:, :num])
