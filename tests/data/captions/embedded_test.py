"""Prepared embeddings in the batches of any captioned source: each beside its own example, and none of other data."""

import dataclasses
import json
import os
import shutil
import sys
import threading

import numpy as np
import pytest
import told
import told_folder

from tinygen import config as config_lib
from tinygen.data.captions.embedded import SPREAD, carried_over, embedded, spread
from tinygen.data.captions.embeddings import CaptionEmbeddings, Rows
from tinygen.data.captions.tokenized import tokenized
from tinygen.data.codec import Codec, Field
from tinygen.errors import UserError
from tinygen.media import Image
from tinygen.pretrained import text_encoder

TEXT = CaptionEmbeddings(encoder="/encoder", sha256="e" * 64, length=8, features=told.FEATURES)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder of embeddings. Shared: only to be read."""
    return told_folder.make(tmp_path_factory.mktemp("embeddings") / "out")


@pytest.fixture
def folder(written, tmp_path):
    """A copy that may be damaged."""
    return shutil.copytree(written, tmp_path / "copy")


def codec_of(text):
    spec = {"embed": Field(shape=(text.length, text.features), dtype="float32"), "embed_mask": Field(shape=(text.length,), dtype="bool")}
    return Codec(medium=Image(), spec=spec, conditions=(text,))


def read(folder, known=None, **data):
    return embedded(told.source(**data), str(folder), known)


def test_a_batch_has_the_embeddings_of_its_own_examples(written):
    source = read(written)
    plain, batch = next(told.source().batches("train", 16, 3)), next(source.batches("train", 16, 3))
    np.testing.assert_array_equal(batch["x"], plain["x"])
    images, words = told.source().splits["train"].arrays["x"], told.source().splits["train"].words
    captions = [words[int(np.flatnonzero((images == x).all((1, 2, 3)))[0])] for x in batch["x"]]
    embed, there = told.encoder().encode(captions, 8)
    np.testing.assert_array_equal(batch["embed"], embed.astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(batch["embed_mask"], there)
    assert (batch["embed"].dtype, batch["embed_mask"].dtype) == (np.float32, bool)
    assert set(batch) == {"x", "embed", "embed_mask"}
    assert 0 < there.any(1).sum() < 16  # with and without a caption


def test_held_out_examples_have_theirs(written):
    batch = next(read(written).epoch("validation", 8))
    embed, there = told.encoder().encode([told.WORDS[index % 5] for index in range(8)], 8)
    np.testing.assert_allclose(batch["embed"], embed, rtol=1e-3, atol=1e-6)
    np.testing.assert_array_equal(batch["embed_mask"], there)


def test_what_a_batch_holds_is_what_the_codec_says(written):
    codec = read(written).codec
    assert codec.conditions[0] == TEXT
    batch = next(read(written).batches("train", 4, 0))
    assert {name: (field.shape, field.dtype) for name, field in codec.spec.items()} == {
        name: (array.shape[1:], array.dtype.name) for name, array in batch.items()
    }
    assert {key: value for key, value in codec.facts().items() if key.startswith("text")} == {
        "text_length": 8,
        "text_vocabulary": 0,
        "text_features": told.FEATURES,
    }


def test_a_batch_reads_its_own_tokens_and_no_others(written, monkeypatch):
    examples, pread, sizes = read(written).splits["train"], os.pread, {}

    def counted(file, size, start):
        sizes.setdefault(threading.get_ident(), []).append(size)  # a loader of another test may still read ahead in its thread
        return pread(file, size, start)

    monkeypatch.setattr(os, "pread", counted)
    examples.take(np.array([3, 0, 4]))
    assert sizes[threading.get_ident()] == [2 * told.FEATURES * len(told.WORDS[index].split()) for index in (3, 0, 4)]


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(path.read_bytes()[:150]), lambda path: path.unlink()])
def test_a_file_that_changes_under_a_run_is_named(folder, damage):
    examples = read(folder).splits["train"]
    damage(folder / "train.npy")
    with pytest.raises(UserError, match=r"train\.npy can no longer be read as it was at the start"):
        examples.take(np.array([20]))


def test_the_fingerprint_is_of_the_content_and_not_of_the_place(written, folder, tmp_path):
    assert read(folder).fingerprint == read(written).fingerprint != told.source().fingerprint
    other = told_folder.make(tmp_path / "other", words=("green",))
    assert read(other, words=("green",)).fingerprint != read(written).fingerprint


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (dict(fingerprint="other"), "belongs to other data (their fingerprint was told and is other; data_files.json, "),
        (dict(num=23), "holds 24 captions of train, but the data have 23"),
        (dict(words=(*told.WORDS[:4], "no words")), "the captions of train have changed"),
    ],
    ids=str,
)
def test_embeddings_of_other_data_are_refused(written, data, said):
    with pytest.raises(UserError) as error:
        read(written, **data)
    assert said in str(error.value)


def test_of_many_captions_some_from_all_over_are_compared():
    asked = []

    class Asked(told.Told):
        def captions(self, indices):
            asked.extend(indices)
            return [""] * len(indices)

    spread(Asked({"x": np.zeros(10**6)}))
    assert len(asked) == SPREAD
    assert (asked[0], asked[-1]) == (0, 10**6 - 1)


@pytest.mark.parametrize("changes", [dict(sha256="f" * 64), dict(length=9), dict(features=7)], ids=str)
def test_embeddings_that_a_run_has_not_learnt_from_are_refused(written, changes):
    read(written, known=codec_of(dataclasses.replace(TEXT, encoder="elsewhere")))
    with pytest.raises(UserError, match="does not match this run"):
        read(written, known=codec_of(dataclasses.replace(TEXT, **changes)))


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def about(path, **changes):
    tree = json.loads(path.read_text())
    path.write_text(json.dumps({**tree, "text": {**tree["text"], **changes}}))


def longer(path):
    lengths = np.load(path)
    np.save(path, np.roll(lengths, 1))


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        ("train.npy", cut, "train.npy is damaged"),
        ("train.npy", lambda path: path.write_bytes(b""), "train.npy is damaged"),
        ("validation.npy", lambda path: path.unlink(), "validation.npy is damaged (it is missing)"),
        ("train.npy", lambda path: np.save(path, np.load(path)[:, :3]), "float16[45, 3] instead of <f2[45, 6]"),
        ("train_lengths.npy", longer, "train_lengths.npy is damaged"),
        ("train_lengths.npy", lambda path: np.save(path, np.array([{}], object), allow_pickle=True), "train_lengths.npy is damaged"),
        ("text.json", lambda path: path.unlink(), "text.json is not there. Embeddings are made, in a checkout"),
        ("text.json", cut, "text.json is damaged"),
        ("text.json", lambda path: path.write_text("[" * 10**5), "text.json is damaged"),
        ("text.json", lambda path: path.write_text("{}"), "text.json is damaged"),
        ("text.json", lambda path: about(path, features=0), "text.json: embeddings of a caption have 1 to"),
        ("text.json", lambda path: about(path, features=2.5), "text.json: embeddings of a caption have 1 to"),
        ("text.json", lambda path: about(path, more=1), "text.json is damaged"),
        ("text.json", lambda path: path.write_text(path.read_text().replace('"version": 1', '"version": 2')), "its version is 2"),
    ],
)  # fmt: skip
def test_a_damaged_folder_is_refused(folder, name, damage, said):
    damage(folder / name)
    with pytest.raises(UserError) as error:
        read(folder)
    assert said in str(error.value)


def test_captions_that_were_cut_off_are_told_of(tmp_path):
    made = told_folder.make(tmp_path / "out", words=("one two three four five six seven eight nine",))
    said = "\n".join(read(made, words=("one two three four five six seven eight nine",)).about())
    encoder = "embeddings by /encoder (sha256 eeeeeeeeeeeeeeee), 8 tokens of 6 features"
    assert f"captions for 24 of 24 training images and 8 of 8 held out, as {encoder}" in said
    assert "24 captions of train are truncated to 8 tokens" in said


def test_tokens_and_embeddings_at_once_are_refused():
    both = config_lib.base(text=dict(tokens="bytes", embeddings="somewhere"))
    with pytest.raises(UserError, match=r"config\.text\.tokens=bytes and config\.text\.embeddings=somewhere: set one"):
        config_lib.check(both)
    assert config_lib.may_change("text.embeddings", both)


def test_a_stored_codec_knows_the_encoder(written):
    codec = read(written).codec
    assert Codec.from_json(json.loads(json.dumps(codec.to_json()))) == codec


@pytest.mark.parametrize(
    "damage",
    [
        dict(length=0), dict(length=9), dict(length="x"), dict(features=10**9), dict(features=7), dict(features=True), dict(sha256="x"),
        dict(sha256=3), dict(encoder=3), dict(encoder="x" * 5000), dict(more=1),
    ],
    ids=str,
)  # fmt: skip
def test_a_damaged_codec_is_named(written, damage):
    tree = read(written).codec.to_json()
    tree["text"] |= damage
    with pytest.raises(UserError, match=r"^here: "):
        Codec.from_json(tree, "here")


@pytest.mark.parametrize("text", ["encoder", ["encoder"], 3])
def test_what_is_no_text_encoder_at_all_is_named(written, text):
    with pytest.raises(UserError, match=r"^here: "):
        Codec.from_json({**read(written).codec.to_json(), "text": text}, "here")


def test_rows_are_read_in_their_order_when_they_are_asked_for():
    read_so_far = []

    def reading(indices):
        read_so_far.extend(indices)
        return np.arange(10.0)[indices]

    rows = Rows(reading, np.array([5, 3, 3, 0]))
    assert (len(rows), read_so_far) == (4, [])
    np.testing.assert_array_equal(rows[np.array([1, 0])], [3.0, 5.0])
    assert read_so_far == [3, 5]
    np.testing.assert_array_equal(rows[:], [5.0, 3.0, 3.0, 0.0])


@pytest.mark.parametrize(("prompt", "said"), [(" ", "is empty"), ("a b c d e f g h i", "has 9 tokens, and this model reads 8")])
def test_a_prompt_that_cannot_be_read_whole_is_refused(prompt, said):
    with pytest.raises(UserError, match=said):
        told.encoder().prompts([prompt], 8)


def test_without_the_libraries_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"pip install 'tinygen\[text\]'"):
        text_encoder.load("anything")


def test_where_training_examples_are_drawn_their_embeddings_come_with_them(written):
    """As of latents, whose posteriors are drawn from."""
    plain = told.source()

    def draw(indices, generators):
        return {"x": plain.splits["train"].take(indices)["x"] + np.stack([each.normal(size=(16, 16, 3)) for each in generators])}

    batch = next(embedded(dataclasses.replace(plain, draw=draw), str(written)).batches("train", 4, 3))
    steady = next(read(written).batches("train", 4, 3))
    assert np.abs(batch["x"] - steady["x"]).max() > 1
    np.testing.assert_array_equal(batch["embed"], steady["embed"])
    tokens = tokenized(dataclasses.replace(plain, draw=draw), tokens="bytes", length=8, vocabulary=0)
    np.testing.assert_array_equal(next(tokens.batches("train", 4, 3))["text"].any(1), steady["embed_mask"].any(1))


def test_images_behind_latents_have_the_embeddings_of_these(written):
    source = read(written)
    images = told.source(num=12, fingerprint="images")  # latents may be of mirrored images besides, after all others
    both = carried_over(source, images)
    batch = both.splits["train"].take(np.array([11, 2]))
    np.testing.assert_array_equal(batch["x"], images.splits["train"].take(np.array([11, 2]))["x"])
    np.testing.assert_array_equal(batch["embed"], source.splits["train"].take(np.array([11, 2]))["embed"])
    assert (len(both.splits["train"]), both.codec.conditions[0], both.fingerprint) == (12, source.codec.conditions[0], "images")
