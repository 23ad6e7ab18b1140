"""Cross-entropy over a large vocabulary, without materialising all logits."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Terms(NamedTuple):
    """Per token, float32 [B, L], nats.

    nll: -log p(target)
    uniform: the mean of -log p over the vocabulary
    normaliser: log Σ exp(logit)
    """

    nll: jax.Array
    uniform: jax.Array
    normaliser: jax.Array


def cross_entropy(
    unembed: Callable[[jax.Array, jax.Array], jax.Array], table: jax.Array, h: jax.Array, target: jax.Array, *, vocabulary: int,
    pieces: int,
) -> Terms:  # fmt: skip
    """The terms of softmax(unembed(h, table)) at target: h [B, L, D], target int32 [B, L].

    The sequence is split into at most `pieces` equal parts, computed one after another and rematerialised in the backward pass, so that
    at most [B, ⌈L / pieces⌉, V'] logits are in memory. (Splitting the length and not the batch keeps each device's examples in place.)

    unembed: (h [..., D], table) -> logits [..., V'], V' >= vocabulary; logits of the padding must be too low to have any probability
    table: [V', D]; or [N, V', D], one for each N-th of the batch, which unembed gets with h [N, B / N, L, D]
    """
    B, L, _ = h.shape
    size, lead = -(-L // pieces), table.shape[:-2]
    pieces = -(-L // size)  # no empty pieces: 5 pieces of 8 rows have 2 rows each, so 4 suffice

    def split(x: jax.Array) -> jax.Array:  # [B, L, ...] -> [pieces, N, B / N, size, ...], zeros at the end
        padded = jnp.pad(x, [(0, 0), (0, pieces * size - L), *[(0, 0)] * (x.ndim - 2)])
        cut = padded.reshape(*lead, -1, pieces, size, *x.shape[2:])
        return jnp.moveaxis(cut, len(lead) + 1, 0)

    def piece(rows: jax.Array, wanted: jax.Array) -> Terms:
        return terms(unembed(rows, table), wanted, vocabulary)

    each = jax.checkpoint(piece) if pieces > 1 else piece
    found = jax.lax.scan(lambda _, part: (None, each(*part)), None, (split(h), split(target)))[1]
    return Terms(*(jnp.moveaxis(term, 0, len(lead) + 1).reshape(B, -1)[:, :L] for term in found))


def terms(logits: jax.Array, target: jax.Array, vocabulary: int) -> Terms:
    """The terms of logits [B, L, V'] at target int32 [B, L]."""
    index = jnp.arange(logits.shape[-1])
    normaliser = jax.nn.logsumexp(logits, -1)
    # A sum, not a gather: its gradient is elementwise, also where the vocabulary is sharded.
    chosen = jnp.sum(jnp.where(index == target[..., None], logits, 0.0), -1)
    mean = jnp.sum(jnp.where(index < vocabulary, logits, 0.0), -1) / vocabulary
    return Terms(normaliser - chosen, normaliser - mean, normaliser)


def pieces_for(rows: int, vocabulary: int, mib: float) -> int:
    """The number of pieces that keeps the float32 logits of one piece within `mib` MiB."""
    return max(1, math.ceil(rows * vocabulary * 4 / (mib * 2**20)))
