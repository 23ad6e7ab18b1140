import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tinygen.objectives import samplers
from tinygen.objectives.samplers import SAMPLERS

ORDERS = {"euler": 1, "heun": 2}
W, MU, S = (np.array(row) for row in ([0.4, 0.6], [-1.0, 0.8], [0.3, 0.4]))  # a mixture of two Gaussians


def mixture_velocity(z, t, xp):
    """E[ε - x | z_t = z] of the mixture, exact: the components' own velocities, weighted with their responsibilities."""
    z = z[..., None]
    mean, variance = (1 - t) * MU, (1 - t) ** 2 * S**2 + t**2
    density = W * xp.exp(-((z - mean) ** 2) / (2 * variance)) / xp.sqrt(variance)
    velocity = -MU + (t - (1 - t) * S**2) / variance * (z - mean)
    return (density * velocity).sum(-1) / density.sum(-1)


def test_the_table_holds_the_samplers_whose_orders_are_known_here():
    assert SAMPLERS.keys() == ORDERS.keys()


@pytest.fixture(scope="module")
def flow():
    """(noise, where the exact flow carries it): the classical Runge-Kutta method in 4,096 steps, good to 1e-12."""
    start = np.linspace(-2.5, 2.5, 11)
    z, h = start, -1 / 4096
    for t in np.linspace(1, 0, 4097)[:-1]:
        a = mixture_velocity(z, t, np)
        b = mixture_velocity(z + h / 2 * a, t + h / 2, np)
        c = mixture_velocity(z + h / 2 * b, t + h / 2, np)
        z = z + h / 6 * (a + 2 * b + 2 * c + mixture_velocity(z + h * c, t + h, np))
    return start, z


@pytest.mark.parametrize("name", ORDERS)
def test_a_sampler_converges_with_its_order(flow, name):
    steps = [32, 64, 128, 256, 512]
    with jax.enable_x64(True):
        start = jnp.asarray(flow[0])
        ends = [
            samplers.integrate(SAMPLERS[name], lambda z, t: mixture_velocity(z, t, jnp), start, samplers.uniform_grid(n)) for n in steps
        ]
    errors = [np.abs(np.asarray(end) - flow[1]).max() for end in ends]
    slope = -np.polyfit(np.log(steps), np.log(errors), 1)[0]
    assert slope == pytest.approx(ORDERS[name], abs=0.1)  # 32 steps are not yet the limit
    assert errors[-1] < 0.02


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 10, 25, 49, 50, 1000])
def test_a_grid_falls_from_exactly_one_to_exactly_zero(steps):
    grid = samplers.uniform_grid(steps)
    assert len(grid) == steps + 1
    assert (grid[0], grid[-1]) == (1.0, 0.0)
    assert (np.diff(grid) < 0).all()
    # even: what t₁ - t₀ loses to float32's rounding of either end
    np.testing.assert_allclose(np.diff(grid), -1 / steps, atol=2**-23)


@pytest.mark.parametrize("name", ORDERS)
def test_a_straight_flow_is_followed_exactly_in_one_step(name):
    x = jnp.array([[1.0, -2.0], [0.5, 4.0]])
    end = samplers.integrate(SAMPLERS[name], lambda x, t: jnp.full_like(x, 0.25), x, samplers.uniform_grid(1))
    np.testing.assert_array_equal(end, x - 0.25)


@pytest.mark.parametrize("name", ORDERS)
def test_velocities_are_asked_for_at_the_stages_times_never_outside_the_grid(name):
    asked = []

    def velocity(x, t):
        asked.append(float(t))
        return x

    grid = samplers.uniform_grid(5)
    with jax.disable_jit():
        samplers.integrate(SAMPLERS[name], velocity, jnp.ones((2, 3)), grid)
    stages = [t + np.float32(stage) * (s - t) for t, s in itertools.pairwise(grid) for stage in SAMPLERS[name].stages]
    assert asked == stages
    assert len(asked) == samplers.evaluations(SAMPLERS[name], grid, np.ones_like)
    assert 0 <= min(asked) <= max(asked) == 1


@pytest.mark.parametrize("name", ORDERS)
def test_examples_are_integrated_apart(name):
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)

    def run(x):
        return samplers.integrate(SAMPLERS[name], lambda x, t: jnp.sin(3 * x) * t, x, samplers.uniform_grid(4))

    alone = np.concatenate([run(x[i : i + 1]) for i in range(3)])
    np.testing.assert_allclose(run(x), alone, rtol=1e-6)  # float32, vectorised otherwise


def dear_inside(low, high):
    return lambda t: np.where((t >= np.float32(low)) & (t <= np.float32(high)), 2, 1)


@pytest.mark.parametrize("interval", [(0.0, 1.0), (0.2, 0.6), (1 / 3, 2 / 3), (0.5, 0.5), (0.0, 0.0), (1.0, 1.0)])
@pytest.mark.parametrize("name", ORDERS)
def test_the_grid_is_the_longest_that_the_budget_allows(name, interval):
    sampler, cost = SAMPLERS[name], dear_inside(*interval)
    least = samplers.evaluations(sampler, samplers.uniform_grid(1), cost)
    lengths = []
    for nfe in range(60):
        grid = samplers.grid_for(sampler, nfe, cost)
        if grid is None:
            assert nfe < least
            continue
        lengths.append(len(grid))
        assert samplers.evaluations(sampler, grid, cost) <= nfe
        assert samplers.evaluations(sampler, samplers.uniform_grid(len(grid)), cost) > nfe  # a step more would be too dear
    assert lengths == sorted(lengths)
    assert len(set(lengths)) > 10


def test_one_step_s_cost_counts_every_stage_at_its_own_time():
    grid = samplers.uniform_grid(1)  # evaluates at 1 and, by Heun, at 0
    assert samplers.evaluations(SAMPLERS["euler"], grid, dear_inside(0.5, 1)) == 2
    assert samplers.evaluations(SAMPLERS["euler"], grid, dear_inside(0, 0.5)) == 1
    assert samplers.evaluations(SAMPLERS["heun"], grid, dear_inside(0, 0.5)) == 3
    assert samplers.evaluations(SAMPLERS["heun"], grid, dear_inside(0, 1)) == 4
