"""Discrete diffusion: what is masked or replaced, and that its loss bounds the entropy."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from markov_tokens import ENTROPY, JOINT, V, discrete, exact, sampled

from tinygen.errors import UserError
from tinygen.nn.layers import Output
from tinygen.objectives.discrete import masked, replaced, stratified
from tinygen.rng import stream

KEY = stream(0, "train")


def run(batch, model=exact, *, train=True, seed=0, **changes):
    """(loss, metrics, the tokens and levels that the model was given), compiled as one function."""
    given = []

    def shown(tokens, t, cond=None, *, rngs=None):
        given.append((tokens, t))
        return model(tokens, t, cond, rngs=rngs)

    objective = discrete(**changes)
    whole = jax.jit(lambda batch, key: (*objective.loss(shown, batch, key, train=train), given))
    return jax.device_get(whole(batch, stream(seed, "train")))


# The process of masks


def moments_of_the_bound():
    """(mean, variance) of an example's loss at the exact denoiser, by enumeration: the number of masks is uniform, then the subset."""
    values = []
    for (a, b), p in np.ndenumerate(JOINT):
        alone = -np.log(JOINT.sum(1)[a]), -np.log(JOINT.sum(0)[b])
        given = -np.log(p / JOINT.sum(0)[b]), -np.log(p / JOINT.sum(1)[a])
        values += [(p / 4, given[0]), (p / 4, given[1]), (p / 2, np.mean(alone))]
    weight, value = np.transpose(values)
    mean = weight @ value
    return mean, weight @ (value - mean) ** 2


def test_at_the_exact_denoiser_the_bound_is_the_entropy():
    mean, variance = moments_of_the_bound()
    assert mean == pytest.approx(ENTROPY / 2, rel=1e-12)  # nats per token
    num = 40_000
    loss, metrics, _ = run({"tokens": sampled(num)})
    assert float(loss) == pytest.approx(mean, abs=3 * math.sqrt(variance / num))
    assert metrics["raw_loss"] == metrics["loss"]
    assert discrete().derived({"raw_loss": math.log(2)}) == {"bits_per_token": 1.0}


def test_any_other_denoiser_has_a_larger_bound():
    def flat(tokens, t, cond=None, *, rngs=None):
        return Output(0.5 * exact(tokens, t).pred)

    batch = {"tokens": sampled(20_000)}
    assert run(batch, flat)[0] > run(batch)[0] + 0.02


