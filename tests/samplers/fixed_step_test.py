"""Samplers against mathematics: orders, a flow and noise levels known in closed form, and what each asks of the field."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sampler_orders
from gaussian_flow import SHAPE, M, S, denoiser, flow, gaussian_velocity

from tinygen import rng
from tinygen.samplers.paths import Given, Path
from tinygen.samplers.table import SAMPLERS, Integration

FIXED = [name for name, row in SAMPLERS.items() if not row.adaptive]
FLOW, EDM = Path(decay=1.0), Path(decay=0.0)
KEYS = rng.example_keys(jax.random.key(2), 0, 3)


def run(name, field, x, grid, path=FLOW, keys=KEYS):
    return SAMPLERS[name].integrate(field, x, np.asarray(grid), Given(path, keys, 1e-3, 1000))[0]


def uniform(steps):
    return np.linspace(1.0, 0.0, steps + 1)


def test_each_sampler_is_proved_by_its_order_or_on_its_own():
    assert SAMPLERS.keys() - sampler_orders.ORDERS.keys() == {"dopri5", "sde", "average"}


@pytest.mark.parametrize("name", sampler_orders.ORDERS)
def test_a_sampler_converges_with_its_order(name):
    order, ends = sampler_orders.ORDERS[name]
    with jax.enable_x64(True):
        errors = sampler_orders.errors(name, ends)
    assert sampler_orders.order(errors) == pytest.approx(order, abs=0.15 if name == "dpmpp_2m" else 0.1)  # 32 steps are not yet the limit
    assert errors[-1] < 0.02


@pytest.mark.parametrize("name", ["euler", "midpoint", "heun", "rk4"])
def test_a_shifted_grid_keeps_the_order_and_the_quantiles_of_the_logit_normal_do_not(name):
    """Their last step, from the 1/n quantile to 0, shrinks more slowly than 1/n: its own error decides."""
    order, ends = sampler_orders.ORDERS[name]
    with jax.enable_x64(True):
        shifted, quantiles = (sampler_orders.order(sampler_orders.errors(name, ends, grid)) for grid in ("shifted", "logit_normal"))
    assert shifted == pytest.approx(order, abs=0.15)
    assert 0.6 < quantiles < 1.4


# What is exact


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_straight_flow_is_followed_exactly_in_one_step(name):
    x = jnp.array([[1.0, -2.0], [0.5, 4.0], [3.0, 0.0]])
    end = run(name, lambda x, t, r: jnp.full_like(x, 0.25), x, [1.0, 0.0])
    np.testing.assert_allclose(end, x - 0.25, atol=1e-6)


@pytest.mark.parametrize("name", sorted(SAMPLERS.keys() - {"sde"}))
def test_all_agree_on_a_straight_flow_in_any_steps(name):
    x = jnp.array([[1.0, -2.0], [0.5, 4.0], [3.0, 0.0]])
    end = run(name, lambda x, t, r: jnp.full_like(x, 0.25), x, [1.0, 0.9, 0.35, 0.3, 0.0])
    np.testing.assert_allclose(end, x - 0.25, atol=1e-6)


def moved(z, t, r):
    """Where the flow of data N(M, S²) carries z from t to r: its mean and its standard deviation are known at every time."""
    wide_t, wide_r = (jnp.sqrt((1 - at) ** 2 * S**2 + at**2) for at in (t, r))
    return M * (1 - r) + (z - M * (1 - t)) * wide_r / wide_t


@pytest.mark.parametrize("grid", [uniform(1), uniform(2), uniform(7), np.array([1.0, 0.95, 0.2, 0.0])], ids=lambda grid: str(len(grid)))
def test_the_exact_average_velocity_is_exact_in_any_number_of_steps(grid):
    with jax.enable_x64(True):
        z = jnp.linspace(-3, 3, 12).reshape(3, 4)
        end = run("average", lambda z, t, r: (z - moved(z, t, r)) / (t - r), z, grid)
        np.testing.assert_allclose(end, moved(z, 1.0, 0.0), rtol=1e-12)


# One path and another


def to_data(z, sigma, r=None):
    """dz/dσ = (z - D) / σ of data N(M, S²)."""
    return (z - (S**2 * z + sigma**2 * M) / (S**2 + sigma**2)) / sigma


LEVELS = np.linspace(80 ** (1 / 7), 0.002 ** (1 / 7), 60) ** 7


@pytest.mark.parametrize("name", sorted(SAMPLERS.keys() - {"sde", "average"}))
def test_noise_levels_are_followed_as_well_as_times(name):
    with jax.enable_x64(True):
        z = M + jnp.linspace(-100, 100, 12).reshape(3, 4)
        end = run(name, lambda z, sigma, r: to_data(z, jnp.reshape(sigma, (-1, 1))), z, LEVELS, EDM)
        exact = M + (z - M) * np.sqrt((S**2 + 0.002**2) / (S**2 + 80**2))
    # in standard deviations of the data: 59 steps of the first order are some tenths off
    assert np.abs(end - exact).max() / S < {"euler": 0.2, "dopri5": 0.01, "rk4": 1e-4}.get(name, 0.02)


def test_on_noise_levels_karras_heun_is_heun():
    z = jnp.linspace(-60, 60, 12).reshape(3, 4)
    np.testing.assert_allclose(run("edm_heun", to_data, z, LEVELS, EDM), run("heun", to_data, z, LEVELS, EDM), rtol=1e-5)


def test_karras_heun_on_a_flow_is_heun_in_noise_levels():
    """x + σ·ε = z/α, σ = t/α: the same trajectory, stepped by another sampler in other variables."""

    def slope(y, sigma, r):
        t = sigma / (1 + sigma)
        return gaussian_at((1 - t) * y, t) + y * (1 - t) - t * gaussian_at((1 - t) * y, t)  # ε = v + (z - t·v)

    def gaussian_at(z, t):
        return gaussian_velocity(z, jnp.asarray(t)).reshape(z.shape)

    with jax.enable_x64(True):
        grid, z = np.linspace(0.9, 0.1, 9), jnp.linspace(-3, 3, 12).reshape(3, 2, 2, 1)
        found = run("edm_heun", lambda z, t, r: gaussian_at(z, t), z, grid)
        expected = run("heun", slope, z / (1 - grid[0]), grid / (1 - grid), EDM) * (1 - grid[-1])
        np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_dpm_solver_is_the_paper_s_in_its_own_variables():
    """λ = ln(α/σ), h = λ_s - λ_t: x_s = (σ_s/σ_t)·x - α_s·(e^-h - 1)·D̄ (Lu et al., algorithm 2)."""
    grid = np.array([0.95, 0.8, 0.5, 0.45, 0.1])
    x = np.linspace(-2, 2, 12).reshape(3, 4)
    z, before, h_before = x, None, None
    for t, s in itertools.pairwise(grid):
        h = np.log((1 - s) / s) - np.log((1 - t) / t)
        data = z - t * np.sin(3 * z) * t
        bar = data if before is None else (1 + h / (2 * h_before)) * data - h / (2 * h_before) * before
        z, before, h_before = s / t * z - (1 - s) * np.expm1(-h) * bar, data, h
    with jax.enable_x64(True):
        np.testing.assert_allclose(run("dpmpp_2m", lambda x, t, r: jnp.sin(3 * x) * t, jnp.asarray(x), grid), z, rtol=1e-12)


@pytest.mark.parametrize("steps", [1, 3, 4, 10])
def test_dpm_solver_s_first_and_last_steps_are_of_first_order(steps):
    """From t = 1 λ is infinite, and so is the step to 0: three steps and fewer are Euler's."""
    x = jnp.linspace(-2, 2, 12).reshape(3, 4)
    found, plain = (run(name, lambda x, t, r: jnp.sin(3 * x) * t, x, uniform(steps)) for name in ("dpmpp_2m", "euler"))
    assert np.isfinite(found).all()
    assert (np.abs(found - plain).max() < 1e-6) == (steps <= 3)


