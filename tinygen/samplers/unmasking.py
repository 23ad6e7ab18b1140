"""Samplers of masked diffusion: start from masks, and reveal some places in each step.

confidence  those the model is surest of, with Gumbel noise (MaskGIT, Chang et al. 2022, arXiv 2202.04200)
halton      the next ones of a sequence that covers the grid evenly (Besnier et al. 2025, arXiv 2503.17076)
ancestral   each with the probability of the exact posterior (Sahoo et al. 2024, arXiv 2406.07524), and optionally masks revealed ones
            again (ReMDM, Wang et al. 2025, arXiv 2503.00307)

Places are chosen without regard to the values drawn for them. MaskGIT ranks places by the probability of the drawn value, which favours
frequent tokens even with one place per step and an exact model.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from tinygen import rng

SCHEDULES = ("cosine", "linear")
BASES = (2, 3, 5)  # of the Halton sequence, one per axis


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unmasking:
    """logits: (tokens [B, L], share of masked tokens [B]) -> [B, L, V]
    draw: (logits, keys [B], index of the step) -> tokens [B, L]
    given: int32 [B, L], tokens that are kept, negative elsewhere
    The other fields are those of `DrawingTokens`.
    """

    logits: Callable[[jax.Array, jax.Array], jax.Array]
    draw: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
    given: jax.Array
    keys: jax.Array
    steps: int
    places: Sequence[int]
    mask: int
    sampler: str
    schedule: str
    choice_temperature: float
    remask: float

    def loop(self) -> tuple[jax.Array, Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]]:
        """(the tokens before the first step, step(index, tokens) -> (tokens, whether an example is done [B]))."""
        return jnp.where(self.given < 0, self.mask, self.given), self._step

    def _step(self, index: jax.Array, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        hidden = tokens == self.mask
        logits = self.logits(tokens, jnp.mean(hidden, 1))
        value_keys, place_keys = rng.halved(rng.folded(self.keys, index))
        values = self.draw(logits, value_keys, index)
        if self.sampler == "ancestral":
            reveal, again = self._posterior(index, place_keys, hidden)
            tokens = jnp.where(again, self.mask, tokens)
        else:
            reveal = self._best(index, self._ranking(index, place_keys, logits), hidden)
        tokens = jnp.where(reveal, values, tokens)
        return tokens, ~jnp.any(tokens == self.mask, 1) & (self.remask == 0)

    def _best(self, index: jax.Array, score: jax.Array, hidden: jax.Array) -> jax.Array:
        """bool [B, L]: the hidden places of the highest score [B, L], as many as the schedule wants revealed, and at least one."""
        free = jnp.sum(self.given < 0, 1)
        left = jnp.floor(free * (1.0 - shares(self.schedule, self.steps)[index + 1]) + 1e-4).astype(jnp.int32)
        num = jnp.maximum(jnp.sum(hidden, 1) - left, 1)
        rank = jnp.argsort(jnp.argsort(-jnp.where(hidden, score, -jnp.inf), 1), 1)
        return hidden & (rank < num[:, None])

    def _ranking(self, index: jax.Array, keys: jax.Array, logits: jax.Array) -> jax.Array:
        """[B, L], higher for places to be revealed earlier."""
        if self.sampler == "halton":
            return jnp.broadcast_to(-jnp.asarray(halton_rank(self.places), jnp.float32), logits.shape[:2])
        sure = jnp.max(jax.nn.log_softmax(logits), -1)
        noise = jax.vmap(lambda key: jax.random.gumbel(key, sure.shape[1:]))(keys)
        return sure + self.choice_temperature * (1.0 - (index + 1) / self.steps) * noise

    def _posterior(self, index: jax.Array, keys: jax.Array, hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(places to reveal, revealed places to mask again), bool [B, L]: each drawn by itself.

        With α the share of revealed places before the step, β after it and σ the probability of masking a revealed one again, a masked
        one is revealed with probability (β - (1 - σ) α) / (1 - α): then the share after the step is β for every σ up to (1 - β) / α.
        """
        before, after = shares(self.schedule, self.steps)[index], shares(self.schedule, self.steps)[index + 1]
        again = jnp.minimum(self.remask, (1.0 - after) / jnp.maximum(before, 1e-6))
        reveal = (after - (1.0 - again) * before) / jnp.maximum(1.0 - before, 1e-6)
        draws = jax.vmap(lambda key: jax.random.uniform(key, hidden.shape[1:]))(keys)
        free = self.given < 0
        return hidden & ((draws < reveal) | (index == self.steps - 1)), free & ~hidden & (draws < again)


def shares(schedule: str, steps: int) -> jax.Array:
    """[steps + 1], the share of revealed places after each step, from 0 to 1. cosine: few at first (Chang et al. 2022)."""
    done = np.linspace(0.0, 1.0, steps + 1)
    return jnp.asarray(done if schedule == "linear" else 1.0 - np.cos(math.pi / 2 * done), jnp.float32)


def halton_rank(places: Sequence[int]) -> np.ndarray:
    """int [L]: when each place of a grid is first visited by the Halton sequence, counting visited places from 0."""
    size = math.prod(places)
    num, order = size, np.empty(0, int)
    while len(order) < size:
        num *= 2
        points = [np.floor(radical_inverse(num, base) * side).astype(int) for base, side in zip(BASES, places, strict=False)]
        found, first = np.unique(np.ravel_multi_index(points, tuple(places)), return_index=True)
        order = found[np.argsort(first)]
    return np.argsort(order)


def radical_inverse(num: int, base: int) -> np.ndarray:
    """float64 [num]: the digits of 0 ... num - 1 in a base, mirrored at the point (van der Corput 1935)."""
    rest, value, scale = np.arange(num), np.zeros(num), 1.0
    while rest.any():
        scale /= base
        value += scale * (rest % base)
        rest //= base
    return value
