"""Blocks computed again in the backward pass, or in a loop: the same model, by its numbers, its products and its program."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small_microdit import abstract

from tinygen import build
from tinygen import config as config_lib
from tinygen.data.synthetic import sine
from tinygen.errors import UserError
from tinygen.nn import stack
from tinygen.nn.flops import flops
from tinygen.nn.flops import products as counted


def parts(**changes):
    """(graphdef, abstract state) of a small model."""
    sizes = dict(shape=(4, 4, 1), classes=0, depth=4, attention="plain")
    return abstract(**(sizes | changes))


def loss_of(graphdef):
    return lambda state, x, t: jnp.mean(jnp.sin(nnx.merge(graphdef, state)(x, t).pred))


@pytest.fixture(scope="module")
def point():
    """(weights where nothing is zero, x, t)."""
    rng = np.random.default_rng(0)

    def draw(leaf):
        return jnp.asarray(0.3 * rng.normal(size=leaf.shape), jnp.float32)

    return jax.tree.map(draw, (parts()[1], *(jax.ShapeDtypeStruct(shape, "float32") for shape in ((2, 4, 4, 1), (2,)))))


def derived(graphdef, point):
    """(value, gradient, derivative along the weights themselves)."""
    loss = loss_of(graphdef)

    def along(state, x, t):
        return jax.jvp(lambda state: loss(state, x, t), (state,), (state,))[1]

    return jax.jit(lambda *point: (*jax.value_and_grad(loss)(*point), along(*point)))(*point)


@pytest.fixture(scope="module")
def plain(point):
    """Of the model written out, with nothing computed again."""
    return derived(parts()[0], point)


WAYS = [(remat, scan) for remat in stack.REMAT for scan in (0, 1, 2) if remat != "none" or scan]


@pytest.mark.parametrize(("remat", "scan"), [pytest.param(*way, marks=[pytest.mark.slow] * (way[1] == 2)) for way in WAYS])
def test_every_way_gives_the_same_value_and_derivatives_in_both_modes(point, plain, remat, scan):
    graphdef, abstract = parts(remat=remat, scan=scan)
    assert jax.tree.map(jnp.shape, abstract) == jax.tree.map(jnp.shape, point[0])  # a run's checkpoints do not depend on it

    def close(mine, theirs):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)  # float32, four blocks deep

    jax.tree.map(close, derived(graphdef, point), plain)


@pytest.mark.parametrize("scan", [0, 1])
def test_what_is_computed_again_is_what_the_policy_says(point, scan):
    """products: none of them; full: a block's again, a third more, but for those that only its result needs."""
    cost = {remat: flops(counted(jax.grad(loss_of(parts(remat=remat, scan=scan)[0])), *point)) for remat in stack.REMAT}
    assert cost["products"] == cost["none"]
    assert 1.2 < cost["full"] / cost["none"] <= 4 / 3


@pytest.mark.slow
def test_in_a_loop_the_less_is_kept_the_smaller_is_the_step():
    """Without one XLA's CPU backend may move what is computed again to where it was computed first."""
    x, t = jax.ShapeDtypeStruct((8, 16, 16, 1), "float32"), jax.ShapeDtypeStruct((8,), "float32")
    sizes = {}
    for remat in stack.REMAT:
        graphdef, abstract = parts(remat=remat, scan=1, width=64, depth=8, shape=(16, 16, 1))
        sizes[remat] = jax.jit(jax.grad(loss_of(graphdef))).lower(abstract, x, t).compile().memory_analysis().temp_size_in_bytes
    assert sizes["full"] < 0.5 * sizes["none"]
    assert sizes["full"] < sizes["products"] < sizes["none"]


def test_a_loop_traces_its_blocks_once_whatever_their_number():
    def blocks(scan, depth):
        graphdef, abstract = parts(scan=scan, depth=depth)
        x, t = jax.ShapeDtypeStruct((2, 4, 4, 1), "float32"), jax.ShapeDtypeStruct((2,), "float32")
        return str(jax.make_jaxpr(loss_of(graphdef))(abstract, x, t)).count("dot_general")

    assert blocks(0, 8) - blocks(0, 4) == 4 * 10  # q k v out, gate up down, modulation, scores, mixing
    assert blocks(1, 8) == blocks(1, 4) == blocks(0, 1)
    assert blocks(2, 8) == blocks(0, 2)


@pytest.mark.slow
def test_on_a_cpu_no_block_adds_up_all_later_blocks_gradients_again():
    """The most arrays of the residual stream's shape that one loop of the compiled gradient reads: the same whatever the depth."""

    def most_read(depth):
        graphdef, abstract = parts(depth=depth, width=32, shape=(16, 16, 1))
        x, t = jax.ShapeDtypeStruct((2, 16, 16, 1), "float32"), jax.ShapeDtypeStruct((2,), "float32")
        text = jax.jit(jax.grad(loss_of(graphdef))).lower(abstract, x, t).compile().as_text()
        stream = r"f32\[2,64,32\]\S* parameter\("
        return max(len(re.findall(stream, computation)) for computation in text.split("\n\n") if "ENTRY" not in computation)

    assert most_read(8) == most_read(4) > 0


@pytest.mark.parametrize("scan", [-1, 3, 5])
def test_groups_that_do_not_divide_the_blocks_are_refused(scan):
    with pytest.raises(UserError, match=f"config.scan={scan} must be 0"):
        parts(scan=scan)


def test_blocks_that_do_not_repeat_are_refused():
    blocks = [nnx.Linear(2, 2, rngs=nnx.Rngs(0)), nnx.Linear(2, 2, use_bias=False, rngs=nnx.Rngs(0))] * 2
    x = jnp.ones((1, 2))
    np.testing.assert_allclose(stack.apply(blocks, x, remat="none", scan=2), stack.apply(blocks, x, remat="none", scan=0), rtol=1e-5)
    with pytest.raises(UserError, match="do not repeat after 1"):
        stack.apply(blocks, x, remat="none", scan=1)


def test_an_unknown_policy_names_the_known_ones():
    with pytest.raises(UserError, match="full, none, products"):
        stack.check("all", 0, 4)


@pytest.mark.parametrize(("key", "value"), [("remat", "full"), ("scan", 1), ("attention", "plain")])
def test_a_model_without_blocks_refuses_what_is_said_about_them(key, value):
    config = config_lib.base(data=dict(name="sine"), model=dict(name="mlp"), objective=dict(name="regression"), **{key: value})
    with pytest.raises(UserError, match=f"config.{key}={value}: model 'mlp' has no such choice"):
        build.parts(config, sine(num=8, held_out=4).codec)
