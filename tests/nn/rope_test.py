"""Rotary positions: scores of attention depend on offsets alone, and MicroDiT's tokens take their positions along."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small_microdit import abstract, drawn

from tinygen.distributed.mesh import Layout, make_mesh
from tinygen.nn import layers, rope
from tinygen.nn.attention import Attention

H, W, N, K = 5, 4, 3, 8
T = np.array([0.1, 0.4, 0.6, 0.9], np.float32)
MASKED = dict(shape=(8, 8, 3), classes=0, depth=4, mixer_depth=1, mask=0.75, positions="rope")
CLOSE = dict(rtol=1e-4, atol=1e-4)  # float32 sums in another order


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def by_complex_numbers(x, angles):
    """x [L, N, K] turned, each pair of features as a complex number."""
    turned = (x[..., : K // 2] + 1j * x[..., K // 2 :]) * np.exp(1j * angles)[:, None]
    return np.concatenate([turned.real, turned.imag], -1)


def test_scores_depend_on_the_offset_alone_in_both_directions_and_in_every_head():
    with jax.enable_x64(True):
        angles = rope.angles(H, W, K)
        q, k = (np.broadcast_to(normal(N, K, seed=seed), (1, H * W, N, K)) for seed in (0, 1))  # the same content everywhere
        turned_q, turned_k = (rope.rotate(jnp.asarray(each), jnp.asarray(angles)) for each in (q, k))
        scores = np.einsum("lnk,snk->nls", turned_q[0], turned_k[0]).reshape(N, H, W, H, W)
    seen = {}
    for head, i, j, m, n in np.ndindex(scores.shape):
        seen.setdefault((head, m - i, n - j), []).append(scores[head, i, j, m, n])
    assert len(seen) == N * (2 * H - 1) * (2 * W - 1)
    assert max(np.ptp(same) for same in seen.values()) < 1e-13
    for head in range(N):
        of_head = np.array([same[0] for key, same in seen.items() if key[0] == head])
        assert np.diff(np.sort(of_head)).min() > 1e-6  # and every offset gives another


def test_rotation_is_multiplication_by_complex_numbers_and_may_differ_by_example():
    angles, x = normal(2, 6, K // 2), normal(2, 6, N, K)
    want = np.stack([by_complex_numbers(*each) for each in zip(x, angles, strict=True)])
    np.testing.assert_allclose(rope.rotate(jnp.asarray(x), jnp.asarray(angles)), want, atol=1e-5)  # float32
    assert rope.rotate(jnp.asarray(x, jnp.bfloat16), jnp.asarray(angles[0])).dtype == jnp.bfloat16


def test_half_of_a_heads_pairs_turn_by_the_row_and_half_by_the_column():
    table = rope.angles(H, W, K).reshape(H, W, K // 2)
    rows, columns = np.indices((H, W))
    frequencies = 100.0 ** -np.array([0, 0.5])
    np.testing.assert_allclose(table[..., :2], rows[..., None] * frequencies)
    np.testing.assert_allclose(table[..., 2:], columns[..., None] * frequencies)


@pytest.mark.parametrize("table", [layers.sincos_2d, rope.angles], ids=["sincos", "rope"])
def test_interpolated_to_twice_the_grid_every_second_place_has_its_old_position(table):
    old = np.asarray(table(4, 6, 16)).reshape(4, 6, -1)
    fine = np.asarray(table(8, 12, 16, 4)).reshape(8, 12, -1)
    np.testing.assert_array_equal(fine[::2, ::2], old)
    assert len(np.unique(fine.reshape(96, -1).round(6), axis=0)) == 96
    np.testing.assert_array_equal(table(4, 6, 16, 4), table(4, 6, 16))


def test_the_places_between_lie_halfway_and_none_lies_outside():
    rows, columns = layers.coordinates(8, 12, 4)
    np.testing.assert_array_equal(rows.reshape(8, 12)[:, 0], np.arange(8) / 2)
    np.testing.assert_array_equal(columns.reshape(8, 12)[0], np.arange(12) / 2)


def test_the_attention_layer_turns_queries_and_keys_after_their_norm_in_every_head():
    layer = Attention(12, N, K, qk_norm=True, precision="float32", attention="plain", needs_jvp=False, rngs=nnx.Rngs(0))
    for index, leaf in enumerate(jax.tree.leaves(nnx.state(layer, nnx.Param), is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))):
        leaf[...] = jnp.asarray(normal(*leaf.shape, seed=index) / (4 if leaf.ndim == 2 else 1), jnp.float32)
    x, angles = normal(6, 12), rope.angles(2, 3, K)

    def linear(linear, x):
        return x @ np.asarray(linear.kernel[...], np.float64) + np.asarray(linear.bias[...])

    def norm(norm, x):
        return x / np.sqrt((x**2).mean(-1, keepdims=True)) * np.asarray(norm.scale[...])

    q, k, v = (linear(each, x).reshape(6, N, K) for each in (layer.query, layer.key, layer.value))
    q, k = (by_complex_numbers(norm(*each), angles) for each in ((layer.query_norm, q), (layer.key_norm, k)))
    weights = np.exp(np.einsum("lnk,snk->nls", q, k) / np.sqrt(K))
    mixed = np.einsum("nls,snk->lnk", weights / weights.sum(-1, keepdims=True), v).reshape(6, N * K)
    got = layer(jnp.asarray(x, jnp.float32)[None], angles=jnp.asarray(angles))[0]
    np.testing.assert_allclose(got, linear(layer.out, mixed), **CLOSE)


# In MicroDiT


def gradient_of(graphdef, x):
    def loss(state):
        out = nnx.merge(graphdef, state)(x, T, cond={}, rngs=nnx.Rngs(mask=1))
        return jnp.sum(jnp.sin(out.pred))

    return jax.value_and_grad(loss)


@pytest.fixture(scope="module")
def point():
    """(graphdef, weights, images, the loss and its gradient): with a mixer and three quarters dropped."""
    graphdef, state = abstract(**MASKED)
    state, x = drawn(state), jnp.asarray(normal(4, 8, 8, 3), jnp.float32)
    return graphdef, state, x, jax.jit(gradient_of(graphdef, x))(state)


def close(mine, theirs):
    """To what float32 leaves of sums over five blocks: of an array's largest number, since others cancel."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-4 * np.abs(b).max()), mine, theirs)