# Noise on the way


@pytest.mark.parametrize("objective", ["flow", "edm"])
def test_stochastic_samples_have_the_data_s_mean_and_variance(objective):
    num, steps = 5_000, 1_000  # whose own error is 0.7 % of the variance and 1.2 % of EDM's; three standard errors are 3 %
    keys = rng.example_keys(jax.random.key(5), 0, num)
    noise = rng.normal(keys, SHAPE)
    if objective == "flow":
        path, start, grid, field = FLOW, noise, uniform(steps), lambda z, t, r: gaussian_velocity(z, t)
    else:
        grid = np.append(np.linspace(80 ** (1 / 7), 0.002 ** (1 / 7), steps) ** 7, 0.0)
        path, start, field = EDM, 80 * noise, to_data
    x = np.asarray(jax.jit(lambda start: run("sde", field, start, grid, path, keys))(start))
    assert x.mean() == pytest.approx(M, abs=3 * S / np.sqrt(x.size))
    assert x.var() == pytest.approx(S**2, abs=3 * S**2 * np.sqrt(2 / x.size))


@pytest.mark.parametrize("path", [FLOW, EDM], ids=["flow", "edm"])
def test_a_stochastic_step_has_the_mean_and_variance_of_what_lies_between_noise_and_data(path):
    """q(z_s | z_t, x) with x the data predicted: variance (s/t)²·(t² - (α_t/α_s)²·s²), the rest of s² along the noise predicted."""
    num, t, s, z, v = 20_000, 0.8, 0.5, 0.9, 0.4
    keys = rng.example_keys(jax.random.key(5), 0, num)
    found = np.asarray(run("sde", lambda z, t, r: jnp.full_like(z, v), jnp.full((num, 1), z), [t, s], path, keys))
    alpha_t, alpha_s, data = path.alpha(t), path.alpha(s), z - t * v
    noise = (z - alpha_t * data) / t
    variance = (s / t) ** 2 * (t**2 - (alpha_t / alpha_s) ** 2 * s**2)
    mean = alpha_s * data + np.sqrt(s**2 - variance) * noise
    assert found.mean() == pytest.approx(mean, abs=3 * np.sqrt(variance / num))
    assert found.var() == pytest.approx(variance, abs=3 * variance * np.sqrt(2 / num))


