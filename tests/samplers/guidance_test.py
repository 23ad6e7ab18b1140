"""A model's prediction, guided: what it is told, and which samplers what it learns can do with."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tinygen.errors import UserError
from tinygen.nn.layers import Output
from tinygen.samplers import guidance
from tinygen.samplers.dopri5 import LEAST
from tinygen.samplers.paths import Path
from tinygen.samplers.table import SAMPLERS, Integration

X = jnp.zeros((3, 2, 2, 1))
GRID = np.array([1.0, 0.0])
COND = {"label": jnp.array([1, 2, 3])}
VELOCITY = sorted(name for name, row in SAMPLERS.items() if row.needs == "velocity")


def model(x, t, r=None, cond=None, *, rngs=None):
    """100 for a condition, and what it is told of the times: t, and a thousand times r where there is one."""
    told = 100.0 * cond["keep"] + t + (0 if r is None else 1000 * r)
    assert t.shape == (len(x),) == told.shape
    return Output(x + told.reshape(-1, 1, 1, 1))


def numbers(predicted):
    assert predicted.shape == X.shape
    return predicted[:, 0, 0, 0].tolist()


def guided(weight=3.0, interval=(0.3, 0.7)):
    return guidance.guided(model, 3, COND, None, weight, interval)


@pytest.mark.parametrize(("level", "guide"), [(0.2, 100), (0.3, 300), (0.7, 300), (0.8, 100)])
def test_one_time_for_all_is_guided_inside_the_interval(level, guide):
    np.testing.assert_allclose(numbers(guided()(X, jnp.float32(0.25), jnp.float32(level))), guide + 0.25)


def test_times_of_their_own_are_guided_each_inside_the_interval():
    t = jnp.array([0.25, 0.5, 0.75])
    np.testing.assert_allclose(numbers(guided()(X, t, t)), [100.25, 300.5, 100.75])
    np.testing.assert_allclose(numbers(guided(interval=(0.0, np.inf))(X, t, t)), [300.25, 300.5, 300.75])
    np.testing.assert_allclose(numbers(guided(weight=1.0)(X, t, t)), [100.25, 100.5, 100.75])


@pytest.mark.parametrize("r", [jnp.float32(0.5), jnp.array([0.5, 0.25, 0.0])], ids=["one", "each"])
def test_a_model_that_is_told_where_a_step_ends_is_told_so_guided_or_not(r):
    t = jnp.array([0.25, 0.5, 0.75]) if r.ndim else jnp.float32(0.5)
    expected = np.broadcast_to(t, 3) + 1000 * np.broadcast_to(r, 3)
    for interval in ((0.0, np.inf), (0.0, 1.0), (0.9, 1.0)):
        inside = np.broadcast_to((t >= interval[0]) & (t <= interval[1]), 3)
        np.testing.assert_allclose(numbers(guided(interval=interval)(X, t, t, r)), expected + np.where(inside, 300, 100))


@pytest.mark.parametrize("own", [False, True])
def test_evaluations_are_those_that_the_cost_says(own):
    rows = []

    def counting(x, t, r=None, cond=None, *, rngs=None):
        rows.append(len(x))
        return Output(x)

    predict = guidance.guided(counting, 3, COND, None, 3.0, (0.3, 0.7))
    with jax.disable_jit():
        for level in (0.2, 0.5):
            predict(X, *[jnp.full(3, level) if own else jnp.float32(level)] * 2)
    budget = functools.partial(Integration, path=Path(decay=1.0), times=lambda num: GRID, nfe=50, guided=(0.3, 0.7), tolerance=1e-3)
    if own:
        assert rows == [3 * budget(sampler="dopri5").least() // LEAST] * 2
    else:
        assert rows == [3 * budget(sampler="euler").evaluations(np.array([level, 0.0])) for level in (0.2, 0.5)]


@pytest.mark.parametrize("name", VELOCITY)
def test_a_sampler_of_velocities_is_refused_for_an_average_with_the_reason(name):
    with pytest.raises(UserError, match=f"^sampler {name} needs the velocity at an instant, .* use sampler average$"):
        guidance.check(0.1, name, 50, 1.0, learns="average")
    guidance.check(0.1, name, 50, 1.0)


def test_average_steps_are_refused_for_a_velocity_with_the_reason():
    with pytest.raises(UserError, match=r"^sampler average takes whole steps of an average velocity, .* use sampler heun"):
        guidance.check(0.1, "average", 50, 1.0)
    guidance.check(0.1, "average", 1, 1.0, learns="average")
