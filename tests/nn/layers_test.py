import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tinygen.nn import feed_forward, layers


@pytest.fixture
def normal():
    """Draws float32 arrays; every test begins with the same ones."""
    rng = np.random.default_rng(0)
    return lambda *shape: rng.normal(size=shape).astype(np.float32)


def rngs():
    return nnx.Rngs(0)


@pytest.fixture
def filled(normal):
    """Draws every parameter of a module anew, so that no zero or one hides what it does."""

    def fill(module):
        for leaf in jax.tree.leaves(nnx.state(module, nnx.Param), is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)):
            leaf[...] = jnp.asarray(normal(*leaf.shape))
        return module

    return fill


# Layers of products


def test_linear_acts_on_the_last_axis_and_starts_from_xavier_weights_or_zero(normal, filled):
    linear = layers.Linear(48, 32, precision="float32", rngs=rngs())
    kernel = np.asarray(linear.kernel[...])
    bound = np.sqrt(6 / 80)
    assert np.abs(kernel).max() <= bound
    # 1,536 uniform values: their standard deviation is known to about 1.1 % (the kurtosis of a uniform law is 1.8)
    assert kernel.std() == pytest.approx(bound / np.sqrt(3), rel=0.04)
    assert not linear.bias[...].any()
    filled(linear)
    x = normal(2, 3, 48)
    np.testing.assert_allclose(linear(x), x @ np.asarray(linear.kernel[...]) + np.asarray(linear.bias[...]), rtol=1e-4, atol=1e-4)
    assert not layers.Linear(4, 4, precision="float32", rngs=rngs(), zero=True).kernel[...].any()


def test_an_embedding_starts_at_a_spread_of_a_fiftieth_and_gives_its_rows():
    table = layers.Embedding(100, 64, rngs=rngs())
    assert float(table.embedding[...].std()) == pytest.approx(0.02, rel=0.04)  # 6,400 values: known to 0.9 %
    np.testing.assert_array_equal(table(jnp.array([7, 7, 3])), table.embedding[...][np.array([7, 7, 3])])


# Norms


def test_rms_norm_divides_by_the_root_mean_square_and_scales(normal, filled):
    norm, x = filled(layers.RMSNorm(16)), 3 * normal(4, 5, 16)
    want = x / np.sqrt((x**2).mean(-1, keepdims=True)) * np.asarray(norm.scale[...])
    np.testing.assert_allclose(norm(x), want, rtol=1e-5)  # ε = 1e-6 beside a mean square of 9


def test_layer_norm_gives_zero_mean_and_unit_variance_far_from_zero_too(normal):
    x = 100 + 5 * normal(4, 64)
    y = np.asarray(layers.layer_norm(x))
    np.testing.assert_allclose(y.mean(-1), 0, atol=1e-5)
    np.testing.assert_allclose(y.std(-1), 1, atol=1e-5)
    np.testing.assert_allclose(y, (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True), atol=1e-4)


@pytest.mark.parametrize("norm", [layers.layer_norm, lambda x: layers.LayerNorm(64)(x), lambda x: layers.RMSNorm(64)(x)])
def test_norms_of_bfloat16_are_computed_in_float32(norm, normal):
    """Rows far from zero, whose mean and squares would lose their digits."""
    x = jnp.asarray(100 + 5 * normal(4, 64), jnp.bfloat16)
    y = norm(x)
    assert y.dtype == jnp.float32
    np.testing.assert_array_equal(y, norm(x.astype(jnp.float32)))


@pytest.mark.parametrize("norm", [layers.layer_norm, lambda x: layers.RMSNorm(8)(x)])
def test_norms_of_a_constant_row_are_finite_and_so_are_their_gradients(norm):
    for x in (jnp.zeros((1, 8)), jnp.full((1, 8), 3.0)):
        assert np.isfinite(norm(x)).all()
        assert np.isfinite(jax.grad(lambda x: norm(x).sum())(x)).all()


def test_modulation_by_zero_is_the_identity_and_acts_an_example(normal):
    x, shift, scale = normal(2, 3, 4), normal(2, 4), normal(2, 4)
    np.testing.assert_array_equal(layers.modulate(x, np.zeros((2, 4)), np.zeros((2, 4))), x)
    y = np.asarray(layers.modulate(x, shift, scale))
    for example in range(2):
        np.testing.assert_allclose(y[example], x[example] * (1 + scale[example]) + shift[example], rtol=1e-6)


# Feed-forward


