"""The KL autoencoder as a model; tests/pretrained/stable_diffusion_vae_test.py compares it with diffusers'."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tinygen import build
from tinygen import config as config_lib
from tinygen.distributed.mesh import Layout, make_mesh
from tinygen.errors import UserError
from tinygen.models.autoencoder import HIGHEST, LOWEST, Autoencoder
from tinygen.train_step import graph_of, merge, split

SETTINGS = dict(
    shape=(8, 8, 1), widths=(8, 16), depth=1, latent=3, groups=4, precision="float32", attention="auto", needs_jvp=False,
)  # fmt: skip
X = np.random.default_rng(0).uniform(-1, 1, (8, 8, 8, 1)).astype(np.float32)


def create(rngs=None, **changes):
    return Autoencoder(**(SETTINGS | changes), rngs=rngs or nnx.Rngs(0))


@pytest.mark.parametrize(("shape", "widths", "side"), [((8, 8, 1), (8,), 8), ((8, 12, 3), (8, 8), (4, 6)), ((16, 16, 3), (8, 16, 24), 4)])
def test_every_stage_but_the_last_halves_the_sides_and_decoding_doubles_them_again(shape, widths, side):
    def both(x):
        model = create(shape=shape, widths=widths)
        assert model.factor == shape[0] // h
        mean, deviation = model.encode(x)
        return mean, deviation, model.decode(mean)

    h, w = np.broadcast_to(side, 2)
    mean, deviation, decoded = jax.eval_shape(both, np.zeros((2, *shape), np.float32))
    assert mean.shape == deviation.shape == (2, h, w, 3)
    assert decoded.shape == (2, *shape)


def test_images_of_another_size_are_taken_too_where_the_factor_divides_it():
    def decoded(x):
        return create()(x)[0]

    assert jax.eval_shape(decoded, np.zeros((1, 12, 6, 1), np.float32)).shape == (1, 12, 6, 1)
    with pytest.raises(UserError, match="images of 8x9: this autoencoder needs sides that are multiples of 2"):
        jax.eval_shape(decoded, np.zeros((1, 8, 9, 1), np.float32))


def test_a_latent_is_the_mean_and_with_a_stream_the_mean_plus_noise_of_the_deviation():
    model = create()
    decoded, mean, deviation = model(X)
    np.testing.assert_array_equal(decoded, model.decode(mean))
    noise = jax.random.normal(nnx.Rngs(posterior=jax.random.key(1)).posterior(), mean.shape)
    drawn, *_ = model(X, rngs=nnx.Rngs(posterior=jax.random.key(1)))
    np.testing.assert_allclose(drawn, model.decode(mean + deviation * noise), rtol=1e-5, atol=1e-5)
    other, *_ = model(X, rngs=nnx.Rngs(posterior=jax.random.key(2)))
    assert np.abs(drawn - other).max() > 1e-2


@pytest.mark.parametrize(("far", "bound"), [(-100.0, LOWEST), (100.0, HIGHEST), (-3.0, -3.0)])
def test_the_deviation_is_half_the_exponent_of_a_log_variance_that_is_cut_off(far, bound):
    model = create()
    model.quant.kernel[...], model.quant.bias[...] = jnp.zeros((1, 1, 6, 6)), jnp.array([0.0, 0, 0, far, far, far])
    np.testing.assert_allclose(model.encode(X)[1], np.exp(bound / 2), rtol=1e-5)


def test_even_sides_are_padded_below_and_on_the_right_where_they_are_halved():
    resample = create().encoder.stages[0].resample
    resample.kernel[...] = jnp.zeros((3, 3, 8, 8)).at[0, 0].set(jnp.eye(8))  # takes the pixel above and on the left of the middle
    x = np.random.default_rng(0).normal(size=(1, 6, 6, 8)).astype(np.float32)
    np.testing.assert_allclose(resample(x), x[:, ::2, ::2], rtol=1e-6)


def test_attention_lets_every_place_see_every_other():
    middle = create(widths=(8, 8)).encoder.middle
    x = np.random.default_rng(0).normal(size=(1, 16, 16, 8)).astype(np.float32)
    seen = jax.grad(lambda x: middle(x)[0, 0, 0].sum())(x)[0, -1, -1]  # ten pixels beyond what four convolutions reach
    assert np.abs(seen).max() > 1e-6


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(depth=0), r"config\.model\.depth=0"),
        (dict(latent=0), r"config\.model\.latent=0"),
        (dict(groups=0), r"config\.model\.groups=0"),
        (dict(widths=()), r"config\.model\.widths=\(\)"),
        (dict(widths=(8, 6)), r"config\.model\.widths=\(8, 6\) .* multiples of config\.model\.groups=4"),
        (dict(shape=(1,)), "reads images"),
        (dict(shape=(28, 28, 1), widths=(8,) * 4), "images of 28x28: .* multiples of 8"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes, said):
    with pytest.raises(UserError, match=said):
        create(**changes)


def test_a_mesh_that_splits_heads_is_refused_since_there_is_one(machine_of):
    machine_of(2)
    config = config_lib.base(
        data=dict(name="digits8"), model=dict(name="autoencoder", widths=(8, 8)), objective=dict(name="autoencoder"), mesh=dict(tensor=2)
    )
    with pytest.raises(UserError, match=r"config\.mesh\.tensor=2 splits .* model 'autoencoder' has 1: leave it at 1"):
        build.parts(config, build.data_source(config).codec)


def test_gradients_hardly_depend_on_the_mesh():
    layout = Layout(make_mesh(dict(data=2, fsdp=4, tensor=1)), Autoencoder.SHARDING, min_size=64)
    graph, params = graph_of(create), split(create())[1]
    placed = jax.device_put(params, layout.shardings(params))
    assert not placed["decoder"]["middle"]["first"]["second"]["kernel"].sharding.is_fully_replicated

    def value(params, x):
        decoded, mean, deviation = merge(graph, params, {})(x, rngs=nnx.Rngs(posterior=jax.random.key(0)))
        return jnp.mean(jnp.square(decoded - x)) + jnp.mean(jnp.square(mean) + deviation)

    with jax.set_mesh(layout.mesh):
        spread = jax.jit(jax.grad(value))(placed, layout.share({"x": X})["x"])
    alone = jax.jit(jax.grad(value))(params, X)
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(alone))
    for ours, one in zip(jax.tree.leaves(spread), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(ours, one, rtol=1e-4, atol=1e-5 * largest)  # sums in another order
