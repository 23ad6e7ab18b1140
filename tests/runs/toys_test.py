"""The loop never asks: models, objectives and data sets that it has never heard of run through the tables alone."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from PIL import Image
from sampling import sampled

from tinygen import config as config_lib
from tinygen import media, train
from tinygen.config import schema as keys
from tinygen.data.codec import Codec, Field
from tinygen.data.examples import ArrayExamples
from tinygen.data.source import DataSource
from tinygen.media import Array
from tinygen.media.preview import Preview
from tinygen.nn.layers import Buffer, Embedding, Linear
from tinygen.objectives.base import Objective


class ToyBigram(nnx.Module):
    """Tokens [B, L] -> logits [B, L, V]. It drops features while it trains, and counts in a buffer how many tokens it has seen."""

    SHARDING = ((r"head/kernel$", (None, "tensor")),)

    def __init__(self, *, vocabulary, width, drop, precision, rngs):
        self.embed = Embedding(vocabulary, width, rngs=rngs)
        self.head = Linear(width, vocabulary, precision=precision, rngs=rngs)
        self.seen = Buffer(jnp.zeros(vocabulary))
        self.drop = drop

    def __call__(self, tokens, *, rngs=None):
        h = self.embed(tokens)
        if rngs is not None:
            self.seen[...] += jnp.bincount(tokens.ravel(), length=len(self.seen[...]))
            h = h * jax.random.bernoulli(rngs.dropout(), 1 - self.drop, h.shape) / (1 - self.drop)
        return self.head(h)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToyNextToken(Objective):
    """Cross-entropy of the next token."""

    length: int
    vocabulary: int
    temperature: float

    generates = True

    def loss(self, model, batch, key, *, train):
        tokens = batch["tokens"]
        logits = model(tokens[:, :-1], rngs=nnx.Rngs(key) if train else None)
        nll = -jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], -1)[..., 0]
        weight = jnp.broadcast_to(batch.get("weight", jnp.ones(len(tokens)))[:, None], nll.shape)
        total = (jnp.sum(weight * nll), jnp.sum(weight))
        return total[0] / jnp.maximum(total[1], 1e-12), {"loss": total, "raw_loss": total}

    def draw(self, model, keys, cond=None, negative=None):
        def follow(tokens, step):
            logits = model(tokens[:, None])[:, 0] / self.temperature
            tokens = jax.vmap(lambda key, row: jax.random.categorical(jax.random.fold_in(key, step), row))(keys, logits)
            return tokens, tokens

        first = jnp.zeros(len(keys), jnp.int32)
        return jax.lax.scan(follow, first, jnp.arange(self.length))[1].T, None  # [B, L]

    def preview(self, raw, averaged, batch, keys):
        tokens = self.draw(averaged, keys)[0] / (self.vocabulary - 1) * 2 - 1
        return {"samples": Preview(jnp.broadcast_to(tokens[:, None, :, None], (len(keys), 4, self.length, 1)), media.Image())}


def toy_counting(*, step):
    """Sequences that count up by `step`, modulo 8."""
    tokens = (np.arange(64)[:, None] + step * np.arange(9)).astype(np.int32) % 8
    splits = {"train": ArrayExamples({"tokens": tokens[:48]}), "validation": ArrayExamples({"tokens": tokens[48:]})}
    spec = {"tokens": Field(shape=(9,), dtype="int32", low=0, high=7)}
    return DataSource(codec=Codec(medium=Array("text"), spec=spec), splits=splits, fingerprint=f"counting by {step}")


@pytest.fixture
def counting(add_row):
    """counting(**changes): the configuration of a language model."""
    add_row("model", "toy_bigram", ToyBigram, dict(width=16, drop=0.5))
    add_row("objective", "toy_next_token", ToyNextToken, dict(temperature=keys.key(0.1, "of the softmax", keys.RESUME)))
    add_row("data", "toy_counting", toy_counting, dict(step=3))

    def config(**changes):
        return config_lib.change(
            config_lib.base(
                data=dict(name="toy_counting"),
                model=dict(name="toy_bigram"),
                objective=dict(name="toy_next_token"),
                batch_size=8,
                optim=dict(lr=0.05, schedule="constant"),
                ema=dict(decay=0.9),
                train=dict(steps=40, log_every=10, eval_every=20, preview_every=20, preview_num=5, checkpoint_every=0),
            ),
            changes,
        )

    return config


@pytest.mark.parametrize("toy", ["counting", "curve"])
def test_a_model_added_through_the_tables_alone_learns_previews_and_resumes(
    toy, request, tmp_path, monkeypatch, stop_during, saved_arrays, metrics_of
):
    config = request.getfixturevalue(toy)
    keys = dict(train=dict(steps=40, log_every=10, eval_every=20, preview_every=20, checkpoint_every=0))
    assert train.main(config(**keys), str(tmp_path / "straight")) == 0
    with monkeypatch.context() as patch:
        stop_during(patch, 13)
        assert train.main(config(**keys), str(tmp_path / "resumed")) == 143
    assert train.main(config(**keys), str(tmp_path / "resumed")) == 0

    straight, resumed = (saved_arrays(tmp_path / name, 40) for name in ("straight", "resumed"))
    assert straight.keys() == resumed.keys()
    for name, array in straight.items():
        np.testing.assert_array_equal(resumed[name], array, err_msg=name)
    lines = metrics_of(tmp_path / "straight")
    assert metrics_of(tmp_path / "resumed") == lines
    assert lines[-1]["eval_ema_loss"] < 0.5 * lines[0]["loss"]
    previews = {path.name: path.read_bytes() for path in (tmp_path / "straight" / "samples").iterdir()}
    assert {int(name[:6]) for name in previews} == {1, 2, 5, 10, 20, 40}
    assert {path.name: path.read_bytes() for path in (tmp_path / "resumed" / "samples").iterdir()} == previews
    assert previews[min(previews)] != previews[max(previews)]


def test_a_buffer_that_changes_each_step_is_kept_in_the_state_and_in_the_checkpoint(counting, tmp_path, saved_arrays):
    train.main(counting(train=dict(steps=7, eval_every=2, preview_every=2)), str(tmp_path / "run"))
    seen = saved_arrays(tmp_path / "run", 7)["buffers/seen"]
    assert seen.sum() == 7 * 8 * 8  # steps, sequences, tokens; evaluations and previews count nothing


def test_buffers_count_every_micro_batch(counting, tmp_path, saved_arrays):
    config = counting(optim=dict(accumulate=2), batch_size=16, train=dict(steps=3, eval_every=0, preview_every=0))
    train.main(config, str(tmp_path / "run"))
    assert saved_arrays(tmp_path / "run", 3)["buffers/seen"].sum() == 3 * 16 * 8


def test_dropout_acts_in_training_and_not_in_evaluation(counting, tmp_path, metrics_of):
    lines = {}
    for drop in (0.0, 0.9):
        # a rate that changes no weight: what differs is dropout's
        config = counting(model=dict(drop=drop), optim=dict(lr=1e-30), train=dict(steps=1, preview_every=0))
        train.main(config, str(tmp_path / str(drop)))
        (lines[drop],) = metrics_of(tmp_path / str(drop))
    assert lines[0.0]["loss"] != lines[0.9]["loss"]
    assert lines[0.0]["grad_norm"] != lines[0.9]["grad_norm"]
    assert lines[0.0]["eval_loss"] == lines[0.9]["eval_loss"]


def test_samples_of_a_model_without_pictures_are_an_array(counting, tmp_path):
    train.main(counting(train=dict(preview_every=0, eval_every=0)), str(tmp_path / "run"))
    assert sampled(tmp_path / "run", tmp_path / "out", num=12) == 0
    tokens = np.load(tmp_path / "out" / "samples.npz")["x"]
    assert tokens.shape == (12, 9)
    assert np.mean(np.diff(tokens, axis=1) % 8 == 3) > 0.9  # it counts by three
    assert json.loads((tmp_path / "out" / "samples.json").read_text())["num"] == 12


def test_a_curve_is_shown_as_a_plot(curve, tmp_path):
    train.main(curve(train=dict(steps=1)), str(tmp_path / "run"))
    assert [path.name for path in (tmp_path / "run" / "samples").iterdir()] == ["000001-curve.png"]
    with Image.open(tmp_path / "run" / "samples" / "000001-curve.png") as drawn:
        assert drawn.size == (600, 400)
