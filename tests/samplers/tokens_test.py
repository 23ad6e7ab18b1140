"""Samplers of tokens: that they draw from the model's distribution, keep what is given, and stop."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from markov_tokens import JOINT, V, discrete, exact

from tinygen.errors import UserError
from tinygen.nn.layers import Output
from tinygen.rng import example_keys, stream
from tinygen.samplers.unmasking import halton_rank, radical_inverse, shares

NUM = 6000
WAYS = {
    "confidence": dict(sampler="confidence"),
    "the surest first": dict(sampler="confidence", choice_temperature=0.0),
    "halton": dict(sampler="halton"),
    "ancestral": dict(sampler="ancestral", nfe=400),
    "ancestral, cosine": dict(sampler="ancestral", nfe=400, schedule="cosine"),
    "remasking": dict(sampler="ancestral", nfe=400, remask=0.02),
    "unrolled": dict(process="uniform", nfe=40, min_steps=1000),
}


def keys(num=NUM):
    return example_keys(stream(5, "sample"), 0, num)


def draw(model=exact, cond=None, num=NUM, **changes):
    tokens, evaluations = jax.jit(lambda: discrete(**changes).draw(model, keys(num), cond))()
    return np.asarray(tokens), np.asarray(evaluations)


@pytest.mark.parametrize("way", WAYS)
def test_samples_of_a_known_source_have_its_distribution(way):
    tokens, _ = draw(**WAYS[way])
    found = np.zeros((V, V))
    np.add.at(found, tuple(tokens.T), 1 / NUM)
    assert (np.abs(found - JOINT) < 3 * np.sqrt(JOINT * (1 - JOINT) / NUM)).all(), (found - JOINT) / np.sqrt(JOINT * (1 - JOINT) / NUM)


def test_two_places_revealed_at_once_are_drawn_independently():
    """So that the test above can fail: the joint distribution is lost, and the marginals are not."""
    tokens, evaluations = draw(nfe=1)
    apart = JOINT.sum(1)[:, None] * JOINT.sum(0)
    found = np.zeros((V, V))
    np.add.at(found, tuple(tokens.T), 1 / NUM)
    assert (np.abs(found - apart) < 3 * np.sqrt(apart * (1 - apart) / NUM)).all()
    assert np.abs(found - JOINT).max() > 0.05
    assert (evaluations == 1).all()


def zipf(tokens, t, cond=None, *, rngs=None):
    """Independent places over 256 tokens."""
    return Output(jnp.broadcast_to(-jnp.log(1.0 + jnp.arange(256)), (*tokens.shape, 256)))


@pytest.mark.parametrize("nfe", [8, 128])
def test_many_small_steps_do_not_sharpen_the_distribution(nfe):
    """Zheng et al. 2024 (arXiv 2409.02908): one categorical over values and the mask loses entropy with every step."""
    p = 1 / (1.0 + np.arange(256))
    p /= p.sum()
    tokens, _ = draw(zipf, num=64, places=(32,), vocabulary=256, sampler="ancestral", nfe=nfe)
    surprise = -np.log(p)[tokens.ravel()]
    entropy = -(p @ np.log(p))
    assert surprise.mean() == pytest.approx(entropy, abs=3 * surprise.std() / math.sqrt(tokens.size))
    assert tokens.max() < 256


@pytest.mark.parametrize("way", WAYS)
def test_given_tokens_stay_and_the_rest_is_drawn_given_them(way):
    given = jnp.tile(jnp.array([[1, -1]]), (NUM, 1))
    tokens, _ = draw(cond={"given": given}, **WAYS[way])
    assert (tokens[:, 0] == 1).all()
    p = JOINT[1] / JOINT[1].sum()
    assert (np.abs(np.bincount(tokens[:, 1], minlength=V) / NUM - p) < 3 * np.sqrt(p * (1 - p) / NUM)).all()


def test_a_prompt_is_the_beginning_of_the_tokens():
    cond = {"prompt": jnp.array([[2], [0]]), "prompt_mask": jnp.array([[True], [False]])}
    tokens, _ = draw(cond=cond, num=2)
    assert tokens[0, 0] == 2
    assert tokens.max() < V


def test_a_prompt_that_leaves_no_place_is_refused():
    with pytest.raises(UserError, match="a prompt of 2 tokens leaves none to write"):
        draw(cond={"prompt": jnp.zeros((1, 2), jnp.int32), "prompt_mask": jnp.ones((1, 2), bool)}, num=1)


def peaked(tokens, t, cond=None, *, rngs=None):
    """Prefers token 1, then 0, then 2, everywhere."""
    return Output(jnp.broadcast_to(jnp.array([1.0, 2.0, 0.0]), (*tokens.shape, V)))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cut", [dict(temperature=0.0), dict(top_k=1), dict(top_p=0.1)])
def test_temperature_zero_and_the_tightest_filters_take_the_most_likely_token(way, cut):
    tokens, _ = draw(peaked, num=8, **{**WAYS[way], "nfe": 60}, **cut)
    assert (tokens == 1).all()


def test_annealing_lowers_the_temperature_to_zero_by_the_last_step():
    hot, cold = (
        draw(peaked, places=(64,), num=64, nfe=64, schedule="linear", temperature_decay=temperature_decay)[0]
        for temperature_decay in (0.0, 1.0)
    )
    assert (cold == 1).mean() > (hot == 1).mean() + 0.1
    assert len(np.unique(cold)) == V


def test_guidance_moves_the_logits_from_the_null_s_through_the_condition_s():
    null, cond = np.log([0.5, 0.3, 0.2]), np.log([0.2, 0.3, 0.5])

    def model(tokens, t, given=None, *, rngs=None):
        logits = jnp.where(given["keep"][:, None, None], jnp.asarray(cond), jnp.asarray(null))
        return Output(jnp.broadcast_to(logits, (*tokens.shape, V)).astype(jnp.float32))

    def called(tokens, t, *, cond, rngs=None):
        return model(tokens, t, cond)

    tokens, evaluations = draw(called, {"label": jnp.zeros(NUM, jnp.int32)}, places=(1,), nfe=2, guidance=2.0, cond_drop=0.1)
    p = np.exp(null + 2 * (cond - null))
    p /= p.sum()
    assert (np.abs(np.bincount(tokens.ravel(), minlength=V) / NUM - p) < 3 * np.sqrt(p * (1 - p) / NUM)).all()
    assert (evaluations == 2).all()


# Steps


def test_no_more_steps_are_taken_than_places_are_revealed_one_by_one():
    assert discrete(nfe=50).evaluations(conditional=True) == 2
    assert discrete(nfe=50, sampler="ancestral").evaluations(conditional=True) == 50
    assert discrete(nfe=51, guidance=2.0, cond_drop=0.1, sampler="ancestral").evaluations(conditional=True) == 50
    assert discrete(nfe=50, process="uniform").evaluations(conditional=False) == 50


@pytest.mark.parametrize("given", [0, 20])
@pytest.mark.parametrize("schedule", ["cosine", "linear"])
@pytest.mark.parametrize("sampler", ["confidence", "halton"])
def test_places_are_revealed_as_the_schedule_says(sampler, schedule, given):
    start = np.where(np.arange(36) < given, 1, -1).reshape(1, 6, 6)
    objective = discrete(places=(6, 6), nfe=9, sampler=sampler, schedule=schedule)
    frames = np.asarray(jax.jit(lambda: objective.history(peaked, keys(1), {"given": jnp.asarray(start)}))())
    assert frames.shape == (10, 1, 6, 6)
    hidden = (frames == V).reshape(10, 36)
    wanted = np.floor((36 - given) * (1 - np.asarray(shares(schedule, 9))) + 1e-4)
    assert hidden.sum(1).tolist() == np.minimum(wanted, 36 - given - np.arange(10)).clip(0).tolist()
    assert not (hidden[1:] & ~hidden[:-1]).any()
    np.testing.assert_array_equal(frames[-1], objective.draw(peaked, keys(1), {"given": jnp.asarray(start)})[0])


def test_with_remasking_as_many_places_are_hidden_after_each_step_and_some_more_than_once():
    objective = discrete(places=(500,), nfe=10, sampler="ancestral", remask=0.3)
    frames = np.asarray(jax.jit(lambda: objective.history(peaked, keys(4)))())
    hidden = frames == V
    left = 1 - np.arange(11) / 10
    assert (np.abs(hidden.mean((1, 2)) - left) <= 3 * np.sqrt(left * (1 - left) / 2000)).all()
    assert (hidden[1:] & ~hidden[:-1]).any()
    assert not hidden[-1].any()


def test_redrawing_stops_after_the_least_number_of_steps_once_the_model_changes_nothing():
    tokens, evaluations = draw(peaked, num=16, process="uniform", places=(8,), nfe=100, temperature=0.0, min_steps=5, proportion=1.0)
    assert (tokens == 1).all()
    assert (evaluations == 5).all()
    tokens, evaluations = draw(peaked, num=16, process="uniform", places=(8,), nfe=100, temperature=0.0, min_steps=0, proportion=0.25)
    assert (tokens == 1).all()
    assert len(set(evaluations)) > 1  # each example by itself
    assert evaluations.max() < 40


def test_a_step_redraws_exactly_a_proportion_of_the_places():
    def two(tokens, t, cond=None, *, rngs=None):
        return Output(jnp.broadcast_to(jnp.array([-100.0, -100.0, 0.0]), (*tokens.shape, V)))

    objective = discrete(process="uniform", places=(40,), nfe=2, proportion=0.25)
    frames = np.asarray(jax.jit(lambda: objective.history(two, keys(50)))())
    changed = (frames[1] != frames[0]).sum(1)
    assert changed.max() <= 10
    assert changed.max() > 6  # two thirds of ten redrawn places were another token
    whole = discrete(process="uniform", places=(40,), nfe=2, proportion=1.0, proportion_decay=1.0)
    frames = np.asarray(jax.jit(lambda: whole.history(peaked, keys(50)))())
    assert ((frames[2] != frames[1]).sum(1) <= 1).all()  # nothing of the proportion is left, and one place is always redrawn


@pytest.mark.parametrize("way", WAYS)
def test_sample_i_depends_on_its_key_alone(way):
    alone = draw(num=3, **WAYS[way] | {"nfe": 8})[0]
    np.testing.assert_array_equal(draw(num=50, **WAYS[way] | {"nfe": 8})[0][:3], alone)


# The Halton sequence


def test_digits_are_mirrored_at_the_point():
    np.testing.assert_allclose(radical_inverse(6, 2), [0, 1 / 2, 1 / 4, 3 / 4, 1 / 8, 5 / 8])
    np.testing.assert_allclose(radical_inverse(5, 3), [0, 1 / 3, 2 / 3, 1 / 9, 4 / 9])


@pytest.mark.parametrize("places", [(7,), (8, 8), (5, 3)])
def test_every_place_has_its_own_rank_and_the_first_ones_lie_apart(places):
    rank = halton_rank(places)
    assert sorted(rank) == list(range(math.prod(places)))
    if places == (8, 8):
        first = np.stack(np.unravel_index(np.argsort(rank)[:4], places), 1)
        near = functools.reduce(min, (np.abs(a - b).max() for i, a in enumerate(first) for b in first[:i]))
        assert near >= 2
