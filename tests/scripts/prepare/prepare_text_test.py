"""Captions encoded once with a text encoder: the content of the folder, which is complete or absent, and the messages."""

import json

import numpy as np
import prepare_text
import pytest
import told

from tinygen.config import schema
from tinygen.data.captions.embeddings import Prepared
from tinygen.errors import UserError
from tinygen.pretrained import text_encoder

RECIPE = """
from tinygen.config import base
def get_config(variant=""):
    return base(data=dict(name="told"), text=dict(tokens="bytes"))
"""


@pytest.fixture
def prepare(tmp_path, monkeypatch, add_row):
    """prepare(*options, words=...): the script's status on captioned images, by an encoder that needs no library; its folder is `out`."""
    monkeypatch.setattr(text_encoder, "load", told.loading())
    (tmp_path / "recipe.py").write_text(RECIPE)

    def run(*options, **data):
        add_row("data", "told", lambda: told.source(**data), {})
        out = [] if any(option.startswith("--out") for option in options) else [f"--out={tmp_path / 'out'}"]
        return prepare_text.main([f"--config={tmp_path / 'recipe.py'}", "--encoder=/encoder", *out, *options])

    return run


def test_the_folder_holds_the_tokens_of_all_captions_one_after_another(prepare, tmp_path):
    assert prepare("--batch_size=3", num=7) == 0
    values, lengths = np.load(tmp_path / "out/train.npy"), np.load(tmp_path / "out/train_lengths.npy")
    words = [told.WORDS[index % len(told.WORDS)].split() for index in range(7)]
    np.testing.assert_array_equal(lengths, [len(each) for each in words])
    expected = [told.vector(word, place) for each in words for place, word in enumerate(each)]
    assert values.dtype == np.float16
    np.testing.assert_array_equal(values, np.float16(expected))
    assert {path.name for path in tmp_path.iterdir()} == {"recipe.py", "out"}


def test_it_says_what_made_it(prepare, tmp_path):
    assert prepare("--length=3", num=10) == 0
    about = Prepared.read(tmp_path / "out")
    assert (about.text.encoder, about.text.sha256, about.text.length, about.text.features) == ("/encoder", "e" * 64, 3, told.FEATURES)
    assert about.data == "told"
    assert (about.splits["train"].num, about.splits["train"].captioned, about.splits["train"].cut) == (10, 8, 2)
    assert json.loads((tmp_path / "out/text.json").read_text())["version"] == 1


def test_the_same_captions_give_the_same_bytes_in_whatever_batches(prepare, tmp_path):
    assert prepare(f"--out={tmp_path / 'one'}") == prepare(f"--out={tmp_path / 'other'}", "--batch_size=1") == 0
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "other" / path.name).read_bytes()


def test_it_ends_with_what_was_made_and_the_next_command(prepare, tmp_path, capsys):
    prepare("--length=3", "--config.batch_size=8")
    said = capsys.readouterr().out
    assert "captions of 20 of 24 training examples, 7 of 8 held out" in said
    assert "6 captions were truncated to 3 tokens" in said
    given = f"--config={tmp_path / 'recipe.py'} --config.batch_size=8 --config.text.tokens= --config.text.embeddings={tmp_path / 'out'}"
    assert said.strip().endswith(f"next: tinygen train {given}")


@pytest.mark.parametrize(
    ("options", "data", "said"),
    [
        (["--length=17"], {}, "--length=17 must be between 2 and 16"),
        (["--length=0"], {}, "--length=0"),
        (["--batch_size=0"], {}, "--batch_size=0"),
        (["--encoder=/elsewhere"], {}, "--encoder=/elsewhere: there is no such folder"),
        ([], dict(words=("",)), "no training image has a caption"),
        (["--out=."], {}, "already exists"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line_and_leaves_nothing(prepare, tmp_path, capsys, options, data, said):
    assert prepare(*options, **data) == 2
    assert said in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"recipe.py"}


def test_a_disk_without_space_is_refused_before_anything_is_encoded(prepare, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(prepare_text, "free_bytes", lambda path: 2**20 + 100)
    monkeypatch.setattr(prepare_text, "encode_split", None)
    assert prepare() == 2
    tokens = sum(len(told.WORDS[index % 5].split()) for each in (24, 8) for index in range(each))
    assert f"embeddings of {tokens} tokens need" in capsys.readouterr().err


def test_what_is_interrupted_leaves_nothing(prepare, tmp_path, monkeypatch):
    def fails(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(prepare_text, "encode_split", fails)
    with pytest.raises(KeyboardInterrupt):
        prepare()
    assert {path.name for path in tmp_path.iterdir()} == {"recipe.py"}


def test_values_that_float16_does_not_hold_are_refused(monkeypatch, prepare, capsys):
    monkeypatch.setattr(told, "vector", lambda word, place: np.full(told.FEATURES, 1e6, np.float32))
    assert prepare() == 2
    assert "not finite, or beyond 65,504" in capsys.readouterr().err


def test_an_overfitted_recipe_has_the_captions_of_all_its_data(prepare, tmp_path):
    assert schema.SCHEMA["data"]["overfit"].default == 0
    assert prepare("--config.data.overfit=2") == 0
    assert Prepared.read(tmp_path / "out").splits["train"].num == 24


def test_a_folder_that_is_none_is_named(tmp_path):
    with pytest.raises(UserError, match=r"text\.json is not there\. Embeddings are made, in a checkout"):
        Prepared.read(tmp_path)
