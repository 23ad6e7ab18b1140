"""Depthwise convolution, as XLA has it and as products."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tinygen.errors import UserError
from tinygen.nn import depthwise
from tinygen.nn.convolution import convolve
from tinygen.nn.depthwise import Depthwise, by_products

# one tile; several along each side, that fill them or not; a side shorter than the kernel; in one dimension likewise
PLACES = [(14, 14), (4, 6), (32, 16), (33, 20), (3, 40), (9,), (64,), (65,), (200,), (2,)]


def drawn(places, side, features=3, seed=0):
    draw = np.random.default_rng(seed)
    return draw.normal(size=(2, *places, features)), draw.normal(size=(*[side] * len(places), features))


def by_loops(x, kernel):
    """The definition, tap by tap, in NumPy."""
    places, half = x.shape[1:-1], kernel.shape[0] // 2
    padded = np.pad(x, [(0, 0), *[(half, half)] * len(places), (0, 0)])
    total = np.zeros_like(x)
    for tap in np.ndindex(kernel.shape[:-1]):
        window = tuple(slice(offset, offset + size) for offset, size in zip(tap, places, strict=True))
        total += padded[:, *window] * kernel[tap]
    return total


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("function", [convolve, by_products])
def test_both_methods_are_the_definition(function, places):
    with jax.enable_x64(True):
        for side in (1, 3, 7):
            x, kernel = drawn(places, side)
            np.testing.assert_allclose(function(jnp.asarray(x), jnp.asarray(kernel), precision="float32"), by_loops(x, kernel), atol=1e-12)


@pytest.mark.parametrize("places", [(6, 5), (17, 4), (70,)])
def test_both_methods_have_the_same_derivatives_in_both_modes(places):
    x, kernel = drawn(places, 3)
    dx, dkernel = drawn(places, 3, seed=1)

    def derivatives(function):
        def apply(x, kernel):
            return jnp.sin(function(x, kernel, precision="float32"))

        pushed = jax.jvp(apply, (x, kernel), (dx, dkernel))[1]
        pulled = jax.grad(lambda x, kernel: jnp.sum(apply(x, kernel) * dx), (0, 1))(x, kernel)
        mixed = jax.grad(lambda kernel: jnp.sum(jax.jvp(lambda x: apply(x, kernel), (x,), (dx,))[1] ** 2))(kernel)
        return pushed, pulled, mixed

    with jax.enable_x64(True):
        x, kernel, dx, dkernel = (jnp.asarray(each) for each in (x, kernel, dx, dkernel))
        for a, b in zip(*(jax.tree.leaves(derivatives(each)) for each in (convolve, by_products)), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-11)


@pytest.mark.parametrize("function", [convolve, by_products])
def test_lower_precision_is_of_bfloat16_operands(function):
    x, kernel = (jnp.asarray(each, jnp.float32) for each in drawn((14, 14), 7))
    exact = by_loops(*(np.asarray(each.astype(jnp.bfloat16), np.float64) for each in (x, kernel)))
    rounded = np.asarray(function(x, kernel, precision="bfloat16"), np.float64)
    assert rounded.dtype == np.float64
    # by convolution the result, of up to 40, is rounded too, to 8 bits
    assert np.abs(rounded - exact).max() < (0.07 if function is convolve else 1e-4)
    assert np.abs(rounded - by_loops(np.asarray(x), np.asarray(kernel))).max() > 1e-3


def hlo(method):
    layer = Depthwise(4, 7, 2, method=method, precision="float32", rngs=nnx.Rngs(0))
    return jax.jit(jax.grad(lambda x: jnp.sum(layer(x) ** 2))).lower(jnp.zeros((2, 14, 14, 4))).as_text()


def test_with_products_the_program_holds_no_grouped_convolution():
    assert "convolution" not in hlo("products")
    assert "feature_group_count = 4" in hlo("convolution")


def test_a_cpu_takes_products_and_other_devices_convolution(monkeypatch):
    assert hlo("auto") == hlo("products")
    monkeypatch.setattr(depthwise.jax, "default_backend", lambda: "gpu")
    assert Depthwise(4, 7, 2, method="auto", precision="float32", rngs=nnx.Rngs(0)).method == "convolution"


def test_a_method_that_there_is_not_is_named():
    with pytest.raises(UserError, match="did you mean 'products'"):
        Depthwise(4, 7, 2, method="product", precision="float32", rngs=nnx.Rngs(0))
