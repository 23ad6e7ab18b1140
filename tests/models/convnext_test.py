import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_convnext
from flax import nnx
from small_microdit import drawn

from tinygen.errors import UserError
from tinygen.models.convnext import GRN, Block
from tinygen.nn import layers

X = np.random.default_rng(0).normal(size=(4, 8, 8, 3)).astype(np.float32)
T = np.array([0.1, 0.4, 0.7, 0.9], np.float32)
COND = {"label": np.array([0, 1, 2, 0], np.int32), "keep": np.array([True, True, True, False])}


def model(**changes):
    """With weights of which none is zero."""
    graph, state = small_convnext.abstract(**changes)
    return nnx.merge(graph, drawn(state))


@pytest.mark.parametrize(
    ("shape", "widths", "depths"),
    [((9, 7, 3), (8, 12), (1, 2)), ((8, 12, 1), (8,), (2,)), ((13, 2), (8, 8), (1, 1))],
)
def test_a_prediction_has_the_shape_of_what_it_is_made_of_and_is_zero_at_first(shape, widths, depths):
    def predict(x):
        fresh = small_convnext.make(shape=shape, widths=widths, depths=depths)
        return fresh(x, jnp.array([0.2, 0.5]), cond={"label": jnp.array([0, 1])})

    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, *shape)))
    out = jax.jit(predict)(x)
    assert out.pred.shape == x.shape
    assert out.head is None
    np.testing.assert_array_equal(out.pred, 0)


def test_a_block_is_the_identity_at_first():
    block = Block(8, 16, 7, 2, 4, depthwise="auto", precision="float32", rngs=nnx.Rngs(0))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 6, 6, 8)), jnp.float32)
    np.testing.assert_array_equal(block(x, jnp.ones((2, 16))), x)


# GRN


def test_grn_is_the_identity_at_first_and_then_its_formula():
    grn = GRN(5)
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32)
    np.testing.assert_array_equal(grn(jnp.asarray(x)), x)
    scale, bias = np.random.default_rng(1).normal(size=(2, 5)).astype(np.float32)
    grn.scale[...], grn.bias[...] = scale, bias
    norm = np.sqrt((x.astype(np.float64) ** 2).sum((1, 2), keepdims=True))
    np.testing.assert_allclose(grn(jnp.asarray(x)), x + scale * x * norm / norm.mean(-1, keepdims=True) + bias, atol=1e-5)


def test_grn_has_a_finite_gradient_where_a_feature_is_dead():
    grn = GRN(3)
    grn.scale[...] = jnp.ones(3)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 4, 4, 3)), jnp.float32).at[..., 1].set(0)
    for input in (x, jnp.zeros_like(x)):
        assert np.isfinite(jax.grad(lambda x: jnp.sum(grn(x) ** 2))(input)).all()


# An independent implementation


