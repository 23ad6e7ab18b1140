"""What MeanFlow and improved MeanFlow share: the draws, sampling, what a step costs, the settings that there cannot be."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_convnext
from flax import nnx
from gaussian_flow import KEY, SHAPE, M, S, flow
from mean_flow import EXACT, averaging, improved, meanflow

from tinygen import rng
from tinygen.errors import UserError
from tinygen.nn.layers import Output

BOTH = [meanflow, improved]


# The draws


def shown(objective, batch, key=3, train=True):
    """What the model is shown where the derivative is taken."""
    seen = {}

    def model(x, t, r=None, cond=None, *, rngs=None):
        seen.update(x=x, t=t, r=r, cond=cond)  # the derivative's call comes last in training
        return Output(jnp.zeros_like(x), head=jnp.zeros_like(x))

    with jax.disable_jit():
        metrics = objective.loss(model, batch, KEY(key), train=train)[1]
    return metrics, jax.tree.map(lambda each: np.asarray(getattr(each, "primal", each)), seen)


BATCH = {"x": np.zeros((8_000, *SHAPE), np.float32), "label": np.zeros(8_000, np.int32)}


@pytest.fixture(scope="module")
def seen():
    return shown(improved(equal=0.3, cond_drop=0.25, omega_max=8.0), BATCH)


def test_t_is_the_larger_of_two_draws_and_r_the_smaller_or_t_in_its_share(seen):
    metrics, told = seen
    t, r = told["t"].astype(np.float64), told["r"].astype(np.float64)
    equal = t == r
    num = len(t)
    assert (r <= t).all()
    assert equal.mean() == pytest.approx(0.3, abs=3 * np.sqrt(0.3 * 0.7 / num))
    logit = [np.log(each / (1 - each)) for each in (t, r[~equal])]
    # the larger of two standard normals has mean 1/√π and variance 1 - 1/π
    assert logit[0].mean() == pytest.approx(-0.4 + 1 / np.sqrt(np.pi), abs=3 * np.sqrt((1 - 1 / np.pi) / num))
    assert logit[1].mean() == pytest.approx(-0.4 - 1 / np.sqrt(np.pi), abs=3 * np.sqrt((1 - 1 / np.pi) / (0.7 * num)))
    assert abs(np.corrcoef(equal, told["cond"]["keep"])[0, 1]) < 3 / np.sqrt(num)  # drawn apart from the dropped conditions
    assert (~told["cond"]["keep"]).mean() == pytest.approx(0.25, abs=3 * np.sqrt(0.25 * 0.75 / num))
    shares = [float(metrics[f"share_h{index}"][0]) / num for index in range(4)]
    np.testing.assert_allclose(shares, np.histogram(t - r, np.linspace(0, 1, 5))[0] / num, atol=1e-6)
    assert float(metrics["share_equal"][0]) == equal.sum()


def test_guidance_is_log_uniform_and_its_interval_whole_where_r_is_t(seen):
    told = seen[1]["cond"]
    equal = seen[1]["t"] == seen[1]["r"]
    share = np.log(told["omega"]) / np.log(8)
    assert np.abs(np.sort(share) - np.linspace(0, 1, len(share))).max() < 1.63 / np.sqrt(len(share))  # Kolmogorov-Smirnov, 1 %
    assert (told["t_lo"][equal] == 0).all()
    assert (told["t_hi"][equal] == 1).all()
    for name, low in (("t_lo", 0.0), ("t_hi", 0.5)):
        values = np.sort((told[name][~equal] - low) * 2)
        assert np.abs(values - np.linspace(0, 1, len(values))).max() < 1.63 / np.sqrt(len(values))


# Sampling


@pytest.mark.parametrize("objective", BOTH)
@pytest.mark.parametrize("nfe", [1, 2, 5])
def test_sampling_with_the_exact_average_velocity_is_the_flow_s_end_in_any_number_of_steps(objective, nfe):
    keys = rng.example_keys(KEY(0), 0, 50)
    x = np.asarray(jax.jit(lambda keys: objective(nfe=nfe).draw(EXACT, keys)[0])(keys))
    np.testing.assert_allclose(x, M + S * np.asarray(rng.normal(keys, SHAPE)), atol=2e-6)


def test_a_sample_takes_one_evaluation_a_step_whatever_the_guidance():
    calls = []
    model = averaging(lambda z, t, r, cond: calls.append(len(z)) or jnp.zeros_like(z))
    objective = improved(guidance=3.0, nfe=1)
    objective.draw(model, rng.example_keys(KEY(0), 0, 4), {"label": jnp.zeros(4, jnp.int32)})[0]
    assert set(calls) <= {1, 4}  # of them, and where their size is measured, of one
    assert objective.evaluations(conditional=True) == 1


def test_the_model_is_told_the_guidance_and_its_interval():
    told = {}
    model = averaging(lambda z, t, r, cond: told.update(cond) or jnp.zeros_like(z))
    with jax.disable_jit():
        improved(guidance=3.0, guidance_interval=(0.2, 0.7)).draw(
            model, rng.example_keys(KEY(0), 0, 2), {"label": jnp.zeros(2, jnp.int32)}
        )[0]
    assert {name: float(np.asarray(told[name])[0]) for name in ("omega", "t_lo", "t_hi")} == pytest.approx(
        dict(omega=3, t_lo=0.2, t_hi=0.7)
    )


def test_without_conditions_the_model_is_told_the_guidance_that_it_was_trained_with_none():
    told = {}
    model = averaging(lambda z, t, r, cond: told.update(cond) or jnp.zeros_like(z))
    with jax.disable_jit():
        improved(guidance=3.0, guidance_interval=(0.2, 0.7)).draw(model, rng.example_keys(KEY(0), 0, 2))[0]
    seen = {name: float(np.asarray(told[name])[0]) for name in ("omega", "t_lo", "t_hi")}
    assert seen == dict(omega=1, t_lo=0, t_hi=1)


def test_only_a_model_that_learns_the_unguided_velocity_is_compared_with_flow_matching():
    batch = {"x": np.zeros((4, *SHAPE), np.float32), "label": np.zeros(4, np.int32)}

    def metrics(objective, batch):
        return jax.jit(lambda batch, key: objective.loss(EXACT, batch, key, train=False)[1])(batch, KEY(0))

    assert "velocity_loss" not in metrics(meanflow(kappa=0.5), batch)  # its velocity is the guided one
    assert "velocity_loss" in metrics(meanflow(kappa=0.5), {"x": batch["x"]})
    assert "velocity_loss" in metrics(meanflow(), batch)
    assert "velocity_loss" in metrics(improved(), batch)


# What a step costs


def flops(objective, inputs, head=False):
    """Of the loss and its gradient, of a model whose own products are nearly all of it."""
    graph, state = small_convnext.abstract(widths=(32, 32), depths=(1, 4), expansion=4, inputs=inputs, head=head, time_scale=16.0)
    batch = {"x": jax.ShapeDtypeStruct((4, 8, 8, 3), "float32"), "label": jax.ShapeDtypeStruct((4,), "int32")}

    def loss(state, batch, key):
        return objective.loss(nnx.merge(graph, state), batch, key, train=True)[0]

    compiled = jax.jit(jax.grad(loss)).lower(state, batch, KEY(0)).compile()
    return compiled.cost_analysis()["flops"]


@pytest.mark.slow
def test_a_step_costs_twice_flow_matching_s_at_most_and_less_without_guidance():
    shape = (8, 8, 3)
    base = flops(flow(shape=shape), ())
    assert flops(meanflow(shape=shape), ("h",)) < 1.6 * base  # 4 passes for 3
    assert flops(improved(shape=shape, velocity="head"), improved().inputs, head=True) < 2.4 * base  # 6 for 3


def test_a_step_of_a_convnext_by_products_needs_no_convolution_eigenvalues_or_complex_numbers():
    """Some backends have none of them."""
    graph, state = small_convnext.abstract(inputs=improved().inputs, head=True, time_scale=16.0, depthwise="products")
    batch = {"x": jax.ShapeDtypeStruct((4, 8, 8, 3), "float32"), "label": jax.ShapeDtypeStruct((4,), "int32")}
    objective = improved(shape=(8, 8, 3), velocity="head")

    def whole(state, batch, key):
        gradient = jax.grad(lambda state: objective.loss(nnx.merge(graph, state), batch, key, train=True)[0])(state)
        keys = rng.example_keys(key, 0, 4)
        return gradient, objective.draw(nnx.merge(graph, state), keys, {"label": batch["label"]})[0]

    program = jax.jit(whole).lower(state, batch, KEY(0)).as_text().lower()
    assert "dot_general" in program
    for word in ("convolution", "eigh", "eig", "complex", "fft"):
        assert not re.search(rf"\b{word}|{word}\b", program), word


# Mistakes


@pytest.mark.parametrize(
    ("make", "changes", "said"),
    [
        *((make, changes, said) for make in BOTH for changes, said in (
            (dict(sampler="heun"), "average"),
            (dict(nfe=0), "nfe=0"),
            (dict(equal=1.5), "equal"),
            (dict(power=-1.0), "power"),
            (dict(offset=0.0), "offset"),
            (dict(t_std=0.0), "t_std"),
            (dict(cond_drop=1.0), "cond_drop"),
        )),
        (meanflow, dict(omega_interval=(0.6, 0.4)), "omega_interval"),
        (meanflow, dict(omega=2.0, cond_drop=0.0), "cond_drop > 0"),
        (meanflow, dict(kappa=1.0), "kappa"),
        (improved, dict(guidance=1.5, nfe=0), "one average step takes 1 network evaluation"),  # guidance costs none
        (improved, dict(guidance_interval=(0.9, 0.1)), "guidance_interval"),
        (improved, dict(guidance_interval=(0.6, 0.9)), "hold 0.5"),
        (improved, dict(guidance=9.0), "from 1, which is off, to omega_max"),
        (improved, dict(cond_drop=0.0), "cond_drop > 0"),
        (improved, dict(velocity="heads"), "velocity"),
        (improved, dict(omega_max=0.5), "omega_max"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(make, changes, said):
    with pytest.raises(UserError, match=said) as caught:
        make(**changes)
    assert "\n" not in str(caught.value)


def test_a_negative_prompt_is_refused_where_guidance_was_learnt():
    cond = {"label": jnp.zeros(2, jnp.int32)}
    with pytest.raises(UserError, match="negative prompt"):
        improved().draw(EXACT, rng.example_keys(KEY(0), 0, 2), cond, cond)[0]
