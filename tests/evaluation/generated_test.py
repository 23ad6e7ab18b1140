"""Samples of a checkpoint as pictures that a score compares, and which labels they are given."""

import dataclasses

import jax
import numpy as np
import pytest

from tinygen import build
from tinygen.checkpoints import store
from tinygen.checkpoints import weights as trained
from tinygen.data.codec import Codec, Field
from tinygen.data.examples import ArrayExamples
from tinygen.data.labels import Labels
from tinygen.errors import UserError
from tinygen.evaluation import generated
from tinygen.evaluation.generated import check_draws_pictures, conditions, of_model
from tinygen.media import Image
from tinygen.sampling import draw
from tinygen.sampling.settings import configured

SPEC = {"x": Field(shape=(4, 4, 1), dtype="float32", low=-1.0, high=1.0), "label": Field(shape=(), dtype="int32", low=0, high=2)}
CODEC = Codec(medium=Image(), spec=SPEC, conditions=(Labels(("cat", "dog", "owl")),))


def examples(labels):
    return ArrayExamples({"x": np.zeros((len(labels), 4, 4, 1), np.float32), "label": np.asarray(labels, np.int32)})


@pytest.fixture(scope="module")
def model(finished):
    saved = store.find(finished.workdir)
    parts = build.parts(configured(saved.config, {}, saved.codec), saved.codec)
    return parts, trained.load(saved, parts, ema=True)


def pictures(model, num, start=0, size=8, seed=3):
    parts, weights = model
    made = of_model(weights, parts, parts.codec.encode(num), num=num, seed=seed, size=size, name="", fingerprint="")
    return np.stack([read() for read in made.reads(start)])


def test_a_sample_is_the_same_from_whatever_start_and_in_whatever_batches(model):
    whole = pictures(model, 20)
    assert (whole.shape, whole.dtype) == ((20, 16, 16, 3), np.uint8)
    for start, size in ((8, 8), (5, 8), (0, 16), (19, 8)):
        got = pictures(model, 20, start, size)
        assert np.mean(got == whole[start:]) >= 0.999  # XLA sums in another order for another size
    np.testing.assert_array_equal(pictures(model, 20, 8), whole[8:])


def test_another_seed_gives_other_samples(model):
    assert np.mean(pictures(model, 8, seed=1) == pictures(model, 8, seed=2)) < 0.5


def test_they_are_those_of_tinygen_sample(model):
    parts, weights = model
    x, _ = draw.counted(weights, parts, parts.codec.encode(20), num=20, seed=3, batch_size=8)
    np.testing.assert_array_equal(pictures(model, 20), parts.codec.medium.decode(x))


def test_nothing_is_drawn_before_it_is_asked_for(model, monkeypatch):
    drawn = []
    monkeypatch.setattr(generated, "drawn", lambda *arguments, **keywords: drawn.append(keywords["start"]) or iter(()))
    parts, weights = model
    made = of_model(weights, parts, {}, num=8, seed=0, size=8, name="", fingerprint="")
    reads = made.reads(4)
    assert drawn == []
    assert list(reads) == []
    assert drawn == [4]


def test_every_label_comes_in_turn():
    cond, rule = conditions(CODEC, ["all"], 7, None)
    assert (cond["label"].tolist(), rule) == ([0, 1, 2, 0, 1, 2, 0], "every label in turn")


def test_labels_are_given_by_name_or_number_and_the_rule_names_them():
    cond, rule = conditions(CODEC, ["owl", "0"], 3, None)
    assert (cond["label"].tolist(), rule) == ([2, 0, 2], "owl, cat")
    assert conditions(CODEC, ["2", "cat"], 3, None)[1] == rule


@pytest.mark.parametrize("times", [1, 2])
def test_samples_have_each_label_as_often_as_the_reference(times):
    labels = np.repeat([0, 1, 2], [50, 20, 130])
    cond, rule = conditions(CODEC, ["data"], 200 * times, examples(labels))
    assert np.bincount(cond["label"]).tolist() == [50 * times, 20 * times, 130 * times]
    assert (cond["label"].dtype, rule) == (np.int32, "as the reference's")


def test_fewer_samples_have_labels_from_all_over_a_reference_that_lies_class_by_class():
    cond, _ = conditions(CODEC, ["data"], 100, examples(np.repeat([0, 1, 2], 1000)))
    assert min(np.bincount(cond["label"], minlength=3)) > 15


def test_a_sample_s_label_does_not_depend_on_how_many_there_are():
    reference = examples(np.random.default_rng(0).integers(0, 3, 150))
    few, many = (conditions(CODEC, ["data"], num, reference)[0]["label"] for num in (40, 400))
    np.testing.assert_array_equal(few, many[:40])


def test_labels_are_read_a_few_examples_at_a_time():
    taken = []

    class Watched(ArrayExamples):
        def take(self, indices):
            taken.append(len(indices))
            return super().take(indices)

    reference = examples(np.zeros(1000))
    conditions(CODEC, ["data"], 1000, Watched(reference.arrays))
    assert sum(taken) == 1000
    assert max(taken) <= 64


def test_a_model_without_labels_takes_none():
    plain = dataclasses.replace(CODEC, conditions=())
    for labels in (["data"], ["all"]):
        assert conditions(plain, labels, 5, None) == ({}, "none")
    with pytest.raises(UserError, match="this model was trained without labels"):
        conditions(plain, ["cat"], 5, None)


def test_labels_that_cannot_be_given_are_refused():
    with pytest.raises(UserError, match="--labels=data: the reference has no labels of this model's data; give --labels=all, or names"):
        conditions(CODEC, ["data"], 5, None)
    with pytest.raises(UserError, match="unknown label 'cta': did you mean 'cat'"):
        conditions(CODEC, ["cta"], 5, None)


def test_a_model_whose_samples_are_no_pictures_is_refused(model, curve):
    check_draws_pictures(model[0], "flow")
    config = curve()
    parts = build.parts(config, build.data_source(config).codec)
    with pytest.raises(UserError, match="objective 'toy_squared_error' draws no samples to score"):
        check_draws_pictures(parts, config.objective.name)
    with pytest.raises(UserError, match="scores compare pictures, and this model's samples are curve"):
        check_draws_pictures(dataclasses.replace(model[0], codec=parts.codec), "flow")


def test_weights_are_taken_as_they_are(model):
    parts, (params, buffers) = model
    other = jax.tree.map(lambda leaf: leaf * 1.5, params), buffers
    assert np.mean(pictures((parts, other), 8) == pictures(model, 8)) < 0.9
