"""miniGPT: what each token can see, through gradients; the cache; what the options change; several devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small_minigpt import KINDS, SMALL, abstract, features, logits, made

from tinygen.distributed.mesh import Layout, make_mesh
from tinygen.errors import UserError
from tinygen.models.minigpt import MiniGPT, segment_positions

CLOSE = dict(rtol=2e-5, atol=2e-5)
TOKENS = np.random.default_rng(0).integers(0, 11, (3, 8)).astype(np.int32)
SEGMENT = np.array([[1, 1, 1, 2, 2, 2, 2, 2], [1] * 8, [1, 1, 2, 3, 3, 0, 0, 0]], np.int32)


def seen(segment=None, **kind):
    """bool [B, T, S]: whether the features at t change with the token at s, by the gradient of a random sum of them: each token of the
    batch is another, and has a row of the embedding of its own.
    """
    graphdef, state = nnx.split(made(vocabulary=24, **kind))
    direction = np.random.default_rng(5).normal(size=16).astype(np.float32)

    def sums(table):
        model = nnx.merge(graphdef, state, copy=True)
        model.tokens.embedding[...] = table
        return model.features(np.arange(24).reshape(3, 8), segment=segment)[0] @ direction  # [B, T]

    jacobian = jax.jacobian(sums)(nnx.merge(graphdef, state).tokens.embedding[...])  # [B, T, B·S, D]
    return np.abs(jacobian).max(-1).reshape(3, 8, 3, 8)[np.arange(3), :, np.arange(3)] > 0


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_token_sees_itself_and_those_before_it_and_no_other(kind):
    causal = np.tril(np.ones((8, 8), bool))
    np.testing.assert_array_equal(seen(**kind), np.broadcast_to(causal, (3, 8, 8)))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_documents_that_are_packed_together_do_not_see_each_other(kind):
    same = SEGMENT[:, :, None] == SEGMENT[:, None, :]
    np.testing.assert_array_equal(seen(SEGMENT, **kind), same & np.tril(np.ones((8, 8), bool)))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_packed_document_has_the_logits_that_it_has_alone(kind):
    model = made(**kind)
    packed, alone = logits(model, TOKENS, segment=SEGMENT), logits(model, TOKENS[:, 3:])
    np.testing.assert_allclose(packed[0, 3:], alone[0], **CLOSE)
    np.testing.assert_allclose(packed[2, 3:5], logits(model, TOKENS[2:, 3:5])[0], **CLOSE)


def test_positions_begin_anew_with_each_segment():
    np.testing.assert_array_equal(segment_positions(jnp.asarray(SEGMENT))[0], [0, 1, 2, 0, 1, 2, 3, 4])
    np.testing.assert_array_equal(segment_positions(jnp.asarray(SEGMENT))[2, :5], [0, 1, 0, 0, 1])


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_token_by_token_with_a_cache_gives_what_the_whole_window_gives(kind):
    model = made(**kind)
    cache, found = model.init_cache(3), []
    for index in range(8):
        h, cache = features(model, TOKENS[:, index : index + 1], position=np.full((3, 1), index), cache=cache)
        found.append(model.unembed(h))
    np.testing.assert_allclose(np.concatenate(found, 1), logits(model, TOKENS), **CLOSE)


def written_out(model, tokens, window=8):
    """Logits of one row by a mask over its whole history, every layer written out in NumPy."""
    T, K = len(tokens), model.size

    def norm(x, scale):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * scale

    def rms(x, scale):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale

    def turned(x):
        if model.places is not None:
            return x
        angle = np.arange(T)[:, None] * 10_000.0 ** (-np.arange(K // 2) / (K // 2))
        a, b = x[:, : K // 2], x[:, K // 2 :]
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)

    def linear(layer, x):
        return x @ np.asarray(layer.kernel[...], np.float64) + np.asarray(layer.bias[...], np.float64)

    i, j = np.arange(T)[:, None], np.arange(T)[None]
    mask = (j <= i) & (j > i - window)
    x = np.asarray(model.tokens.embedding[...], np.float64)[tokens]
    if model.places is not None:
        x = x + np.asarray(model.places.embedding[...], np.float64)[:T]
    for block in model.blocks:
        attention, y = block.attention, norm(x, np.asarray(block.attention_norm.scale[...]))
        q, k, v = (linear(layer, y) for layer in (attention.query, attention.key, attention.value))
        heads, shared = [], attention.heads // attention.kv_heads
        for n in range(attention.heads):
            own, other = slice(n * K, (n + 1) * K), slice(n // shared * K, (n // shared + 1) * K)
            qn, kn = q[:, own], k[:, other]
            if attention.query_norm is not None:
                qn, kn = rms(qn, np.asarray(attention.query_norm.scale[...])), rms(kn, np.asarray(attention.key_norm.scale[...]))
            scores = np.where(mask, turned(qn) @ turned(kn).T / np.sqrt(K), -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            heads.append(weights / weights.sum(-1, keepdims=True) @ v[:, other])
        x = x + linear(attention.out, np.concatenate(heads, -1))
        y, ff = norm(x, np.asarray(block.feed_forward_norm.scale[...])), block.feed_forward
        up = linear(ff.up, y)
        if hasattr(ff, "gate"):
            gate = linear(ff.gate, y)
            hidden = gate / (1 + np.exp(-gate)) * up
        else:  # GELU by its tanh
            hidden = up / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
        x = x + linear(ff.down, hidden)
    output = model.tokens if model.head is None else model.head
    return norm(x, np.asarray(model.norm.scale[...])) @ np.asarray(output.embedding[...], np.float64)[:11].T


@pytest.mark.parametrize("feed_forward", ["swiglu", "gelu"])
@pytest.mark.parametrize("positions", ["rope", "learned"])
@pytest.mark.parametrize("rest", [dict(), dict(tied=False), dict(qk_norm=False, kv_heads=2), dict(tied=False, kv_heads=1)], ids=str)
def test_logits_are_those_of_every_layer_written_out(feed_forward, positions, rest):
    model = made(feed_forward=feed_forward, positions=positions, **rest)
    wanted = np.stack([written_out(model, row) for row in TOKENS])
    assert wanted.std() > 0.1
    np.testing.assert_allclose(logits(model, TOKENS)[..., :11], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("heads", [0, 1, 2])
def test_past_the_window_the_cache_gives_what_a_banded_mask_over_the_whole_history_gives(heads):
    model = made(kv_heads=heads)
    tokens = np.random.default_rng(2).integers(0, 11, (2, 21)).astype(np.int32)
    wanted = np.stack([written_out(model, row) for row in tokens])
    for prefilled in (1, 5, 13):  # as many at once, the others one by one
        h, cache = features(model, tokens[:, :prefilled], position=np.arange(prefilled)[None], cache=model.init_cache(2))
        found = [model.unembed(h)]
        for index in range(prefilled, 21):
            h, cache = features(model, tokens[:, index : index + 1], position=np.full((2, 1), index), cache=cache)
            found.append(model.unembed(h))
        np.testing.assert_allclose(np.concatenate(found, 1)[..., :11], wanted, rtol=1e-4, atol=1e-4)


def test_padding_is_neither_written_to_the_cache_nor_seen():
    model = made()
    there = np.array([[1] * 5, [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]], np.int32)
    position = np.broadcast_to(np.arange(5), (3, 5))
    _, cache = features(model, TOKENS[:, :5], segment=there, position=position, cache=model.init_cache(3))
    for row, length in enumerate(there.sum(1)):
        _, alone = features(model, TOKENS[row : row + 1, :length], position=position[:1, :length], cache=model.init_cache(1))
        jax.tree.map(lambda a, b, row=row: np.testing.assert_allclose(a[row], b[0], **CLOSE), cache, alone)


def test_logits_past_the_vocabulary_have_no_probability_and_change_nothing():
    model, bare = made(), made(vocabulary_multiple=1)
    bare.tokens.embedding[...] = model.tokens.embedding[...][:11]
    for path, leaf in nnx.to_flat_state(nnx.state(model)):
        if path[0] != "tokens":
            dict(nnx.to_flat_state(nnx.state(bare)))[path][...] = leaf[...]
    found = logits(model, TOKENS)
    assert found.shape == (3, 8, 16)
    np.testing.assert_array_equal(jax.nn.softmax(found)[..., 11:], 0)
    np.testing.assert_allclose(logits(bare, TOKENS), found[..., :11], **CLOSE)


def test_every_block_is_the_identity_at_first():
    model = MiniGPT(**SMALL, rngs=nnx.Rngs(0))
    h, _ = features(model, TOKENS)
    np.testing.assert_allclose(h, model.norm(model.tokens(TOKENS)), **CLOSE)


@pytest.mark.parametrize("how", [dict(), dict(remat="full"), dict(scan=1)], ids=str)
def test_dropout_runs_in_training_and_only_there(how):
    model = made(dropout=0.5, **how)
    run = jax.jit(lambda key: model(TOKENS, rngs=nnx.Rngs(dropout=key)))
    one, again, other = run(jax.random.key(0)), run(jax.random.key(0)), run(jax.random.key(1))
    np.testing.assert_array_equal(one, again)
    assert np.abs(one - other).max() > 0.1
    whole = made(**how)
    np.testing.assert_allclose(logits(model, TOKENS), logits(whole, TOKENS), **CLOSE)
    bare = made(dropout=0.5, depth=1, **how)
    for block in bare.blocks:
        block.attention.out.kernel[...] *= 0
        block.attention.out.bias[...] *= 0
        block.feed_forward.down.kernel[...] *= 0
        block.feed_forward.down.bias[...] *= 0
    dropped = jax.jit(lambda key: bare.features(TOKENS, rngs=nnx.Rngs(dropout=key))[0])(jax.random.key(3))
    assert np.abs(dropped - features(bare, TOKENS)[0]).max() > 0.1  # of the embedding alone, half of which is dropped


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_four_by_two_devices_compute_what_one_computes(kind):
    graphdef, state = abstract(**kind)
    model = made(**kind)
    tokens = np.random.default_rng(3).integers(0, 11, (8, 8)).astype(np.int32)

    def loss(state):
        return jnp.mean(jax.nn.logsumexp(nnx.merge(graphdef, state)(tokens), -1))

    state = nnx.state(model)
    alone = jax.jit(jax.value_and_grad(loss))(state)
    layout = Layout(make_mesh(dict(data=4, fsdp=1, tensor=2)), MiniGPT.SHARDING, 0)
    places = layout.shardings(nnx.to_pure_dict(state))
    nnx.replace_by_pure_dict(state, jax.device_put(nnx.to_pure_dict(state), places))
    kernels = nnx.to_pure_dict(state)["blocks"][0]["attention"]["query"]["kernel"]
    assert kernels.sharding.shard_shape(kernels.shape) == (16, 8)
    assert nnx.to_pure_dict(state)["tokens"]["embedding"].sharding.shard_shape((16, 16)) == (8, 16)
    with jax.set_mesh(layout.mesh):
        spread = jax.jit(jax.value_and_grad(loss))(state)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), alone, spread)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dict(width=18), r"heads=4 must divide config.model.width=18"),
        (dict(kv_heads=3), r"kv_heads=3 must be 0 .* or divide config.model.heads=4"),
        (dict(positions="rotary"), r"positions 'rotary'.*rope"),
        (dict(feed_forward="relu"), r"feed_forward 'relu'.*gelu"),
        (dict(dropout=1.0), r"dropout=1.0 must lie in \[0, 1\)"),
        (dict(depth=0), r"depth=0 must be positive"),
    ],
    ids=str,
)
def test_shapes_that_cannot_be_are_refused(change, said):
    with pytest.raises(UserError, match=said):
        abstract(**change)
