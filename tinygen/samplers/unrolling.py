"""The sampler of SUNDAE (Savinov et al. 2022, arXiv 2112.06749, §3): start from random tokens, and redraw some of them in each step."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from tinygen import rng


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unrolling:
    """logits: (tokens [B, L], 0 [B]) -> [B, L, V]
    draw: (logits, keys [B], index of the step) -> tokens [B, L]
    given: int32 [B, L], tokens that are kept, negative elsewhere
    The other fields are those of `DrawingTokens`.
    """

    logits: Callable[[jax.Array, jax.Array], jax.Array]
    draw: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
    given: jax.Array
    keys: jax.Array
    steps: int
    vocabulary: int
    min_steps: int
    proportion: float
    proportion_decay: float

    def loop(self) -> tuple[jax.Array, Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]]:
        """(the tokens before the first step, step(index, tokens) -> (tokens, whether an example is done [B]))."""
        keys = rng.folded(self.keys, self.steps)  # steps fold in smaller numbers
        noise = jax.vmap(lambda key: jax.random.randint(key, self.given.shape[1:], 0, self.vocabulary))(keys)
        return jnp.where(self.given < 0, noise, self.given), self._step

    def _step(self, index: jax.Array, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Redraws a random subset of the free places: exactly a proportion of them, and at least one.

        An example is done when the model proposes the tokens that it has, at every free place.
        """
        value_keys, place_keys = rng.halved(rng.folded(self.keys, index))
        values = self.draw(self.logits(tokens, jnp.zeros(len(tokens))), value_keys, index)
        free = self.given < 0
        share = self.proportion * (1.0 - self.proportion_decay * index / max(1, self.steps - 1))
        num = jnp.maximum(jnp.round(share * jnp.sum(free, 1)), 1)
        bits = jax.vmap(lambda key: jax.random.bits(key, free.shape[1:], "uint32"))(place_keys)
        rank = jnp.argsort(jnp.argsort(jnp.where(free, bits >> 1, jnp.uint32(0xFFFFFFFF)), 1), 1)  # given places come last
        done = jnp.all((values == tokens) | ~free, 1) & (index + 1 >= self.min_steps)
        return jnp.where(free & (rank < num[:, None]), values, tokens), done