def by_hand(net, x, c, precision=np.float64):
    """The whole network in NumPy, from its weights and the condition's features."""

    def get(leaf):
        return np.asarray(leaf[...], precision)

    def linear(layer, x):
        return x @ get(layer.kernel) + get(layer.bias)

    def norm(x):
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)

    def film(x, layer):
        scale, shift = np.split(linear(layer, c)[:, None, None], 2, -1)
        return x * (1 + scale) + shift

    def gelu(x):
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    def conv(layer, x):
        kernel = get(layer.kernel)
        half, (H, W) = kernel.shape[0] // 2, x.shape[1:3]
        padded = np.pad(x, ((0, 0), (half, half), (half, half), (0, 0)))
        return sum(padded[:, i : i + H, j : j + W] * kernel[i, j] for i in range(2 * half + 1) for j in range(2 * half + 1)) + get(
            layer.bias
        )

    def block(each, x):
        h = gelu(linear(each.up, film(norm(conv(each.depthwise, x)), each.film)))
        size = np.sqrt((h**2).sum((1, 2), keepdims=True) + 1e-6)
        h = h + get(each.grn.scale) * h * size / (size.mean(-1, keepdims=True) + 1e-6) + get(each.grn.bias)
        return x + linear(each.down, h)

    def pooled(x):  # every 2x2 places side by side
        return np.concatenate([x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)], -1)

    def unpooled(x):
        B, H, W, C = x.shape
        out = np.zeros((B, 2 * H, 2 * W, C // 4))
        for index, (i, j) in enumerate(np.ndindex(2, 2)):
            out[:, i::2, j::2] = x[..., index * C // 4 : (index + 1) * C // 4]
        return out

    z = linear(net.embed, pooled(x))
    for each in net.blocks:
        z = block(each, z)
    low = linear(net.halve, pooled(z))
    for each in net.inner:
        low = block(each, low)
    z = z + unpooled(linear(net.double, low))
    for each in net.outer:
        z = block(each, z)
    return unpooled(linear(net.final, film(norm(z), net.final_film)))


def test_the_network_is_its_description():
    with jax.enable_x64(True):
        graph, state = small_convnext.abstract()
        net = nnx.merge(graph, drawn(state, np.float64))
        x, t = X.astype(np.float64), T.astype(np.float64)
        c = net.time(t) + net.label_embedding(COND, 4)
        ours = net(jnp.asarray(x), jnp.asarray(t), cond=COND).pred
        np.testing.assert_allclose(ours, by_hand(net, x, np.asarray(jax.nn.silu(c))), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", [(2, 6, 4, 3), (2, 12, 5), (2, 5, 4, 3), (2, 7, 1)])
def test_places_are_gathered_by_patches_and_spread_again(shape):
    x = np.random.default_rng(0).normal(size=shape)
    small = layers.space_to_depth(jnp.asarray(x), 2)
    assert small.shape == (shape[0], *(-(-size // 2) for size in shape[1:-1]), 2 ** (len(shape) - 2) * shape[-1])
    np.testing.assert_array_equal(small[:, 0, ..., 0].reshape(-1)[0], np.float32(x.reshape(-1)[0]))
    np.testing.assert_array_equal(layers.depth_to_space(small, 2, shape[1:-1]), np.float32(x))
    if len(shape) == 4:
        np.testing.assert_array_equal(small.reshape(2, 6, -1), layers.patchify(jnp.asarray(x), 2))


# Conditions


def test_the_null_takes_the_place_of_a_dropped_label():
    net = model()
    seen = net(X, T, cond=COND).pred
    other = net(X, T, cond={**COND, "label": (COND["label"] + 1) % 3}).pred
    changed = np.abs(seen - other).max((1, 2, 3)) > 1e-4
    np.testing.assert_array_equal(changed, COND["keep"])
    np.testing.assert_allclose(net(X, T, cond={}).pred[3], seen[3], atol=1e-5)


def test_the_span_and_the_scalars_of_guidance_are_told_apart():
    net = model(inputs=("h", "omega", "t_lo", "t_hi"))
    given = {**COND, "omega": np.full(4, 2.0, np.float32), "t_lo": np.full(4, 0.2, np.float32), "t_hi": np.full(4, 0.8, np.float32)}
    first = net(X, T, T - 0.05, cond=given).pred
    for change in (dict(omega=np.full(4, 3.0, np.float32)), dict(t_lo=np.full(4, 0.8, np.float32)), dict(t_hi=np.full(4, 0.2, np.float32))):
        assert np.abs(net(X, T, T - 0.05, cond=given | change).pred - first).max() > 1e-3
    assert np.abs(net(X, T, T, cond=given).pred - first).max() > 1e-3
    with pytest.raises(ValueError, match="needs r: it predicts an average velocity"):
        net(X, T, cond=given)
    with pytest.raises(ValueError, match="takes no r: it predicts an instantaneous velocity"):
        model()(X, T, T, cond=COND)


def test_a_second_prediction_has_weights_of_its_own():
    out = model(head=True)(X, T, cond=COND)
    assert out.head.shape == X.shape
    assert np.abs(out.head - out.pred).max() > 1e-2
    np.testing.assert_array_equal(small_convnext.make(head=True)(X, T, cond=COND).head, 0)


def test_what_the_backward_pass_computes_again_changes_nothing():
    def gradient(**changes):
        graph, state = small_convnext.abstract(**changes)
        loss = jax.jit(jax.grad(lambda state: jnp.sum(nnx.merge(graph, state)(X, T, cond=COND).pred ** 2)))
        return loss(drawn(state))

    for a, b in zip(*(jax.tree.leaves(gradient(remat=remat)) for remat in ("none", "full")), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * np.abs(a).max())


# Mistakes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(shape=(9, 1, 3)), "config.model.patch=2 is larger than a side of the examples, which are 9x1"),
        (dict(shape=(8,)), "takes images"),
        (dict(widths=(8, 8, 8)), "one value per resolution"),
        (dict(depths=(2,)), "one value per resolution"),
        (dict(depths=(2, 0)), "depths"),
        (dict(side=4), "odd"),
        (dict(patch=0), "patch=0"),
        (dict(expansion=0), "expansion"),
        (dict(condition_width=-1), "condition_width"),
        (dict(depthwise="fft"), "depthwise"),
        (dict(remat="all"), "config.remat"),
    ],
)
def test_sizes_that_cannot_be_are_refused(changes, said):
    with pytest.raises(UserError, match=said) as caught:
        small_convnext.abstract(**changes)
    assert "\n" not in str(caught.value)