@pytest.mark.parametrize("places", [(5,), (2, 3)])
def test_every_number_of_masks_is_as_frequent_and_every_subset_of_it(places):
    num, L = 12_000, math.prod(places)
    level = (jnp.arange(num) + 0.5) / num
    hidden, share = jax.device_get(jax.jit(lambda key: masked(key, level, (num, *places)))(KEY))
    counts = hidden.reshape(num, L).sum(1)
    np.testing.assert_allclose(share, counts / L, rtol=1e-6)
    assert np.bincount(counts, minlength=L + 1).tolist() == [0] + [num // L] * L
    subsets = {tuple(row) for row in hidden.reshape(num, L)}
    assert subsets == set(itertools.product([False, True], repeat=L)) - {(False,) * L}
    per_place = hidden.reshape(num, L)[counts == 2].mean(0)
    np.testing.assert_allclose(per_place, 2 / L, atol=3 * math.sqrt(0.25 / (num / L)))


def test_the_model_is_given_the_mask_where_the_loss_is_and_the_true_tokens_elsewhere():
    batch = {"tokens": sampled(64)}
    _, _, [(tokens, t)] = run(batch)
    hidden = tokens == V
    np.testing.assert_array_equal(tokens[~hidden], batch["tokens"][~hidden])
    np.testing.assert_allclose(t, hidden.mean(1))


def test_levels_are_spread_evenly_over_a_batch():
    level = np.sort(np.asarray(stratified(KEY, 50)))
    np.testing.assert_allclose(np.diff(level), 0.02, atol=1e-5)
    assert level.min() >= 0
    assert level.max() < 1


def test_bits_per_byte_count_the_bytes_of_the_tokens_and_not_examples_that_fill_the_batch():
    batch = {"tokens": np.array([[0, 1], [2, 2], [1, 1]], np.int32), "weight": np.array([1, 1, 0], np.float32)}
    _, metrics, [(tokens, _)] = run(batch, token_bytes=(1, 2, 5))
    hidden = tokens == V
    nll = -np.take_along_axis(np.asarray(exact(jnp.asarray(tokens), None).pred), batch["tokens"][..., None], 2)[..., 0]
    bits = (nll * hidden).sum(1) / hidden.sum(1) * 2 / math.log(2)
    total, spelt = metrics["bits_per_byte"]
    assert spelt == 1 + 2 + 5 + 5
    assert float(total) == pytest.approx(bits[:2].sum(), rel=1e-5)


# The process that replaces tokens


def test_probability_zero_replaces_nothing_and_one_gives_uniform_tokens():
    num = 30_000
    x = jnp.zeros((num, 2), jnp.int32)
    none, half, all_ = (np.asarray(replaced(KEY, x, jnp.full(num, share), V)) for share in (0.0, 0.5, 1.0))
    assert not none.any()
    for tokens, share in ((half, 0.5), (all_, 1.0)):
        p = share * np.full(V, 1 / V) + (1 - share) * np.eye(V)[0]
        np.testing.assert_allclose(np.bincount(tokens.ravel()) / tokens.size, p, atol=3 * np.sqrt(0.25 / tokens.size))


def test_each_unroll_starts_from_samples_of_the_one_before():
    def always_two(tokens, t, cond=None, *, rngs=None):
        return Output(jnp.where(jnp.arange(V) == 2, 0.0, -100.0) + jnp.zeros((*tokens.shape, 1)))

    loss, metrics, given = run({"tokens": sampled(500)}, always_two, process="uniform", unrolls=3)
    assert len(given) == 3
    assert (given[1][0] == 2).all()
    assert (given[2][0] == 2).all()
    assert not (given[0][0] == 2).all()
    assert not np.any([t for _, t in given])  # the share of noise is not told
    errors = [metrics[f"raw_loss_unroll{index}"][0] for index in range(3)]
    assert float(loss) == pytest.approx(np.mean(errors) / 500, rel=1e-6)


def test_one_unroll_is_the_plain_cross_entropy_of_denoising():
    batch = {"tokens": sampled(200)}
    loss, metrics, [(tokens, _)] = run(batch, process="uniform", unrolls=1)
    nll = -np.take_along_axis(np.asarray(exact(jnp.asarray(tokens), None).pred), batch["tokens"][..., None], 2)
    assert float(loss) == pytest.approx(nll.mean(), rel=1e-5)
    assert "raw_loss_unroll1" not in metrics


def test_no_gradient_flows_through_the_samples():
    tokens = jnp.asarray(sampled(8))

    def value(scale):
        def model(tokens, t, cond=None, *, rngs=None):
            return Output(scale * exact(tokens, t).pred)

        return discrete(process="uniform", unrolls=2).loss(model, {"tokens": tokens}, KEY, train=True)[0]

    slope, step = jax.grad(value)(1.0), 1e-2
    assert float(slope) == pytest.approx(float(value(1 + step) - value(1 - step)) / (2 * step), abs=2e-3)  # the same samples on both sides


# Conditions


def test_conditions_are_dropped_in_training_only():
    seen = []

    def model(tokens, t, cond=None, *, rngs=None):
        seen.append(cond["keep"])
        return exact(tokens, t)

    batch = {"tokens": jnp.asarray(sampled(4000)), "label": jnp.zeros(4000, jnp.int32)}
    objective = discrete(cond_drop=0.25)
    for train in (True, False):
        objective.loss(model, batch, KEY, train=train)
    assert float(seen[0].mean()) == pytest.approx(0.75, abs=3 * math.sqrt(0.25 * 0.75 / 4000))
    assert bool(seen[1].all())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(process="flip"), "unknown config.objective.process 'flip'"),
        (dict(unrolls=0), "config.objective.unrolls=0 must be positive"),
        (dict(process="uniform", sampler="halton"), "sampler halton is not for process 'uniform': use sampler unrolled"),
        (dict(sampler="unrolled"), "use sampler confidence or halton or ancestral"),
        (dict(sampler="euler"), "unknown sampler 'euler'"),
        (dict(guidance=2.0), "cond_drop"),
        (dict(guidance=2.0, cond_drop=0.1, nfe=1), "nfe=1 is too few"),
        (dict(nfe=0), "nfe=0"),
        (dict(temperature=-1.0), "temperature"),
        (dict(temperature_decay=1.5), "temperature_decay"),
        (dict(remask=0.1), "needs --sampler=ancestral"),
        (dict(proportion=0.0), "proportion"),
        (dict(proportion_decay=2.0), "proportion_decay"),
        (dict(schedule="quadratic"), "unknown config.objective.schedule"),
        (dict(choice_temperature=-1.0), "choice_temperature"),
        (dict(min_steps=-1), "min_steps"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, said):
    with pytest.raises(UserError, match=said):
        discrete(**changes)