def test_fresh_noise_comes_with_every_step_and_is_not_the_start_s():
    """Where nothing is known the data predicted is 0 and a step of EDM's keeps s/t of the noise: all of the rest is fresh."""
    x = rng.normal(KEYS, (500,))
    grid = np.array([1.0, 0.5, 0.25])
    first, second = (run("sde", lambda z, t, r: z / t, x, grid[: steps + 1], EDM) for steps in (1, 2))
    fresh = first - 0.25 * x, second - 0.25 * first  # s·ρ·ε with ρ = s/t and ε = z/t
    draws = np.stack([np.asarray(each).ravel() for each in (x, *fresh)])
    assert np.abs(np.corrcoef(draws) - np.eye(3)).max() < 4 / np.sqrt(draws.shape[1])
    assert fresh[0].std() == pytest.approx(0.5 * np.sqrt(0.75), rel=0.1)


# What a sampler asks of the field


@pytest.mark.parametrize("name", FIXED)
def test_the_field_is_asked_where_the_table_says_never_outside_the_grid(name):
    asked = []

    def field(x, t, r):
        asked.append((float(t), float(r)))
        return x

    grid = uniform(5)
    with jax.disable_jit():
        run(name, field, jnp.ones((3, 2)), grid)
    pairs = np.float32(list(itertools.pairwise(grid)))
    told = [float(at[0]) for t, s in pairs for at in SAMPLERS[name].evaluates(t[None], s[None], FLOW) if len(at)]
    assert [t for t, _ in asked] == told
    assert 0 <= min(told) <= max(told) == 1
    assert [r for _, r in asked] == ([float(s) for _, s in pairs] if SAMPLERS[name].needs == "average" else told)


