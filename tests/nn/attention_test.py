import re
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tinygen.distributed.mesh import make_mesh
from tinygen.errors import UserError
from tinygen.nn import attention as module
from tinygen.nn.attention import Attention, attention
from tinygen.nn.flops import flops, products

SHAPES = [(5, 5), (24, 24), (21, 30), (30, 13), (1, 9)]  # of queries and keys, in blocks of 8
METHODS = ("plain", "blockwise")  # those that a CPU can compute


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 8)


def drawn(L, S, K=8, dtype=np.float32):
    """(q, k, v, segments) of two examples and three heads; some queries have a segment that no key has."""
    rng = np.random.default_rng(zlib.crc32(f"{L} {S} {K}".encode()))
    q, k, v = (rng.normal(size=(2, length, 3, K)).astype(dtype) for length in (L, S, S))
    return q, k, v, (rng.integers(0, 3, (2, L)).astype(np.int32), rng.integers(1, 3, (2, S)).astype(np.int32))


def reference(q, k, v, causal=False, segments=None):
    """One query at a time, in float64."""
    q, k, v = (np.asarray(each, np.float64) for each in (q, k, v))
    out = np.zeros(q.shape)
    for b, i, n in np.ndindex(q.shape[:3]):
        keys = [j for j in range(k.shape[1]) if (not causal or j <= i) and (segments is None or segments[0][b, i] == segments[1][b, j])]
        if keys:
            weights = np.exp(k[b, keys, n] @ q[b, i, n] / np.sqrt(q.shape[-1]))
            out[b, i, n] = weights / weights.sum() @ v[b, keys, n]
    return out


def loss_of(**how):
    return lambda *at: jnp.sum(jnp.sin(attention(*at, **how)))


def derivative(function, q, k, v, along):
    """Of `function` at (q, k, v) in the direction `along`, by central differences in float64."""
    ahead, behind = (function(*(x + step * d for x, d in zip((q, k, v), along, strict=True))) for step in (1e-5, -1e-5))
    return (ahead - behind) / 2e-5


@pytest.mark.parametrize("masked", [False, True], ids=["", "segments"])
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("lengths", SHAPES, ids=str)
def test_every_form_gives_what_its_formula_gives(lengths, method, causal, masked):
    q, k, v, segments = drawn(*lengths)
    segments = segments if masked else None
    got = jax.jit(lambda q, k, v: attention(q, k, v, causal=causal, segments=segments, precision="float32", method=method))(q, k, v)
    want = reference(q, k, v, causal, segments)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, want, atol=2e-6)  # float32 sums of up to 30 terms of size 1
    unseen = ~np.any(segments[0][:, :, None] == segments[1][:, None], -1) if masked else np.zeros((2, lengths[0]), bool)
    assert unseen.any() == masked or lengths[0] == 1
    np.testing.assert_array_equal(np.asarray(got)[unseen], 0)


@pytest.mark.parametrize("masked", [False, True], ids=["", "segments"])
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("method", METHODS)
def test_derivatives_in_both_modes_and_in_one_through_the_other_are_those_of_the_formula(method, causal, masked):
    with jax.enable_x64(True):
        q, k, v, segments = drawn(21, 30, dtype=np.float64)
        segments = segments if masked else None
        along = tuple(np.random.default_rng(1).normal(size=each.shape) for each in (q, k, v))

        how = dict(causal=causal, segments=segments, precision="float32")
        gradient_of = {each: jax.grad(loss_of(**how, method=each), argnums=(0, 1, 2)) for each in METHODS}

        @jax.jit
        def differentiated(*at):
            tangent = jax.jvp(lambda *at: attention(*at, **how, method=method, needs_jvp=True), at, along)[1]
            return tangent, *jax.jvp(gradient_of[method], at, along)

        tangent, gradient, curvature = differentiated(q, k, v)
        want = derivative(lambda *at: reference(*at, causal, segments), q, k, v, along)
        # Central differences: an error of step² = 1e-10 and of 1e-16 / step = 1e-11, times derivatives of size 1 to 10.
        np.testing.assert_allclose(tangent, want, atol=1e-8)
        slope = sum(np.vdot(g, d) for g, d in zip(gradient, along, strict=True))
        np.testing.assert_allclose(slope, np.sum(np.cos(reference(q, k, v, causal, segments)) * want), rtol=1e-8)
        of_plain = jax.jit(gradient_of["plain"])
        for i in range(3):
            np.testing.assert_allclose(curvature[i], derivative(lambda *at, i=i: of_plain(*at)[i], q, k, v, along), atol=1e-7)
            assert np.isfinite(gradient[i]).all()


@pytest.mark.parametrize("method", METHODS)
def test_large_scores_do_not_overflow_nor_does_a_first_block_that_is_not_seen(method):
    q = jnp.full((1, 20, 1, 4), 100.0)
    segments = (jnp.ones((1, 20), int), (jnp.arange(20) >= 10).astype(int)[None])
    mean = jax.jit(jax.value_and_grad(lambda q, seen: attention(q, q, q, segments=seen, precision="float32", method=method).mean()))
    for seen in (None, segments):
        value, gradient = mean(q, seen)
        np.testing.assert_allclose(value, 100.0, rtol=1e-6)
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("method", METHODS)
def test_bfloat16_rounds_operands_and_weights_and_nothing_else(method):
    q, k, v, _ = drawn(24, 24)
    got = attention(q, k, v, precision="bfloat16", method=method)
    exact = reference(q, k, v)
    # Operands are off by 2⁻⁹ of their size. Scores, of 8 terms, then by about 2⁻⁸·|q||k|/√8 (|q|, |k| < 5): 0.035; values reach about 3.
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, exact, atol=0.05)
    assert np.abs(got - exact).max() > 1e-4


