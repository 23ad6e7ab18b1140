"""MeanFlow and improved MeanFlow against closed forms, finite differences and flow matching."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_convnext
import small_microdit
from flax import nnx
from gaussian_flow import KEY, SHAPE, M, S, column, draws, flow, gaussian_velocity
from mean_flow import EXACT, averaging, gaussian_average, improved, meanflow
from small_microdit import drawn

from tinygen.nn.layers import Output
from tinygen.objectives import average_velocity
from tinygen.objectives.average_velocity import Draw
from tinygen.samplers.paths import along

BOTH = [meanflow, improved]


# The exact average velocity


def test_the_closed_form_is_the_average_of_the_velocity_along_the_flow():
    """By Gauss-Legendre quadrature over the exact path."""
    z, _, t, r = draws(20)
    nodes, weights = np.polynomial.legendre.leggauss(40)
    total = np.zeros_like(z)
    for node, weight in zip(nodes, weights, strict=True):
        s = r + (t - r) * (node + 1) / 2
        size = np.sqrt((1 - s) ** 2 * S**2 + s**2) / np.sqrt((1 - t) ** 2 * S**2 + t**2)
        total += weight / 2 * gaussian_velocity((1 - column(s)) * M + (z - (1 - column(t)) * M) * column(size), s)
    np.testing.assert_allclose(gaussian_average(z, t, r), total, atol=1e-12)


def test_the_exact_average_velocity_satisfies_the_identity():
    with jax.enable_x64(True):
        z, _, t, r = map(jnp.asarray, draws())
        velocity = gaussian_velocity(z, t)
        out, rate = average_velocity.with_rate(EXACT, Draw(z, velocity, t, r), velocity, {}, KEY(0), train=True)
        identity = velocity - column(t - r) * rate
        assert float(jnp.abs(out.pred - identity).max()) < 1e-10


@pytest.mark.parametrize("objective", BOTH)
def test_the_exact_average_velocity_is_a_fixed_point_of_the_loss(objective):
    """Noise ε and data x with the mean velocity of z ± the same deviation: gradients by any perturbation of u cancel."""
    with jax.enable_x64(True):
        z, _, t, r = map(jnp.asarray, draws())
        off = jnp.asarray(np.random.default_rng(1).normal(size=z.shape))
        velocity = gaussian_velocity(z, t)

        @jax.jit
        def gradient(size):
            model = averaging(lambda z, t, r, cond: gaussian_average(z, t, r) + size[0] + size[1] * z * column(t) + size[2] * z**2)
            pairs = [Draw(z, velocity + sign * off, t, r) for sign in (1, -1)]
            return sum(jnp.mean(objective()._error(model, pair, {}, KEY(0), train=True).terms[0]) for pair in pairs)

        assert np.abs(jax.grad(gradient)(jnp.zeros(3))).max() < 1e-12
        assert np.abs(jax.grad(gradient)(jnp.full(3, 0.1))).min() > 1e-3  # elsewhere it is none


def test_the_exact_velocity_s_loss_is_the_floor_that_flow_matching_has():
    x = np.random.default_rng(0).normal(M, S, (20_000, *SHAPE)).astype(np.float32)
    loss = jax.jit(lambda batch, key: improved(equal=1.0).loss(EXACT, batch, key, train=False)[1])({"x": x}, KEY(0))
    t_mean = jax.jit(lambda batch, key: flow(t_mean=-0.4).loss(averaged_as_velocity, batch, key, train=False)[0])({"x": x}, KEY(0))
    total, weight = loss["velocity_loss"]
    assert float(total / weight) == pytest.approx(float(t_mean), rel=1e-5)


def averaged_as_velocity(x, t, r=None, cond=None, *, rngs=None):
    return Output(gaussian_velocity(x, t))


# Flow matching is the case r = t


@pytest.mark.parametrize("objective", BOTH)
@pytest.mark.parametrize("make", [small_microdit, pytest.param(small_convnext, marks=pytest.mark.slow)])
def test_where_r_is_t_the_loss_and_its_gradient_are_flow_matching_s(objective, make):
    inputs = objective().inputs
    graph, state = make.abstract(inputs=inputs, time_scale=16.0)
    shape = make.SMALL["shape"]
    batch = {"x": np.random.default_rng(0).normal(size=(3, *shape)).astype(np.float32)}
    shown = {}
    with jax.enable_x64(True):
        state = drawn(state, np.float64)
        unguided = {name: jnp.ones(3) if name != "t_lo" else jnp.zeros(3) for name in inputs if name != "h"}

        def matching(state):
            def model(x, t, r=None, cond=None, *, rngs=None):
                shown.update(z=x, t=t)
                return nnx.merge(graph, state)(x, t, t, cond=unguided)

            return flow(shape=shape, t_mean=-0.4).loss(model, batch, KEY(0), train=True)[0], dict(shown)

        (theirs, seen), gradient = jax.jit(jax.value_and_grad(matching, has_aux=True))(state)
        x, t = jnp.asarray(batch["x"]), seen["t"]
        draw = Draw(seen["z"], (seen["z"] - x) / along(t, x), t, t)

        def ours(state):
            error = objective(shape=shape)._error(nnx.merge(graph, state), draw, {}, KEY(0), train=True)
            return jnp.mean(error.terms[0])

        value, own = jax.jit(jax.value_and_grad(ours))(state)
        assert float(value) == pytest.approx(float(theirs), rel=1e-6)
        for a, b in zip(jax.tree.leaves(own), jax.tree.leaves(gradient), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6 * max(1e-3, float(jnp.abs(b).max())))


# Guidance


def label_velocity(z, t, r, cond):
    """1 + the label, and 10 for the null."""
    value = column(jnp.where(cond["keep"], 1.0 + cond["label"], 10.0))
    return jnp.zeros_like(z) + value


def targets(objective, keep, t, label):
    """What is compared with u where u is a constant, so that du/dt is zero: √ of the error, u apart."""
    B = len(t)
    z, v = jnp.zeros((B, *SHAPE)), jnp.full((B, *SHAPE), 3.0)
    t = jnp.asarray(t)
    cond = {"label": jnp.asarray(label), "keep": jnp.asarray(keep)}
    error = objective._error(averaging(label_velocity), Draw(z, v, t, 0 * t), cond, KEY(0), train=True)
    return np.asarray(label_velocity(z, t, t, cond)[:, 0, 0, 0]), np.sqrt(np.asarray(error.terms[0][:, 0, 0, 0]))


def test_baked_in_guidance_is_its_formula_inside_the_interval_and_the_velocity_elsewhere():
    own, distance = targets(
        meanflow(omega=2.0, kappa=0.5, omega_interval=(0.3, 0.6)), [True, True, True, False], [0.5, 0.2, 0.7, 0.5], [4, 4, 4, 4]
    )
    # ω v + (1 - ω - κ) null + κ own = 6 - 1.5 · 10 + 0.5 · 5
    np.testing.assert_allclose(distance, np.abs(own - [6 - 15 + 2.5, 3, 3, 3]), rtol=1e-6)


def test_guidance_by_a_condition_is_its_formula():
    objective = improved(omega_max=5.0)
    keep, t = [True] * 200 + [False] * 50, np.linspace(0.01, 0.99, 250).astype(np.float32)
    model_saw = {}

    def model(x, t, r=None, cond=None, *, rngs=None):
        model_saw.update(cond)  # the call for the average velocity is the last
        return Output(label_velocity(x, t, r, cond))

    z, v = jnp.zeros((250, *SHAPE)), jnp.full((250, *SHAPE), 3.0)
    cond = {"label": jnp.full(250, 4), "keep": jnp.asarray(keep)}
    error = objective._error(model, Draw(z, v, jnp.asarray(t), jnp.zeros(250)), cond, KEY(0), train=True).terms[0][:, 0, 0, 0]
    told = {name: np.asarray(model_saw[name]) for name in ("omega", "t_lo", "t_hi")}
    inside = np.asarray(keep) & (t >= told["t_lo"]) & (t <= told["t_hi"])
    assert 50 < inside.sum() < 190
    target = 3 + np.where(inside, 1 - 1 / told["omega"], 0) * (5 - 10)
    np.testing.assert_allclose(np.sqrt(error), np.abs(np.where(keep, 5, 10) - target), rtol=1e-5)


@pytest.mark.parametrize("velocity", ["head", "boundary"])
@pytest.mark.parametrize("omega_max", [1.0, 8.0])
def test_improved_meanflow_asks_for_no_velocity_that_it_does_not_train(omega_max, velocity):
    """Where r = t examples are trained on the interval [0, 1] alone, so it must be that of every call with r = t; the null
    condition's weight is 1, an example's own 1 outside its interval.
    """
    calls = []

    def model(x, t, r=None, cond=None, *, rngs=None):
        calls.append((t, r, cond))
        return Output(jnp.zeros_like(x), head=jnp.zeros_like(x))

    num, label = 300, jnp.zeros(300, jnp.int32)
    t, r = jnp.linspace(0.01, 0.99, num), jnp.linspace(0.01, 0.99, num) * jnp.tile(jnp.array([1.0, 0.5]), num // 2)
    cond = {"label": label, "keep": jnp.arange(num) % 3 > 0}
    z = jnp.zeros((num, *SHAPE))
    improved(omega_max=omega_max, velocity=velocity)._error(model, Draw(z, z, t, r), cond, KEY(0), train=True)
    (at, end, asked), (_, _, told) = ([np.asarray(getattr(each, "primal", each)) for each in call[:2]] + [call[2]] for call in calls)
    np.testing.assert_array_equal(at, end)
    assert (set(np.asarray(asked["t_lo"])), set(np.asarray(asked["t_hi"]))) == ({0.0}, {1.0})
    low, high, omega = (np.asarray(told[name]) for name in ("t_lo", "t_hi", "omega"))
    equal = np.asarray(t == r)
    np.testing.assert_array_equal((low == 0) & (high == 1), equal)
    acts = np.asarray(cond["keep"]) & (np.asarray(t) >= low) & (np.asarray(t) <= high)
    own = np.where(acts, omega, 1)
    np.testing.assert_array_equal(asked["omega"], np.concatenate([own, np.ones(num)]) if omega_max > 1 else np.ones(num))


def test_the_head_learns_the_same_target_and_leads_the_derivative():
    """u = z, so du/dt along (w, 1, 0) is w: the loss shows which velocity w was."""

    def model(x, t, r=None, cond=None, *, rngs=None):
        return Output(x, head=jnp.full_like(x, 7.0))

    z, v = jnp.ones((2, *SHAPE)), jnp.full((2, *SHAPE), 3.0)
    draw = Draw(z, v, jnp.full(2, 0.9), jnp.full(2, 0.4))
    head, velocity = improved(velocity="head")._error(model, draw, {}, KEY(0), train=True).terms
    np.testing.assert_allclose(head, (1 + 0.5 * 7 - 3) ** 2, rtol=1e-5)
    np.testing.assert_allclose(velocity, (7 - 3) ** 2, rtol=1e-5)
    (boundary,) = improved(velocity="boundary")._error(model, draw, {}, KEY(0), train=True).terms
    np.testing.assert_allclose(boundary, (1 + 0.5 * 1 - 3) ** 2, rtol=1e-5)
    (drawn_velocity,) = meanflow()._error(model, draw, {}, KEY(0), train=True).terms
    np.testing.assert_allclose(drawn_velocity, (1 - (3 - 0.5 * 3)) ** 2, rtol=1e-5)


def test_nothing_is_learnt_through_targets_and_rates():
    """The gradient is that of u alone, the target held: 2 (V - v) du/dθ, u = θ z, V = θ z + h θ w."""
    z, v = jnp.ones((1, *SHAPE)), jnp.full((1, *SHAPE), 3.0)
    draw = Draw(z, v, jnp.full(1, 0.9), jnp.full(1, 0.4))

    def loss(theta, objective):
        model = averaging(lambda z, t, r, cond: theta * z)
        return jnp.mean(objective._error(model, draw, {}, KEY(0), train=True).terms[0])

    theta = 2.0
    velocity = theta * 1.0  # u(z, t, t) at θ
    assert float(jax.grad(loss)(theta, improved())) == pytest.approx(2 * (theta + 0.5 * theta * velocity - 3), rel=1e-5)
    assert float(jax.grad(loss)(theta, meanflow())) == pytest.approx(2 * (theta + 0.5 * theta * 3 - 3), rel=1e-5)


# The adaptive weight


@pytest.mark.parametrize("objective", BOTH)
def test_the_adaptive_weight_prints_one_and_has_the_gradient_of_the_logarithm(objective):
    x = np.random.default_rng(0).normal(size=(5, *SHAPE))

    def model(theta):
        return averaging(lambda z, t, r, cond: theta * jnp.sin(z) + t.reshape(-1, 1, 1, 1))

    with jax.enable_x64(True):
        batch = {"x": jnp.asarray(x)}

        def weighted(theta):
            return objective(power=1.0, offset=1e-4).loss(model(theta), batch, KEY(0), train=True)

        def parts(theta):
            """Σ of squared errors of each example, whose targets are held at θ = 0.3."""
            seen = [
                objective().loss(model(theta), {"x": batch["x"], "weight": row}, KEY(0), train=True)[1]["raw_loss"] for row in np.eye(5)
            ]
            return jnp.stack([total for total, _ in seen]) * np.prod(SHAPE)

        (value, metrics), gradient = jax.value_and_grad(weighted, has_aux=True)(0.3)
        assert float(value) == pytest.approx(1, abs=1e-2)
        assert float(metrics["loss"][0]) / 5 == pytest.approx(float(value))
        np.testing.assert_allclose(gradient, jax.grad(lambda theta: jnp.mean(jnp.log(parts(theta) + 1e-4)))(0.3), rtol=1e-9)
        assert float(metrics["raw_loss"][0]) * np.prod(SHAPE) == pytest.approx(float(parts(0.3).sum()))


def test_half_a_power_and_none():
    square = jnp.array([0.0, 1.0, 15.0])
    np.testing.assert_allclose(average_velocity.adaptive(square, 0.5, 1.0), square / np.sqrt([1, 2, 16]))
    np.testing.assert_allclose(average_velocity.adaptive(square, 0.0, 1.0), square)
