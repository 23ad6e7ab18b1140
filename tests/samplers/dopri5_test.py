"""Dormand and Prince's method, each example at its own pace."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sampler_orders
from gaussian_flow import KEY, SHAPE, M, S, denoiser, flow, gaussian_velocity
from scipy.integrate import RK45

from tinygen import rng
from tinygen.errors import UserError
from tinygen.samplers import dopri5
from tinygen.samplers.paths import Given, Path

GRID = np.array([1.0, 0.0])


def run(field, x, tolerance=1e-3, most=10_000):
    return dopri5.dopri5(field, x, GRID, Given(Path(decay=1.0), rng.example_keys(KEY(0), 0, len(x)), tolerance, most))


def mixture(z, t, r):
    """x [B, 1]: examples of one number, each with its own error."""
    return sampler_orders.velocity(z[:, 0], t)[:, None]


def swinging(x, t, r):
    """x [B, 2]: an example's first number says how fast its second one swings."""
    return jnp.stack([jnp.zeros(len(x)), jnp.cos(x[:, 0] * t) * x[:, 0]], 1)


def test_the_weights_are_those_of_the_method():
    np.testing.assert_allclose(dopri5.TIMES[:6], RK45.C)
    for mine, theirs in zip(dopri5.WEIGHTS[:5], RK45.A[1:], strict=True):
        np.testing.assert_allclose(mine, theirs[: len(mine)])
    np.testing.assert_allclose(dopri5.WEIGHTS[5], RK45.B)
    np.testing.assert_allclose(np.abs(dopri5.ERROR), np.abs(RK45.E))
    assert sum(dopri5.ERROR) == pytest.approx(0, abs=1e-15)


def bending(x, t, xp=jnp):
    """x [..., 4]: the first two numbers shrink on the way from t = 1 to 0, the others grow, and there are bumps in the way."""
    bumps = 9 * xp.exp(-(((t - 0.4) / 0.02) ** 2)) + 9 * xp.exp(-(((t - 0.03) / 0.01) ** 2))
    return x * xp.stack([3 + 0 * t, 2 * t, -2 * t, -1 + 0 * t], -1) + bumps[..., None]


# An example's size decides how much error its steps may have: from small to large, some numbers of one and some of the other.
SIZES = np.array([[0.01, 0.5, -2.0, 30.0], [500.0, -40.0, 0.001, 1000.0], [0.0, 0.0, -700.0, 5.0], [9.0, -9.0, 0.0, 0.0]])


def by_hand(x, tolerance, most):
    """(x at t = 0, evaluations) of one example: SciPy's tables, and its error norm with rtol = atol, in a plain loop."""
    t, h, slope, calls = 1.0, tolerance ** (1 / 5), bending(x, np.array(1.0), np), 1
    while t > 0:
        last = calls + 12 > most
        s = 0.0 if last or t - 1.01 * h <= 0 else t - h
        K = [slope]
        for share, row in zip(RK45.C[1:], RK45.A[1:], strict=True):
            K.append(bending(x + (s - t) * (row[: len(K)] @ np.array(K)), np.array(t + share * (s - t)), np))
        end = x + (s - t) * (RK45.B @ np.array(K))
        K.append(bending(end, np.array(s), np))
        scale = tolerance + tolerance * np.maximum(np.abs(x), np.abs(end))
        error = np.sqrt(np.mean(((s - t) * (RK45.E @ np.array(K)) / scale) ** 2))
        h, calls = (t - s) * np.clip(0.9 * error ** (-1 / 5), 0.2, 2), calls + 6
        if last or error <= 1:
            x, slope, t = end, K[-1], s
    return x, calls


@pytest.mark.parametrize(("tolerance", "most"), [(1e-2, 1000), (1e-3, 1000), (1e-6, 1000), (1e-6, 40)])
def test_steps_are_chosen_by_an_error_beside_each_number_s_own_size(tolerance, most):
    expected = [by_hand(x, tolerance, most) for x in SIZES]
    with jax.enable_x64(True):
        found, calls = run(lambda x, t, r: bending(x, t), jnp.asarray(SIZES), tolerance, most)
    assert calls.tolist() == [calls for _, calls in expected]
    np.testing.assert_allclose(found, [x for x, _ in expected], rtol=1e-9, atol=1e-9)