@pytest.mark.parametrize(
    ("width", "ratio", "multiple", "hidden"),
    [(96, 4.0, 64, 256), (96, 4.0, 256, 256), (128, 4.0, 64, 384), (1152, 2.25, 64, 1728), (512, 4.0, 256, 1536), (32, 0.5, 8, 16)],
)
def test_swiglus_hidden_size_is_two_thirds_of_the_ratio_rounded_up(width, ratio, multiple, hidden):
    assert feed_forward.swiglu_hidden(width, ratio, multiple) == hidden
    assert hidden % multiple == 0
    assert 0 <= hidden - 2 / 3 * ratio * width < multiple


def test_swiglu_is_its_formula(normal, filled):
    layer, x = filled(feed_forward.SwiGLU(6, 10, precision="float32", rngs=rngs())), normal(2, 3, 6)
    weights = {
        name: (np.asarray(getattr(layer, name).kernel[...], np.float64), np.asarray(getattr(layer, name).bias[...]))
        for name in ("gate", "up", "down")
    }
    gate, up = (x @ weights[name][0] + weights[name][1] for name in ("gate", "up"))
    want = (gate / (1 + np.exp(-gate)) * up) @ weights["down"][0] + weights["down"][1]
    np.testing.assert_allclose(layer(x), want, rtol=1e-4, atol=1e-4)  # float32, two products deep


# Positions and time


def test_sincos_is_its_formula():
    position, width = np.array([0.0, 1.0, 2.5, 700.0]), 8
    frequencies = 10_000.0 ** -(np.arange(4) / 4)
    want = [[f(p * w) for f in (np.sin, np.cos) for w in frequencies] for p in position]
    # an angle of 700 in float32 is good to 3e-5
    np.testing.assert_allclose(layers.sincos(position, width), want, atol=1e-4)


def test_every_place_of_a_grid_has_its_own_position_half_for_the_row_half_for_the_column():
    table = np.asarray(layers.sincos_2d(3, 5, 16)).reshape(3, 5, 16)
    assert len(np.unique(table.reshape(15, 16).round(4), axis=0)) == 15
    assert (table[:, :, :8] == table[:, :1, :8]).all()
    assert (table[:, :, 8:] == table[:1, :, 8:]).all()
    np.testing.assert_array_equal(table[:, 0, :8], layers.sincos(np.arange(3), 8))
    np.testing.assert_array_equal(table[0, :, 8:], layers.sincos(np.arange(5), 8))


def test_the_time_embedding_tells_close_times_apart():
    embed = layers.TimeEmbedding(8, 1000.0, rngs=rngs())
    a, b, c = np.asarray(embed(jnp.array([0.5, 0.501, 0.9])))
    assert np.abs(a - b).max() > 1e-2
    assert np.abs(a - c).max() > 1e-2


def test_the_time_embedding_is_smooth_in_edm_s_time_where_noise_levels_differ_by_a_thousandth():
    """Levels from 0.002 to 80 a thousandth apart, told as ln σ / 4: each step is that of the derivative, to 1 %. With products of
    operands in bfloat16 it is off by several times its own length, and leads backwards at one step in ten.
    """
    embed = layers.TimeEmbedding(64, 1.0, rngs=rngs())
    for sigma in np.geomspace(0.002, 80, 20):
        t = jnp.log(sigma * jnp.array([1.0, 1.001], jnp.float32)) / 4
        _, rate = jax.jvp(embed, (t[:1],), (jnp.ones(1),))
        expected = np.asarray(rate[0] * (t[1] - t[0]))
        step = np.asarray(embed(t)[1] - embed(t)[0])
        assert np.linalg.norm(step - expected) < 0.01 * np.linalg.norm(expected)


# Patches


@pytest.mark.parametrize(("shape", "patch"), [((4, 8, 3), 2), ((6, 3, 1), 3), ((4, 4, 4), 1), ((2, 6, 2), 2), ((5, 7, 2), 3)])
def test_unpatchify_is_the_inverse_of_patchify(normal, shape, patch):
    x = normal(3, *shape)
    tokens = layers.patchify(x, patch)
    assert tokens.shape == (3, -(-shape[0] // patch) * -(-shape[1] // patch), patch**2 * shape[2])
    np.testing.assert_array_equal(layers.unpatchify(tokens, shape, patch), x)


def test_patches_are_the_images_tiles_row_by_row(normal):
    x = normal(1, 4, 6, 2)
    tokens = layers.patchify(x, 2)[0]
    tiles = [x[0, top : top + 2, left : left + 2] for top in (0, 2) for left in (0, 2, 4)]
    np.testing.assert_array_equal(tokens, [tile.ravel() for tile in tiles])


def test_without_a_mesh_a_pin_does_nothing():
    x = jnp.ones((2, 3))
    assert layers.pin(x, "batch", None) is x
