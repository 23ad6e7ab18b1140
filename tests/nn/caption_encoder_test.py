"""A caption as a model's condition: read by self-attention, attended to by every block, left out where guidance wants it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gaussian_flow import flow
from small_microdit import abstract, drawn, make

from tinygen.errors import UserError
from tinygen.nn import caption_encoder
from tinygen.nn.flops import flops
from tinygen.nn.flops import products as counted
from tinygen.objectives.edm import EDM

BATCH, LENGTH, VOCABULARY = 3, 5, 20
TOLD = dict(classes=0, text_vocabulary=VOCABULARY, text_length=LENGTH, text_depth=2, text_width=8, mixer_depth=1)
TOKENS = np.array([[3, 7, 2, 0, 0], [5, 1, 0, 0, 0], [9, 8, 4, 6, 2]], np.int32)
T = np.array([0.1, 0.5, 0.9], np.float32)
CLOSE = dict(rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def reader():
    """(the text encoder of a model with weights that are nowhere zero, what it reads in tokens)"""
    graphdef, state = abstract(**TOLD)
    reader = nnx.merge(graphdef, drawn(state)).text
    return reader, jax.jit(lambda tokens, keep=None: reader(tokens, keep))


@pytest.fixture(scope="module")
def model():
    graphdef, state = abstract(**TOLD)
    state = drawn(state)
    predict = jax.jit(lambda cond: nnx.merge(graphdef, state)(images(), T, cond=cond).pred)
    return lambda cond: np.asarray(predict(cond))


def images():
    return np.random.default_rng(3).normal(size=(BATCH, 4, 6, 3)).astype(np.float32)


def test_padding_changes_nothing(reader):
    _, read = reader
    features, there = read(TOKENS[:, :LENGTH])
    np.testing.assert_array_equal(there, TOKENS > 0)
    short, _ = read(TOKENS[:2, :3])
    np.testing.assert_allclose(features[:2, :2], short[:, :2], **CLOSE)


def test_every_token_sees_every_other_and_no_padding(reader):
    graphdef, state = nnx.split(reader[0])
    weights = nnx.to_pure_dict(state)

    def features(table):
        return nnx.merge(graphdef, {**weights, "embedding": {"embedding": table}})(TOKENS[:1])[0].sum(-1)[0]  # [S]

    reach = np.abs(jax.jit(jax.jacobian(features))(weights["embedding"]["embedding"])).sum(-1)  # [S, vocabulary]
    said = TOKENS[0, :3]
    assert (reach[:3][:, said] > 0).all()
    np.testing.assert_array_equal(np.delete(reach[:3], said, 1), 0)


def test_the_order_of_words_matters(reader):
    forth, back = (caption_encoder.pooled(*reader[1](tokens)) for tokens in (TOKENS[2:], TOKENS[2:, ::-1]))
    assert np.abs(forth - back).max() > 1e-3


def test_without_its_caption_an_example_has_the_null_alone(reader):
    reader, read = reader
    features, there = read(TOKENS, np.array([True, False, True]))
    null, alone = reader.null_caption(1, LENGTH)
    np.testing.assert_array_equal(features[1], null[0])
    np.testing.assert_array_equal(there[1], alone[0])
    np.testing.assert_array_equal(there.sum(1), [3, 1, 5])
    empty, _ = read(np.zeros((1, LENGTH), np.int32))
    np.testing.assert_array_equal(empty, null)


def test_the_pooled_features_are_the_mean_over_the_tokens_that_are_there(reader):
    features, there = (np.asarray(each) for each in reader[1](TOKENS))
    expected = np.stack([rows[seen].mean(0) for rows, seen in zip(features, there, strict=True)])
    np.testing.assert_allclose(caption_encoder.pooled(features, there), expected, **CLOSE)


def test_a_prediction_depends_on_its_own_caption_alone(model):
    before = model({"text": TOKENS})
    changed = TOKENS.copy()
    changed[1, 0] = 11
    after = model({"text": changed})
    np.testing.assert_allclose(after[[0, 2]], before[[0, 2]], **CLOSE)
    assert np.abs(after[1] - before[1]).max() > 1e-3


def test_the_sequence_itself_is_attended_to_and_not_its_mean_alone():
    """Two captions whose features are swapped between two places, so that their mean stays, give two predictions."""
    graphdef, state = abstract(**TOLD)
    net = nnx.merge(graphdef, drawn(state))
    caption = np.random.default_rng(0).normal(size=(BATCH, 2, 8)).astype(np.float32)
    given = [
        {"caption": each, "caption_mask": np.ones((BATCH, 2), bool)} for each in (caption, np.repeat(caption.mean(1, keepdims=True), 2, 1))
    ]
    one, other = map(jax.jit(lambda cond: net(images(), T, cond=cond).pred), given)
    assert np.abs(one - other).max() > 1e-3


def test_an_example_that_is_to_go_without_and_one_that_has_none_are_alike(model):
    keep = np.zeros(BATCH, bool)
    null = model({"text": TOKENS, "keep": keep})
    np.testing.assert_allclose(null, model({"text": np.zeros_like(TOKENS)}), **CLOSE)
    np.testing.assert_allclose(null, model({}), **CLOSE)


def test_what_is_read_once_is_read_as_ever(model):
    graphdef, state = abstract(**TOLD)
    cond = {"text": TOKENS, "keep": np.array([True, False, True])}
    once = nnx.merge(graphdef, drawn(state)).encode(cond, BATCH)
    assert "text" not in once
    np.testing.assert_allclose(model(once), model(cond), **CLOSE)


def test_at_initialisation_a_caption_changes_nothing_and_has_a_gradient():
    net = make(**TOLD)
    predict = jax.jit(lambda state: nnx.merge(graphdef, state)(images(), T, cond={"text": TOKENS}).pred)
    graphdef, state = nnx.split(net)
    np.testing.assert_array_equal(predict(state), 0)
    for block in (*net.blocks, *net.mixer):
        np.testing.assert_array_equal(block.cross_attention.out.kernel[...], 0)
    state.final.kernel[...] = jnp.ones_like(state.final.kernel[...])

    grads = jax.jit(jax.grad(lambda state: jnp.sum(jnp.sin(predict(state)))))(state)
    assert all(np.abs(block.cross_attention.out.kernel[...]).max() > 0 for block in grads.blocks.values())


@pytest.mark.parametrize("objective", ["flow", "edm"])
def test_a_sample_reads_its_prompt_once_however_many_steps_it_takes(objective):
    common = dict(shape=(4, 6, 3), cond_drop=0.1, sampler="heun", guidance=2.0)
    ours = dict(
        flow=functools.partial(flow, **common),
        edm=functools.partial(
            EDM,
            **common,
            sigma_data=0.5,
            p_mean=0.0,
            p_std=1.0,
            guidance_interval=(0.0, 1e9),
            sigma_min=0.01,
            sigma_max=10.0,
            rho=7.0,
            tolerance=1e-3,
        ),
    )[objective]

    def work(nfe, depth):
        graphdef, state = abstract(**TOLD | dict(text_depth=depth))
        keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), BATCH))

        def sample(state, keys):
            return ours(nfe=nfe)._sample(nnx.merge(graphdef, state), keys, {"text": TOKENS}, None)

        return flops(counted(sample, state, keys))

    reading = work(8, 3) - work(8, 1)
    assert reading > 0
    assert work(20, 3) - work(20, 1) == reading


def test_guidance_leads_away_from_a_negative_caption():
    """With weight 0 the guided prediction is that of the negative caption itself."""
    graphdef, state = abstract(**TOLD)
    net = nnx.merge(graphdef, drawn(state))
    settings = dict(shape=(4, 6, 3), sampler="euler")
    keys = jax.random.split(jax.random.key(1), BATCH)
    other = {"text": np.full_like(TOKENS, 7)}
    away = jax.jit(lambda: flow(**settings, nfe=4, guidance=0.0).draw(net, keys, {"text": TOKENS}, other)[0])()
    plain = jax.jit(lambda: flow(**settings, nfe=2).draw(net, keys, other)[0])()
    np.testing.assert_allclose(away, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(text_depth=0), "config.model.text_depth=0"),
        (dict(text_width=12), "config.model.text_width=12 must be a multiple of a head's size"),
        (dict(text_width=-8), "config.model.text_width=-8"),
    ],
    ids=str,
)
def test_a_reader_that_cannot_be_is_named(changes, said):
    with pytest.raises(UserError, match=said):
        abstract(**TOLD | changes)


def test_a_model_without_captions_minds_no_key_about_them():
    graphdef, state = abstract(text_depth=0)
    assert nnx.merge(graphdef, state).text is None
