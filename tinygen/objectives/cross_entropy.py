"""Cross-entropy over a large vocabulary, whose logits never stand whole."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Terms(NamedTuple):
    """Of each token, float32 [B, L], nats.

    nll: -log p(target)
    uniform: -log p, its mean over the vocabulary
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

    The rows are taken in at most `pieces` of equal length, one after another, each of several computed again in the backward pass: then at
    most [B, ⌈L / pieces⌉, V'] logits stand at once. (Cutting the length and not the batch leaves each device its rows.)

    unembed: (h [..., D], table) -> logits [..., V'], V' >= vocabulary, those past the vocabulary so low that they have no probability
    table: [V', D]; or [N, V', D], one for each N-th of the batch: then h is [N, B / N, L, D] where it is compared with them
    """
    B, L, _ = h.shape
    size, lead = -(-L // pieces), table.shape[:-2]
    pieces = -(-L // size)  # of 8 rows 5 pieces have 2 each, and then 4 are enough

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
    """logits [B, L, V'], target int32 [B, L]."""
    index = jnp.arange(logits.shape[-1])
    normaliser = jax.nn.logsumexp(logits, -1)
    # A sum and not a look-up: its gradient is an elementwise one, wherever the vocabulary is split over devices.
    chosen = jnp.sum(jnp.where(index == target[..., None], logits, 0.0), -1)
    mean = jnp.sum(jnp.where(index < vocabulary, logits, 0.0), -1) / vocabulary
    return Terms(normaliser - chosen, normaliser - mean, normaliser)


def pieces_for(rows: int, vocabulary: int, mib: float) -> int:
    """Pieces into which a batch's float32 logits are cut so that those of one take at most so many MiB."""
    return max(1, math.ceil(rows * vocabulary * 4 / (mib * 2**20)))
