"""The image tokenizer as a model: shapes, the way to tokens and back, what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tinygen.errors import UserError
from tinygen.models.tokenizer import Tokenizer
from tinygen.train_step import split

SETTINGS = dict(
    shape=(8, 8, 1), widths=(8, 16), depth=1, groups=4, attends=False, quantizer="fsq", levels=(4, 3), codes=10, code_width=5, stages=1,
    code_decay=0.9, precision="float32", attention="auto", needs_jvp=False,
)  # fmt: skip
X = np.random.default_rng(0).uniform(-1, 1, (4, 8, 8, 1)).astype(np.float32)
KINDS = [dict(), dict(quantizer="vq"), dict(quantizer="vq", stages=3)]


def create(**changes):
    return Tokenizer(**(SETTINGS | changes), rngs=nnx.Rngs(0))


@pytest.mark.parametrize(("changes", "codes"), zip(KINDS, (12, 10, 10), strict=True))
def test_tokens_are_decoded_to_the_reconstruction(changes, codes):
    model = create(**changes)
    assert (model.factor, model.codes) == (2, codes)
    decoded, quantized = model(X, rngs=nnx.Rngs(revival=jax.random.key(0)))  # of an untrained codebook every code is the same
    assert np.isfinite(quantized.penalty).all()
    decoded, quantized = model(X)
    tokens = model.encode(X)
    assert tokens.shape == ((4, 4, 4, 3) if changes.get("stages") else (4, 4, 4))
    assert len(np.unique(tokens)) > 3
    assert 0 <= tokens.min() <= tokens.max() < codes
    np.testing.assert_array_equal(tokens, quantized.tokens)
    assert decoded.shape == X.shape
    np.testing.assert_allclose(model.decode(tokens), decoded, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("changes", KINDS)
def test_the_codebook_changes_in_training_only_and_not_by_padding(changes):
    model = create(**changes)
    model(X, rngs=nnx.Rngs(revival=jax.random.key(0)))
    before = split(model)[2]
    model(X)
    model(X, weight=np.zeros(4), rngs=nnx.Rngs(revival=jax.random.key(1)))
    jax.tree.map(np.testing.assert_array_equal, before, split(model)[2])
    model(X, rngs=nnx.Rngs(revival=jax.random.key(1)))
    changed = [not np.array_equal(*pair) for pair in zip(jax.tree.leaves(before), jax.tree.leaves(split(model)[2]), strict=True)]
    assert all(changed)
    assert len(changed) == {"vq": 2}.get(changes.get("quantizer", "fsq"), 0) * changes.get("stages", 1)


@pytest.mark.parametrize("changes", KINDS)
def test_the_encoder_gets_a_gradient_through_the_codes(changes):
    model = create(**changes)
    model(X, rngs=nnx.Rngs(revival=jax.random.key(0)))
    grads = nnx.grad(lambda model: jnp.square(model(X)[0] - X).mean())(model)
    assert float(np.abs(grads["encoder"]["stem"]["kernel"][...]).max()) > 1e-6


def test_attention_at_the_lowest_resolution_follows_each_block_there_and_changes_what_is_seen():
    model, plain = create(attends=True, depth=2), create(depth=2)
    assert [len(stage.attentions) for stage in model.encoder.stages] == [0, 2]
    assert [len(stage.attentions) for stage in model.decoder.stages] == [3, 0]
    assert [len(stage.attentions) for stage in (*plain.encoder.stages, *plain.decoder.stages)] == [0] * 4
    stage = create(attends=True, shape=(32, 32, 1)).encoder.stages[1]
    x = np.random.default_rng(0).normal(size=(1, 16, 16, 8)).astype(np.float32)
    seen = jax.grad(lambda x: stage(x)[0, 0, 0].sum())(x)[0, -1, -1]  # ten pixels beyond what two convolutions reach
    assert np.abs(seen).max() > 1e-6


def test_images_of_another_size_are_taken_too_where_the_factor_divides_it():
    assert jax.eval_shape(create().encode, np.zeros((1, 12, 6, 1), np.float32)).shape == (1, 6, 3)
    with pytest.raises(UserError, match="images of 8x9: this tokenizer needs sides that are multiples of 2, such as 8x8"):
        jax.eval_shape(create().encode, np.zeros((1, 8, 9, 1), np.float32))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(depth=0), r"config\.model\.depth=0"),
        (dict(stages=0), r"config\.model\.stages=0"),
        (dict(widths=(8, 6)), r"config\.model\.widths=\(8, 6\) .* multiples of config\.model\.groups=4"),
        (dict(levels=(5, 1)), r"config\.model\.levels=\(5, 1\)"),
        (dict(quantizer="vq", codes=1), r"config\.model\.codes=1"),
        (dict(quantizer="lfq"), r"config\.model\.quantizer='lfq'"),
        (dict(shape=(1,)), "model tokenizer reads images"),
        (dict(shape=(28, 28, 1), widths=(8,) * 4), "images of 28x28: this tokenizer .* multiples of 8"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes, said):
    with pytest.raises(UserError, match=said):
        create(**changes)
