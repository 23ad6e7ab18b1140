import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.test_util import check_grads
from scipy import signal

from tinygen.nn.convolution import Convolution, GroupNorm, convolve

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(2, 7, 6, 3)).astype(np.float32)
KERNEL = DRAW.normal(size=(3, 3, 3, 4)).astype(np.float32)


def test_it_is_scipy_s_correlation_padded_with_zeros():
    want = np.stack([[signal.correlate2d(X[b, ..., c], KERNEL[..., c, d], "same") for c in range(3) for d in range(4)] for b in range(2)])
    want = want.reshape(2, 3, 4, 7, 6).sum(1).transpose(0, 2, 3, 1)
    np.testing.assert_allclose(convolve(X, KERNEL, 1, precision="float32"), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("stride", "shape"), [(1, (2, 7, 6, 4)), (2, (2, 4, 3, 4)), (3, (2, 3, 2, 4))])
def test_a_stride_divides_height_and_width_rounded_up(stride, shape):
    assert convolve(X, KERNEL, stride, precision="float32").shape == shape


def test_below_float32_operands_and_result_are_rounded_to_bfloat16():
    rounded = [np.asarray(jnp.asarray(each, jnp.bfloat16), np.float32) for each in (X, KERNEL)]
    got = convolve(X, KERNEL, 1, precision="bfloat16")
    exact = convolve(*rounded, 1, precision="float32")
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, exact, rtol=2**-8, atol=2**-8)  # half a unit in the last of 8 bits, of partial sums too
    assert np.abs(got - convolve(X, KERNEL, 1, precision="float32")).max() > 1e-3


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_gradients_of_kernel_and_input_are_float32_and_those_of_finite_differences(precision):
    def function(x, kernel):
        return convolve(x, kernel, 2, precision=precision)

    if precision == "float32":
        check_grads(function, (X, KERNEL), order=1, modes=("rev",), eps=1e-2, atol=2e-2, rtol=2e-2)
    assert {g.dtype for g in jax.grad(lambda *args: function(*args).sum(), (0, 1))(X, KERNEL)} == {jnp.dtype("float32")}


def test_a_layer_keeps_the_variance_of_rectified_inputs():
    layer = Convolution(64, 64, precision="float32", rngs=nnx.Rngs(0))
    x = np.maximum(DRAW.normal(size=(2, 16, 16, 64)), 0).astype(np.float32)  # mean square 1/2
    inside = np.asarray(layer(x))[:, 1:-1, 1:-1]  # without the zeros around
    assert np.mean(inside**2) == pytest.approx(1.0, rel=0.1)  # He: 2 / fan-in times fan-in halves


def test_each_example_s_groups_have_zero_mean_and_unit_variance():
    norm = GroupNorm(6, 3)
    x = DRAW.normal(5, 3, (2, 4, 4, 6)).astype(np.float32)
    groups = np.asarray(norm(x)).reshape(2, 16, 3, 2)
    np.testing.assert_allclose(groups.mean((1, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(groups.std((1, 3)), 1, rtol=1e-5)
    np.testing.assert_allclose(norm(x)[:1], norm(x[:1]), rtol=1e-5, atol=1e-5)  # an example by itself


def test_scale_and_bias_are_a_feature_s_own():
    norm = GroupNorm(4, 2)
    plain = np.asarray(norm(X[..., :1] * np.arange(1, 5, dtype=np.float32)))
    norm.scale[...], norm.bias[...] = jnp.arange(4.0), jnp.array([0.0, 0, 0, 7])
    changed = np.asarray(norm(X[..., :1] * np.arange(1, 5, dtype=np.float32)))
    np.testing.assert_allclose(changed, plain * np.arange(4) + [0, 0, 0, 7], rtol=1e-5, atol=1e-5)
