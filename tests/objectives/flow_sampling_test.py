"""Flow matching's sampler: guidance, the budget of network evaluations, what a sample depends on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussian_flow import KEY, SHAPE, M, S, column, denoiser, flow, gaussian_velocity

from tinygen import rng
from tinygen.errors import UserError


@pytest.mark.parametrize("sampler", ["euler", "heun"])
def test_sampling_with_the_exact_velocity_gives_the_data_s_mean_and_variance(sampler):
    num = 5_000
    # the steps' own error: 400 of Euler end 0.0018 below the variance, 200 of Heun 0.000006; three standard errors are 0.0075
    objective = flow(sampler=sampler, nfe=400)
    x = np.asarray(jax.jit(lambda keys: objective.draw(denoiser(gaussian_velocity), keys)[0])(rng.example_keys(KEY(1), 0, num)))
    assert x.shape == (num, *SHAPE)
    assert x.mean() == pytest.approx(M, abs=3 * S / np.sqrt(x.size))
    assert x.var() == pytest.approx(S**2, abs=3 * S**2 * np.sqrt(2 / x.size))


# Guidance


def told(x, t, cond):
    """A velocity that shows what the model was told: 10 for the null condition, else the label; and the time."""
    if not cond:
        return jnp.full_like(x, 20.0) + column(t)
    return jnp.zeros_like(x) + column(jnp.where(cond["keep"], cond["label"], 10.0) + t)


LABEL = np.array([1, 2, 5], np.int32)


@pytest.fixture(scope="module")
def keys():
    return rng.example_keys(KEY(0), 0, 3)


@pytest.fixture(scope="module")
def drawn(keys):
    """(objective, cond, ...) -> three samples of the model `told`, or another"""

    def draw(objective, cond=None, negative=None, predict=told):
        return np.asarray(jax.jit(lambda keys: objective.draw(denoiser(predict), keys, cond, negative)[0])(keys))

    return draw


@pytest.fixture(scope="module")
def noise(keys):
    return np.asarray(rng.normal(keys, SHAPE))


@pytest.fixture(scope="module")
def travelled(drawn, noise):
    """How far each sample went from its noise, a number an example."""

    def measure(objective, **kwargs):
        way = noise - drawn(objective, **kwargs)
        np.testing.assert_allclose(way, np.broadcast_to(way[:, :1, :1], way.shape), atol=1e-5)
        return way[:, 0, 0, 0]

    return measure


TIMES = np.mean([1.0, 0.75, 0.5, 0.25])  # the part of four Euler steps that is t itself


def test_guidance_one_is_the_conditional_velocity(travelled, drawn):
    assert travelled(flow(sampler="euler", nfe=4), cond={"label": LABEL}) == pytest.approx(LABEL + TIMES, rel=1e-5)
    exact = drawn(flow(nfe=8), {"label": LABEL}, predict=gaussian_velocity)
    np.testing.assert_array_equal(exact, drawn(flow(nfe=8), predict=gaussian_velocity))


@pytest.mark.parametrize("weight", [0.0, 0.5, 2.0, 4.0])
def test_guidance_walks_from_the_null_through_the_condition(travelled, weight):
    objective = flow(sampler="euler", nfe=8, guidance=weight)
    assert travelled(objective, cond={"label": LABEL}) == pytest.approx(10 + weight * (LABEL - 10) + TIMES, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(("interval", "guided"), [((0.4, 0.8), 2), ((0.5, 1.0), 3), ((0.0, 0.1), 0), ((0.9, 1.0), 1), ((0.0, 1.0), 4)])
def test_guidance_acts_inside_its_interval_of_t_only(travelled, interval, guided):
    objective = flow(sampler="euler", nfe=4 + guided, guidance=3.0, guidance_interval=interval)
    assert objective.grid(conditional=True).tolist() == [1, 0.75, 0.5, 0.25, 0]
    want = (guided * (10 + 3 * (LABEL - 10)) + (4 - guided) * LABEL) / 4 + TIMES
    assert travelled(objective, cond={"label": LABEL}) == pytest.approx(want, rel=1e-5, abs=1e-5)


def test_a_negative_condition_takes_the_null_s_place(travelled):
    objective = flow(sampler="euler", nfe=8, guidance=3.0)
    negative = {"label": np.array([7, 7, 0], np.int32)}
    want = negative["label"] + 3 * (LABEL - negative["label"]) + TIMES
    assert travelled(objective, cond={"label": LABEL}, negative=negative) == pytest.approx(want, rel=1e-5, abs=1e-5)


def test_without_a_condition_there_is_nothing_to_guide(travelled):
    objective = flow(sampler="euler", nfe=4, guidance=3.0)
    assert travelled(objective) == pytest.approx([20 + TIMES] * 3, rel=1e-5)


# The budget of network evaluations


@pytest.mark.parametrize("conditional", [True, False])
@pytest.mark.parametrize("interval", [(0.0, 1.0), (0.2, 0.6), (0.3, 1.0)])
@pytest.mark.parametrize(("sampler", "nfe"), [("heun", 4), ("heun", 11), ("euler", 9), ("euler", 10)])
def test_the_network_is_called_as_often_as_promised_and_never_above_the_budget(keys, sampler, nfe, interval, conditional, monkeypatch):
    monkeypatch.setattr("tinygen.samplers.cpu_groups.examples_together", lambda sample, keys, *rows: len(keys))  # which calls it once more
    objective = flow(sampler=sampler, nfe=nfe, guidance=2.0, guidance_interval=interval)
    rows = []

    def count(x, t, cond):
        rows.append(len(x))
        return 0 * x

    with jax.disable_jit():  # loops and branches run as Python
        objective.draw(denoiser(count), keys, {"label": LABEL} if conditional else None)[0]
    assert sum(rows) / len(LABEL) == objective.evaluations(conditional=conditional) <= nfe


@pytest.mark.parametrize(("sampler", "guidance", "least"), [("euler", 1.0, 1), ("heun", 1.0, 2), ("euler", 2.0, 2), ("heun", 2.0, 4)])
def test_a_budget_below_one_step_is_refused_with_what_one_takes(sampler, guidance, least):
    assert flow(sampler=sampler, guidance=guidance, nfe=least).evaluations(conditional=True) == least
    for nfe in (least - 1, 0, -1):
        with pytest.raises(UserError, match=f"nfe={nfe} is too few.* takes {least} network evaluations?"):
            flow(sampler=sampler, guidance=guidance, nfe=nfe)


# Samples


def test_sample_i_depends_on_its_own_key_and_condition_alone(drawn, noise, keys):
    def model(x, t, cond):
        return told(jnp.sin(3 * x), t, cond) * x

    objective = flow(sampler="heun", nfe=12, guidance=2.0)
    together = drawn(objective, {"label": LABEL}, predict=model)
    alone = [objective.draw(denoiser(model), keys[i : i + 1], {"label": LABEL[i : i + 1]})[0] for i in range(3)]
    np.testing.assert_allclose(together, np.concatenate(alone), rtol=1e-5)  # float32, vectorised otherwise
    still = [np.asarray(objective.draw(denoiser(lambda x, t, cond: 0 * x), keys[i : i + 1])[0]) for i in range(3)]
    np.testing.assert_array_equal(np.concatenate(still), noise)  # the noise itself is equal bit for bit
    assert len(np.unique(noise)) == noise.size


def test_a_preview_shows_samples_of_the_batch_s_conditions(drawn, noise, keys):
    objective = flow(sampler="euler", nfe=4)
    shown = objective.preview(None, denoiser(told), {"x": noise, "label": LABEL, "weight": np.ones(3)}, keys)
    assert list(shown) == ["samples"]
    assert shown["samples"].medium is None
    np.testing.assert_array_equal(shown["samples"].value, drawn(objective, {"label": LABEL}))