@pytest.mark.parametrize("name", SAMPLERS)
def test_examples_are_integrated_apart(name):
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)

    def sampled(x, keys):
        return run(name, lambda x, t, r: jnp.sin(3 * x) * jnp.reshape(t, (-1, 1)), x, uniform(4), keys=keys)

    alone = np.concatenate([sampled(x[i : i + 1], KEYS[i : i + 1]) for i in range(3)])
    np.testing.assert_allclose(sampled(x, KEYS), alone, rtol=1e-5, atol=1e-6)  # float32, vectorised otherwise


# The budget


def budget(sampler, nfe, interval, **more):
    return Integration(sampler=sampler, path=FLOW, times=uniform, nfe=nfe, guided=interval, tolerance=1e-3, **more)


@pytest.mark.parametrize("interval", [(0.0, 1.0), (0.2, 0.6), (1 / 3, 2 / 3), (0.5, 0.5), (0.0, 0.0), (1.0, 1.0)])
@pytest.mark.parametrize("name", FIXED)
def test_the_grid_is_the_longest_that_the_budget_allows(name, interval):
    lengths = []
    for nfe in range(-1, 60):
        within = budget(name, nfe, interval)
        grid = within.grid()
        if grid is None:
            assert nfe < within.least()
            continue
        lengths.append(len(grid))
        assert within.evaluations(grid) <= nfe
        assert within.evaluations(uniform(len(grid))) > nfe  # a step more would be too dear
    assert lengths == sorted(lengths)
    assert len(set(lengths)) > 5


def test_one_step_s_cost_counts_every_stage_at_its_own_time():
    def cost(name, *interval):
        return budget(name, 9, interval).evaluations(uniform(1))

    assert (cost("euler", 0.5, 1), cost("euler", 0, 0.5)) == (2, 1)
    assert (cost("heun", 0, 0.4), cost("heun", 0, 1)) == (3, 4)
    assert cost("midpoint", 0.4, 0.6) == 3
    assert cost("rk4", 0.4, 0.6) == 6
    assert cost("edm_heun", 0, 0.9) == 1  # from t = 1 to 0: twice Euler's step


@pytest.mark.parametrize(("steps", "taken"), [(1, 1), (2, 2), (3, 4), (10, 18)])
def test_karras_heun_s_first_and_last_steps_take_one_evaluation(steps, taken):
    calls = []
    with jax.disable_jit():
        run("edm_heun", lambda x, t, r: calls.append(t) or x, jnp.ones((3, 2)), uniform(steps))
    assert len(calls) == taken == budget("edm_heun", 99, (2, 2)).evaluations(uniform(steps))


@pytest.mark.parametrize("name", sorted(SAMPLERS.keys() - {"average"}))
def test_what_samples_took_is_reported_and_within_the_budget(name):
    objective = flow(sampler=name, nfe=30, guidance=2.0, guidance_interval=(0.3, 0.8))
    label = {"label": jnp.zeros(3, jnp.int32)}
    x, taken = jax.jit(lambda keys: objective.draw(denoiser(gaussian_velocity), keys, label))(KEYS)
    assert (x.shape, taken.shape, taken.dtype) == ((3, *SHAPE), (3,), np.int32)
    assert (taken >= 14).all()
    assert (taken <= objective.evaluations(conditional=True)).all()
    assert objective.evaluations(conditional=True) <= 30
    assert SAMPLERS[name].adaptive or (taken == objective.evaluations(conditional=True)).all()
