"""Filters of next-token distributions against plain NumPy, row by row."""

import jax.numpy as jnp
import numpy as np
import pytest

from tinygen.samplers import logits as filters

OFF = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0)


def apply(logits, seen=None, **settings):
    logits, seen = jnp.asarray(logits, jnp.float32), None if seen is None else jnp.asarray(seen)
    return np.asarray(filters.filtered(logits, seen, **{**OFF, **settings}))


def kept(logits, **settings):
    """The tokens that are left of one row."""
    return np.flatnonzero(np.isfinite(apply([logits], **settings)[0])).tolist()


def by_hand(row, seen, temperature, top_k, top_p, min_p, repetition_penalty):
    """Probabilities of one row, written from the papers with a loop over tokens in falling order."""
    scores = [(s / repetition_penalty if s > 0 else s * repetition_penalty) if old else s for s, old in zip(row, seen, strict=True)]
    weights = np.exp(np.array(scores, np.float64) / temperature)
    order = sorted(range(len(row)), key=lambda token: -weights[token])
    if top_k:
        order = order[:top_k]
    total, chosen, mass = sum(weights[token] for token in order), [], 0.0
    for token in order:
        if mass >= top_p:
            break
        chosen.append(token)
        mass += weights[token] / total
    chosen = [token for token in chosen if weights[token] >= min_p * weights[order[0]]]
    probs = np.zeros(len(row))
    probs[chosen] = weights[chosen] / sum(weights[chosen])
    return probs


@pytest.mark.parametrize(
    "settings",
    [
        dict(temperature=0.7),
        dict(top_k=5),
        dict(top_p=0.8),
        dict(min_p=0.1),
        dict(repetition_penalty=1.3),
        dict(temperature=1.4, top_k=9, top_p=0.9, min_p=0.08, repetition_penalty=1.2),
        dict(temperature=0.5, top_k=4, top_p=0.6, min_p=0.3, repetition_penalty=0.8),
    ],
)
def test_every_filter_and_their_order_are_those_of_the_papers(settings):
    numbers = np.random.default_rng(0)
    rows, seen = numbers.normal(scale=2, size=(16, 23)).astype(np.float32), numbers.random((16, 23)) < 0.3
    logits = apply(rows, seen, **settings).astype(np.float64)
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = [by_hand(row, old, **{**OFF, **settings}) for row, old in zip(rows, seen, strict=True)]
    np.testing.assert_allclose(probs, expected, rtol=2e-5, atol=1e-7)  # float32 against float64


def test_what_is_off_changes_nothing():
    rows = np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32)
    np.testing.assert_array_equal(apply(rows, np.ones((3, 7), bool)), rows)
    np.testing.assert_array_equal(apply(rows, top_k=7), rows)
    np.testing.assert_array_equal(apply(rows, top_k=100), rows)


def test_a_penalty_makes_seen_tokens_less_likely_whatever_their_sign():
    out = apply([[2.0, -2.0, 2.0, -2.0]], [[True, True, False, False]], repetition_penalty=2.0)
    assert out.tolist() == [[1.0, -4.0, 2.0, -2.0]]


def test_tokens_that_are_equally_likely_stay_or_go_together():
    row = [0.0, 2.0, 1.0, 1.0, 1.0]
    assert kept(row, top_k=1) == [1]
    assert kept(row, top_k=2) == [1, 2, 3, 4]
    assert kept(np.log([0.4, 0.2, 0.2, 0.2]), top_p=0.5) == [0, 1, 2, 3]
    assert kept([1.0, 1.0, 1.0], min_p=1.0) == [0, 1, 2]


@pytest.mark.parametrize("settings", [dict(top_k=1), dict(top_p=1e-9), dict(top_p=1e-46), dict(min_p=1.0), dict(temperature=0.0)])
def test_one_token_is_always_left(settings):
    assert kept([0.5, 3.0, -1.0], **settings) == [1]
    assert kept([-1e4, -2e4, -3e4], **settings) == [0]


def test_a_nucleus_ends_with_the_token_that_reaches_p():
    row = np.log([0.5, 0.3, 0.15, 0.05])
    assert kept(row, top_p=0.45) == [0]
    assert kept(row, top_p=0.55) == [0, 1]
    assert kept(row, top_p=0.9) == [0, 1, 2]


def test_a_later_filter_measures_what_an_earlier_one_left():
    row = np.log([0.4, 0.35, 0.25])
    assert kept(row, top_p=0.5) == [0, 1]
    assert kept(row, top_k=2, top_p=0.5) == [0]  # 0.4 of 0.75 is more than half
    assert kept(row, temperature=0.1, top_p=0.5) == [0]


def test_temperature_nought_takes_the_first_of_the_most_likely():
    assert kept([1.0, 5.0, 5.0], temperature=0.0, top_k=3, top_p=0.9, min_p=0.5) == [1]


def test_half_precision_logits_are_filtered_in_float32():
    assert filters.filtered(jnp.ones((1, 4), jnp.bfloat16), None, **OFF).dtype == jnp.float32
