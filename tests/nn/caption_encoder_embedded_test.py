"""Embeddings as a model's condition: what holds of tokens holds of them, but for positions, which their encoder has put in."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gaussian_flow import flow
from small_microdit import abstract, drawn

from tinygen.nn import caption_encoder

BATCH, LENGTH, FEATURES = 3, 5, 6
TOLD = dict(classes=0, text_features=FEATURES, text_length=LENGTH, text_depth=2, text_width=8, mixer_depth=1)
THERE = np.arange(LENGTH) < np.array([[3], [2], [5]])
EMBED = np.random.default_rng(5).normal(size=(BATCH, LENGTH, FEATURES)).astype(np.float32)
COND = {"embed": EMBED, "embed_mask": THERE}
T = np.array([0.1, 0.5, 0.9], np.float32)
CLOSE = dict(rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def net():
    """A model with weights that are nowhere zero."""
    graphdef, state = abstract(**TOLD)
    return nnx.merge(graphdef, drawn(state))


@pytest.fixture(scope="module")
def predict(net):
    x = np.random.default_rng(3).normal(size=(BATCH, 4, 6, 3)).astype(np.float32)
    return lambda cond: np.asarray(net(x, T, cond=cond).pred)


def test_padding_changes_nothing_whatever_stands_there(net):
    features, there = net.text(EMBED, mask=THERE)
    np.testing.assert_array_equal(there, THERE)
    other = np.where(THERE[..., None], EMBED, 100.0)
    np.testing.assert_allclose(features[THERE], net.text(other, mask=THERE)[0][THERE], **CLOSE)
    short, _ = net.text(EMBED[:2, :3], mask=THERE[:2, :3])
    np.testing.assert_allclose(features[:2, :2], short[:, :2], **CLOSE)


@pytest.mark.slow
def test_every_token_sees_every_other_and_no_padding(net):
    graphdef, state = nnx.split(net.text)
    reach = jax.jacobian(lambda embed: nnx.merge(graphdef, state)(embed, mask=THERE[:1])[0].sum(-1)[0])(jnp.asarray(EMBED[:1]))
    reach = np.abs(reach[:3, 0]).sum(-1)  # [3, S]
    assert (reach[:, :3] > 0).all()
    np.testing.assert_array_equal(reach[:, 3:], 0)


def test_no_positions_of_ours_are_added(net):
    """Tokens whose embeddings are exchanged exchange their features."""
    forth, back = net.text(EMBED[2:], mask=THERE[2:])[0], net.text(EMBED[2:, ::-1], mask=THERE[2:])[0]
    np.testing.assert_allclose(forth, back[:, ::-1], **CLOSE)
    names = {name for path, _ in nnx.to_flat_state(nnx.state(net.text)) for name in path[:1]}
    assert names == {"project", "blocks", "norm", "null"}


def test_a_model_of_tokens_has_the_parameters_that_it_had():
    _, state = abstract(**TOLD | dict(text_features=0, text_vocabulary=20))
    names = {path[1] for path, _ in nnx.to_flat_state(state) if path[0] == "text"}
    assert names == {"embedding", "positions", "blocks", "norm", "null"}


@pytest.mark.slow
def test_a_prediction_depends_on_its_own_caption_alone(predict):
    before, changed = predict(COND), EMBED.copy()
    changed[1, 0] += 3
    after = predict({**COND, "embed": changed})
    np.testing.assert_allclose(after[[0, 2]], before[[0, 2]], **CLOSE)
    assert np.abs(after[1] - before[1]).max() > 1e-3


def test_an_example_that_is_to_go_without_and_one_that_has_none_are_alike(predict):
    null = predict({**COND, "keep": np.zeros(BATCH, bool)})
    np.testing.assert_allclose(null, predict({**COND, "embed_mask": np.zeros_like(THERE)}), **CLOSE)
    np.testing.assert_allclose(null, predict({}), **CLOSE)
    mixed = predict({**COND, "keep": np.array([True, False, True])})
    np.testing.assert_allclose(mixed[1], null[1], **CLOSE)
    np.testing.assert_allclose(mixed[[0, 2]], predict(COND)[[0, 2]], **CLOSE)


@pytest.mark.slow
def test_an_example_without_a_caption_has_a_gradient_that_is_finite(net):
    graphdef, state = nnx.split(net)
    x = np.zeros((BATCH, 4, 6, 3), np.float32)

    def moved(state):
        return jnp.sum(nnx.merge(graphdef, state)(x, T, cond={**COND, "embed_mask": THERE & (np.arange(BATCH) > 0)[:, None]}).pred)

    grads = jax.grad(moved)(state)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
    assert np.abs(grads.text.project.kernel[...]).max() > 0
    assert np.abs(grads.text.null[...]).max() > 0


def test_what_is_read_once_is_read_as_ever(net, predict):
    once = net.encode(COND, BATCH)
    assert set(once) == {"caption", "caption_mask"}
    np.testing.assert_allclose(predict(once), predict(COND), **CLOSE)


def test_the_pooled_features_are_the_mean_over_the_tokens_that_are_there(net):
    features, there = (np.asarray(each) for each in net.text(EMBED, mask=THERE))
    expected = np.stack([rows[seen].mean(0) for rows, seen in zip(features, there, strict=True)])
    np.testing.assert_allclose(caption_encoder.pooled(features, there), expected, **CLOSE)


@pytest.mark.slow
def test_guidance_leads_away_from_a_negative_caption(net):
    """With weight 0 the guided prediction is that of the negative caption itself."""
    settings = dict(shape=(4, 6, 3), sampler="euler")
    keys = jax.random.split(jax.random.key(1), BATCH)
    other = {"embed": -EMBED, "embed_mask": THERE[::-1]}
    away = flow(**settings, nfe=4, guidance=0.0).draw(net, keys, COND, other)[0]
    plain = flow(**settings, nfe=2).draw(net, keys, other)[0]
    np.testing.assert_allclose(away, plain, rtol=1e-4, atol=1e-4)