@pytest.mark.parametrize("how", [dict(scan=1), dict(scan=2, remat="full"), dict(remat="products")], ids=str)
def test_kept_tokens_take_their_positions_through_loops_and_blocks_computed_again(point, how):
    _, state, x, whole = point
    close(jax.jit(gradient_of(abstract(**MASKED, **how)[0], x))(state), whole)


def test_the_gradient_is_that_of_central_differences(point):
    with jax.enable_x64(True):
        graphdef, state = abstract(**(MASKED | dict(depth=1, time_scale=1.0)))
        state, x = drawn(state, np.float64), normal(4, 8, 8, 3)
        both = jax.jit(gradient_of(graphdef, x))
        gradient = both(state)[1]
        along = jax.tree.map(lambda leaf: jnp.asarray(normal(*leaf.shape, seed=leaf.size)), state)
        ahead, behind = (both(jax.tree.map(lambda p, d, s=s: p + s * 1e-5 * d, state, along))[0] for s in (1, -1))
        slope = sum(jnp.vdot(*pair) for pair in zip(*map(jax.tree.leaves, (gradient, along)), strict=True))
        assert abs(slope) > 1e-2
        np.testing.assert_allclose((ahead - behind) / 2e-5, slope, rtol=1e-6)  # the step's square times a third derivative


@pytest.mark.parametrize("sizes", [(4, 1, 1), (2, 2, 2)], ids=str)
def test_on_a_mesh_loss_and_gradient_are_those_of_one_device(point, sizes):
    graphdef, state, x, alone = point
    mesh = make_mesh(dict(zip(("data", "fsdp", "tensor"), sizes, strict=True)), jax.devices()[: np.prod(sizes)])
    layout = Layout(mesh, type(nnx.merge(graphdef, state)).SHARDING, min_size=8)
    with jax.set_mesh(mesh):
        split = jax.device_put(state, layout.shardings(state))
        close(jax.jit(gradient_of(graphdef, x))(split), alone)


def test_with_rope_nothing_is_added_to_the_patches():
    """Equal patches are equal to attention: all its turned keys have one value. With sincos the output tells where they are."""
    x = np.tile(normal(4, 2, 2, 3), (1, 4, 4, 1)).astype(np.float32)
    spread = {}
    for positions in ("rope", "sincos"):
        graphdef, state = abstract(**(MASKED | dict(mask=0.0, positions=positions)))
        pred = jax.jit(lambda state, graphdef=graphdef: nnx.merge(graphdef, state)(x, T, cond={}).pred)(drawn(state))
        spread[positions] = np.ptp(np.asarray(layers.patchify(pred, 2)), axis=1).max()
    assert spread["rope"] < 1e-4
    assert spread["sincos"] > 0.1


def test_with_rope_a_patch_is_told_how_far_the_others_are():
    graphdef, state = abstract(**(MASKED | dict(mask=0.0)))
    state = drawn(state)
    run = jax.jit(lambda x: nnx.merge(graphdef, state)(x, T, cond={}).pred)
    x = normal(4, 8, 8, 3).astype(np.float32)
    for axis in (1, 2):
        assert np.abs(run(np.roll(x, 2, axis)) - np.roll(run(x), 2, axis)).max() > 1e-2
