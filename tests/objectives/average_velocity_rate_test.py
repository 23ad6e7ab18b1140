"""The derivative of an average velocity along the flow, against central differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_convnext
import small_microdit
from flax import nnx
from gaussian_flow import KEY, draws
from mean_flow import improved
from small_microdit import drawn

from tinygen.nn.layers import TimeEmbedding
from tinygen.objectives import average_velocity
from tinygen.objectives.average_velocity import Draw


@pytest.mark.parametrize("make", [small_microdit, small_convnext])
def test_what_an_objective_tells_is_embedded_at_the_scale_of_the_time(make):
    model = nnx.merge(*make.abstract(inputs=improved().inputs, time_scale=7.0))
    scales = [module.scale for _, module in nnx.iter_modules(model) if isinstance(module, TimeEmbedding)]
    assert scales == [7.0] * 5  # t, span, weight and interval of guidance


@pytest.mark.parametrize("make", [small_microdit, small_convnext])
def test_the_rate_is_that_of_central_differences(make):
    inputs = improved().inputs
    graph, state = make.abstract(inputs=inputs, time_scale=16.0)
    with jax.enable_x64(True):
        model = nnx.merge(graph, drawn(state, np.float64))
        draw = np.random.default_rng(0)
        z, v = (jnp.asarray(draw.normal(size=(3, *make.SMALL["shape"]))) for _ in range(2))
        t, r = jnp.array([0.9, 0.5, 0.7]), jnp.array([0.1, 0.5, 0.6])
        cond = {"label": jnp.array([0, 1, 2]), "keep": jnp.array([True, False, True]), "omega": jnp.array([1.0, 2.0, 5.0])}
        cond |= {"t_lo": jnp.zeros(3), "t_hi": jnp.ones(3)}
        step = 1e-5

        @jax.jit  # operation by operation it takes four times as long
        def compared(z, v, t, r):
            _, rate = average_velocity.with_rate(model, Draw(z, v, t, r), v, cond, KEY(0), train=False)
            return rate, *(model(z + sign * step * v, t + sign * step, r, cond=cond).pred for sign in (1, -1))

        rate, ahead, behind = compared(z, v, t, r)
        difference = (ahead - behind) / (2 * step)
        assert float(jnp.linalg.norm(rate - difference) / jnp.linalg.norm(difference)) < 1e-6  # the issue asks for 1e-4
        assert float(jnp.linalg.norm(difference)) > 0.1


@pytest.mark.parametrize("method", ["plain", "blockwise"])
def test_attention_of_either_form_has_the_rate(method):
    graph, state = small_microdit.abstract(inputs=("h",), time_scale=16.0, attention=method, needs_jvp=True)
    model = nnx.merge(graph, drawn(state))
    z, v, t, r = (jnp.asarray(each, jnp.float32) for each in draws(4))
    z, v = (jnp.tile(each, (1, 2, 3, 3)) for each in (z, v))

    @jax.jit  # operation by operation it takes four times as long
    def compared(z, v, t, r):
        rate = average_velocity.with_rate(model, Draw(z, v, t, r), v, {}, KEY(0), train=False)[1]
        return rate, *(model(z + sign * 1e-3 * v, t + sign * 1e-3, r, cond={}).pred for sign in (1, -1))

    rate, ahead, behind = compared(z, v, t, r)
    np.testing.assert_allclose(rate, (ahead - behind) / 2e-3, atol=0.02 * float(jnp.abs(rate).max()))