def test_the_error_falls_with_the_tolerance_which_costs_more_evaluations():
    with jax.enable_x64(True):
        x = jnp.asarray(sampler_orders.START)[:, None]
        found = [run(mixture, x, tolerance) for tolerance in (1e-2, 1e-4, 1e-6, 1e-8)]
    errors = [np.abs(np.asarray(x)[:, 0] - sampler_orders.truth(sampler_orders.WHOLE)).max() for x, _ in found]
    calls = [int(each.sum()) for _, each in found]
    assert all(fine < coarse / 5 for coarse, fine in itertools.pairwise(errors))
    assert errors[-1] < 1e-7
    assert calls == sorted(set(calls))


def test_an_example_s_steps_are_its_own():
    """An easy one in a batch with hard ones takes what it takes alone, and ends where it ends alone."""
    x = jnp.array([[0.5, 0.0], [40.0, 0.0], [3.0, 1.0]])
    together, calls = run(swinging, x)
    alone = [run(swinging, x[i : i + 1]) for i in range(3)]
    assert calls.tolist() == [int(each[0]) for _, each in alone]
    assert calls[0] <= calls[2] < calls[1] / 3
    np.testing.assert_allclose(together, np.concatenate([x for x, _ in alone]), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(together[:, 1], x[:, 1] - np.sin(x[:, 0]), atol=0.01)


@pytest.mark.parametrize("most", [7, 12, 13, 30, 1000])
def test_evaluations_are_counted_and_never_more_than_allowed(most):
    times = []

    def counting(x, t, r):
        assert t is r
        times.append(float(t[0]))
        return swinging(x, t, r)

    with jax.disable_jit():  # loops run as Python
        x, calls = run(counting, jnp.array([[20.0, 0.0]]), most=most)
    assert len(times) == int(calls[0]) <= most
    assert (times[0], times[-1], min(times)) == (1.0, 0.0, 0.0)  # it always arrives
    assert np.isfinite(x).all()
    assert (int(calls[0]) > most - dopri5.STEP) == (most < 1000)  # a tight limit is used up


def test_a_field_that_is_not_a_number_ends_too():
    x, calls = run(lambda x, t, r: x * jnp.nan, jnp.ones((2, 3)), most=50)
    assert np.isnan(x).all()
    assert (calls <= 50).all()


@pytest.mark.parametrize(("guidance", "least"), [(1.0, 7), (2.0, 14)])
def test_less_than_one_step_is_refused_with_what_it_takes(guidance, least):
    assert flow(sampler="dopri5", nfe=least, guidance=guidance).evaluations(conditional=True) == least
    with pytest.raises(UserError, match=f"nfe={least - 1} is too few: one dopri5 step.* takes {least} network evaluations?"):
        flow(sampler="dopri5", nfe=least - 1, guidance=guidance)


@pytest.mark.parametrize("tolerance", [0.0, -1e-3, 1.0, float("nan")])
def test_a_tolerance_that_makes_no_sense_is_refused(tolerance):
    with pytest.raises(UserError, match="must lie in \\(0, 1\\)"):
        flow(tolerance=tolerance)


def test_samples_with_the_exact_velocity_have_the_data_s_mean_and_variance():
    objective = flow(sampler="dopri5", nfe=200)
    x = np.asarray(jax.jit(lambda keys: objective.draw(denoiser(gaussian_velocity), keys)[0])(rng.example_keys(KEY(1), 0, 5_000)))
    assert x.shape == (5_000, *SHAPE)
    assert x.mean() == pytest.approx(M, abs=3 * S / np.sqrt(x.size))
    assert x.var() == pytest.approx(S**2, abs=3 * S**2 * np.sqrt(2 / x.size))