def temporary(L, method):
    """Bytes that the compiled gradient needs besides arguments and results."""
    x = jax.ShapeDtypeStruct((1, L, 1, 8), jnp.float32)
    gradient = jax.grad(loss_of(precision="float32", method=method), argnums=(0, 1, 2))
    return jax.jit(gradient).lower(x, x, x).compile().memory_analysis().temp_size_in_bytes


def test_the_memory_of_blockwise_gradients_grows_with_the_length_and_that_of_plain_ones_with_its_square(monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 128)
    assert temporary(4096, "blockwise") < 2.5 * temporary(2048, "blockwise")
    assert temporary(4096, "plain") > 3.5 * temporary(2048, "plain")
    assert temporary(4096, "blockwise") < temporary(4096, "plain") / 10


def test_a_causal_mask_spares_blockwise_three_eighths_of_its_products():
    x = jax.ShapeDtypeStruct((1, 256, 1, 8), jnp.float32)
    whole, causal = (
        flops(products(lambda q, k, v, c=c: attention(q, k, v, causal=c, precision="float32", method="blockwise"), x, x, x))
        for c in (False, True)
    )
    assert causal == whole * 5 // 8


# On many devices and on GPUs


def test_blockwise_on_a_mesh_gives_the_same_and_sends_none_of_its_arrays():
    q, k, v, _ = drawn(24, 24)
    q, k, v = (np.concatenate([each, each[:, :, :1]], 2) for each in (q, k, v))  # four heads

    gradients = jax.value_and_grad(loss_of(causal=True, precision="float32", method="blockwise"), argnums=(0, 1, 2))
    alone = jax.jit(gradients)(q, k, v)
    mesh = make_mesh(dict(data=1, fsdp=2, tensor=2), jax.devices()[:4])
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("fsdp", None, "tensor"))
    with jax.set_mesh(mesh):
        placed = [jax.device_put(each, place) for each in (q, k, v)]
        program = jax.jit(gradients).lower(*placed).compile()
        split = program(*placed)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5), split, alone)
    assert all(leaf.sharding.is_equivalent_to(place, 4) for leaf in split[1])
    sent = re.findall(r"= (\S+) (all-\w+|collective-\w+|reduce-scatter)\(", program.as_text())
    assert set(sent) == {("f32[]", "all-reduce")}  # the loss, a number


def test_on_nvidia_gpus_cudnn_computes_forward_and_backward_passes(monkeypatch):
    monkeypatch.setattr(module, "platform", lambda: "cuda")
    # JAX asks the library for its version, which is not installed here.
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91000)
    x = jax.ShapeDtypeStruct((2, 16, 4, 64), jnp.float32)

    def calls(function):
        return set(re.findall(r"__cudnn\$\w+", jax.jit(function).trace(x, x, x).lower(lowering_platforms=("cuda",)).as_text()))

    loss = loss_of(causal=True, precision="bfloat16")
    assert calls(loss) == {"__cudnn$fmhaSoftmax"}
    assert calls(jax.grad(loss, argnums=(0, 1, 2))) == {"__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"}
    with pytest.raises(UserError, match="no segments"):
        attention(*(jnp.zeros((1, 4, 1, 8)),) * 3, segments=(jnp.zeros((1, 4), int),) * 2, precision="bfloat16", method="cudnn")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("qk_norm", [False, True])
def test_the_attention_layer_splits_its_features_into_heads(qk_norm, method):
    rng = np.random.default_rng(0)
    layer = Attention(12, 3, 4, qk_norm=qk_norm, precision="float32", attention=method, needs_jvp=False, rngs=nnx.Rngs(0))
    for leaf in jax.tree.leaves(nnx.state(layer, nnx.Param), is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)):
        leaf[...] = jnp.asarray(rng.normal(size=leaf.shape) / (4 if leaf.ndim == 2 else 1), jnp.float32)
    x = rng.normal(size=(2, 5, 12))

    def linear(linear, x):
        return x @ np.asarray(linear.kernel[...], np.float64) + np.asarray(linear.bias[...])

    def norm(norm, x):
        return x / np.sqrt((x**2).mean(-1, keepdims=True)) * np.asarray(norm.scale[...]) if qk_norm else x

    q, k, v = (linear(each, x).reshape(2, 5, 3, 4) for each in (layer.query, layer.key, layer.value))
    mixed = reference(norm(layer.query_norm, q), norm(layer.key_norm, k), v).reshape(2, 5, 12)
    # float32 sums of 12 terms, four products deep, with ε = 1e-6 in the norms
    np.testing.assert_allclose(layer(jnp.asarray(x, jnp.float32)), linear(layer.out, mixed), rtol=1e-4, atol=1e-4)


def test_rounded_gradients_stay_close_where_keys_and_values_have_much_in_common():
    """What all keys share cancels in a score's gradient. With the values divided after their product, and not the weights, the
    query's gradient was wrong by nine per cent here; rounding alone makes one."""
    rng = np.random.default_rng(0)
    q, k, v, ct = (jnp.asarray(rng.normal(size=(4, 64, 2, 32)), jnp.float32) for _ in range(4))
    k, v = (each + 3 * jnp.asarray(rng.normal(size=(1, 1, 2, 32)), jnp.float32) for each in (k, v))

    def gradient(precision):
        return jax.jit(jax.grad(lambda *at: jnp.sum(ct * attention(*at, precision=precision, method="plain")), (0, 1, 2)))(q, k, v)

    for mine, exact in zip(gradient("bfloat16"), gradient("float32"), strict=True):
        assert float(jnp.linalg.norm(mine - exact) / jnp.linalg.norm(exact)) < 0.03
