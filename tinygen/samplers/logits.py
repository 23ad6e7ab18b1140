"""Filters of the next-token distribution: pure functions of logits [B, V], row by row.

Excluded tokens get -inf. The order is the usual one: repetition penalty, temperature, top-k, top-p, min-p. Each filter renormalizes
what the previous ones kept. Tokens with equal probability are kept or dropped together, so top-k may keep more than k.
"""

import jax
import jax.numpy as jnp

from tinygen.errors import UserError


def check(temperature: float, top_k: int, top_p: float) -> None:
    """Raises UserError for settings out of range."""
    if temperature != 0 and not 0.01 <= temperature <= 100:
        raise UserError(f"temperature {temperature} must lie in [0.01, 100], or be 0 to take the most likely token")
    if top_k < 0:
        raise UserError(f"top_k {top_k} must not be negative; 0 is off")
    if not 0 < top_p <= 1:
        raise UserError(f"top_p {top_p} must lie in (0, 1]; 1 is off")


def filtered(
    logits: jax.Array, seen: jax.Array | None, *, temperature: float, top_k: int, top_p: float, min_p: float, repetition_penalty: float
) -> jax.Array:
    """Logits [B, V] as float32, after all filters that are on.

    seen: bool [B, V], the tokens so far, for a penalty other than 1
    temperature: 0 keeps only the most likely token, and the first of several equally likely ones
    """
    logits = logits.astype(jnp.float32)
    if repetition_penalty != 1 and seen is not None:
        logits = penalised(logits, seen, repetition_penalty)
    if temperature == 0:
        return jnp.where(jnp.arange(logits.shape[-1]) == jnp.argmax(logits, -1, keepdims=True), 0.0, -jnp.inf)
    logits = logits / temperature
    if 0 < top_k < logits.shape[-1]:
        logits = most_likely(logits, top_k)
    if top_p < 1:
        logits = nucleus(logits, top_p)
    return least(logits, min_p) if min_p > 0 else logits


def penalised(logits: jax.Array, seen: jax.Array, penalty: float) -> jax.Array:
    """Logits of seen tokens divided by the penalty, or multiplied if negative (Keskar et al. 2019, arXiv 1909.05858, §4.1, which leaves
    out the sign: division would raise a negative logit).
    """
    return jnp.where(seen, jnp.where(logits > 0, logits / penalty, logits * penalty), logits)


def most_likely(logits: jax.Array, k: int) -> jax.Array:
    """Top-k (Fan et al. 2018, arXiv 1805.04833): the tokens at least as likely as the k-th. 1 <= k <= V."""
    return _above(logits, jax.lax.top_k(logits, k)[0][:, -1:])


def nucleus(logits: jax.Array, p: float) -> jax.Array:
    """Top-p (Holtzman et al. 2020, arXiv 1904.09751): the smallest set of tokens whose probability sums to at least p. 0 < p <= 1."""
    ordered = jnp.sort(logits, -1, descending=True)
    likely = jax.nn.softmax(ordered, -1)
    before = jnp.cumsum(likely, -1) - likely  # the probability of all that are more likely: below p for every token kept
    p = max(p, 1e-30)  # a smaller one would be 0 in float32, and keep nothing
    return _above(logits, jnp.min(jnp.where(before < p, ordered, jnp.inf), -1, keepdims=True))


def least(logits: jax.Array, p: float) -> jax.Array:
    """Min-p (Nguyen et al. 2024, arXiv 2407.01082): the tokens at least p times as likely as the most likely one. 0 < p <= 1."""
    return _above(logits, jnp.max(logits, -1, keepdims=True) + jnp.log(p))


def _above(logits: jax.Array, lowest: jax.Array) -> jax.Array:
    return jnp.where(logits >= lowest, logits, -jnp.inf)
