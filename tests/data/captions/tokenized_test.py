"""Captions of any source as a condition of its batches."""

import dataclasses

import numpy as np
import pytest

from tinygen import build
from tinygen import config as config_lib
from tinygen.data.captions.tokenized import tokenized
from tinygen.data.codec import Codec, Field
from tinygen.data.condition import Request
from tinygen.data.examples import ArrayExamples
from tinygen.data.labels import Labels
from tinygen.data.source import DataSource
from tinygen.errors import UserError
from tinygen.media import Array
from tinygen.sampling.conditions import asked


@dataclasses.dataclass(frozen=True)
class Told(ArrayExamples):
    """Arrays with captions."""

    words: tuple[str, ...] = ()

    def captions(self, indices):
        return [self.words[index] for index in indices]


def source(train, validation=("held out",), fingerprint="same"):
    def examples(words):
        return Told({"x": np.arange(len(words), dtype=np.float32)[:, None]}, tuple(words))

    codec = Codec(medium=Array("array"), spec={"x": Field(shape=(1,), dtype="float32")})
    return DataSource(codec=codec, splits={"train": examples(train), "validation": examples(validation)}, fingerprint=fingerprint)


def as_bytes(*arguments, length=8, **options):
    return tokenized(source(*arguments, **options), tokens="bytes", length=length, vocabulary=0)


@pytest.mark.parametrize("tokens", ["bytes", "bpe"])
def test_a_caption_and_a_prompt_have_the_same_tokens_however_their_characters_are_composed(tokens):
    made = tokenized(source(["cafe\u0301", "caf\u00e9", "\ufeffcafe\u0301"]), tokens=tokens, length=8, vocabulary=300)
    read = made.splits["train"].take(np.arange(3))["text"]
    for prompt in ("caf\u00e9", "cafe\u0301"):
        np.testing.assert_array_equal(read, asked(made.codec, Request(prompts=[prompt]), 3).cond["text"])
    assert as_bytes(["cafe\u0301"]).fingerprint == as_bytes(["caf\u00e9"]).fingerprint


def test_a_batch_has_the_tokens_of_its_own_examples():
    told = as_bytes(["a", "bb", "ccc"])
    batch = next(told.batches("train", 3, 0))
    assert batch["text"].dtype == np.int32
    expected = told.codec.conditions[0].rows([["a", "bb", "ccc"][int(row)] for row in batch["x"][:, 0]])[0]
    np.testing.assert_array_equal(batch["text"], expected)
    held_out = next(told.epoch("validation", 2))
    np.testing.assert_array_equal(held_out["text"], told.codec.conditions[0].rows(["held out"] * 2)[0])
    assert set(held_out) == {"x", "text", "weight"}


def test_what_a_batch_holds_is_what_the_codec_says():
    told = tokenized(source(["red red", "red"]), tokens="bpe", length=8, vocabulary=260)
    field, batch = told.codec.spec["text"], next(told.batches("train", 2, 0))
    assert (field.shape, field.dtype, field.low) == ((8,), "int32", 0)
    assert batch["text"].max() <= field.high
    assert 257 < told.codec.conditions[0].vocabulary <= 260
    assert batch["text"].max() > 256  # a merge


def test_held_out_captions_as_far_as_they_are_read_are_the_examples_of_prompts():
    told = as_bytes(["a"], ["one", "", "one", "two", "much too long"])
    assert told.codec.conditions[0].examples == ("one", "two", "much too")
    assert as_bytes(["a", "b"], [""]).codec.conditions[0].examples == ("a", "b")


def test_an_example_without_a_caption_has_padding_alone():
    batch = next(as_bytes(["a", ""]).epoch("train", 2))
    np.testing.assert_array_equal(batch["text"][1], 0)


def test_captions_that_are_cut_off_are_told_of():
    said = "\n".join(as_bytes(["short", "far too long to be read", "a longer one"]).about())
    assert "captions for 3 of 3 training images" in said
    assert "config.text.length=8: 2 captions of train have up to 23 tokens and are truncated" in said


@pytest.mark.parametrize("changed", [dict(length=9), dict(train=["b"]), dict(fingerprint="other"), dict(validation=["new"])], ids=str)
def test_the_fingerprint_covers_captions_and_how_they_are_read(changed):
    train = changed.pop("train", ["a"])
    assert as_bytes(train, **changed).fingerprint != as_bytes(["a"]).fingerprint == as_bytes(["a"]).fingerprint


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (dict(tokens="byte"), r"config.text.tokens 'byte': did you mean 'bytes'"),
        (dict(length=0), "config.text.length=0"),
        (dict(length=10_000), "config.text.length=10000"),
        (dict(tokens="bpe", vocabulary=257), "config.text.vocabulary=257"),
    ],
    ids=str,
)
def test_an_option_that_cannot_be_is_named(options, said):
    with pytest.raises(UserError, match=said):
        tokenized(source(["a"]), **(dict(tokens="bytes", length=8, vocabulary=300) | options))


def test_images_without_captions_cannot_teach_words():
    with pytest.raises(UserError, match="no training image has a caption"):
        as_bytes(["", " "])


def test_words_that_a_run_has_learnt_are_kept():
    before = tokenized(source(["red red", "red"]), tokens="bpe", length=8, vocabulary=260).codec
    later = tokenized(source(["blue blue", "blue"]), tokens="bpe", length=8, vocabulary=260, known=before)
    assert (
        later.codec.conditions[0].merges
        == before.conditions[0].merges
        != tokenized(source(["blue blue"]), tokens="bpe", length=8, vocabulary=260).codec.conditions[0].merges
    )


def test_where_no_prompt_can_be_shown_samples_go_without_a_caption():
    codec = as_bytes(["muchtoolongaword"], ["alsotoolongaword"]).codec
    assert codec.conditions[0].examples == ()
    np.testing.assert_array_equal(codec.encode(3)["text"], np.zeros((3, 8), np.int32))


def test_labels_beside_captions_are_refused():
    labelled = source(["a"])
    labelled = dataclasses.replace(labelled, codec=dataclasses.replace(labelled.codec, conditions=(Labels(("cat", "dog")),)))
    with pytest.raises(UserError, match=r"captions or labels, not both: drop the labels with --config.data.label=''"):
        build.captioned(config_lib.base(text=dict(tokens="bytes")), labelled)


def test_it_is_said_that_words_are_those_that_the_weights_have_learnt():
    before = tokenized(source(["red red", "red"]), tokens="bpe", length=8, vocabulary=260).codec
    later = tokenized(source(["blue blue"]), tokens="bpe", length=8, vocabulary=999, known=before)
    assert any("config.text.vocabulary is ignored" in line for line in later.about())
