"""Texts of TensorFlow Datasets: an example is a document."""

import numpy as np
import pytest
import tensorflow_datasets as library

from tinygen import build
from tinygen import config as config_lib
from tinygen.errors import UserError


def text_of(index):
    return f"Document {index}, naïve: " + "so it goes. " * (index % 5)


class Lines(library.core.GeneratorBasedBuilder):
    """Two splits of texts, beside a second text."""

    VERSION = library.core.Version("1.0.0")

    def _info(self):
        inner = dict(title=library.features.Text(), words=library.features.Text())
        return library.core.DatasetInfo(builder=self, features=library.features.FeaturesDict(dict(inner=inner, number=np.int64)))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(range(30)), "test": self._generate_examples(range(30, 35))}

    def _generate_examples(self, numbers):
        for number in numbers:
            yield number, dict(inner=dict(title=f"{number}", words=text_of(number)), number=number)


class Alone(Lines):
    """One text, one split."""

    def _info(self):
        return library.core.DatasetInfo(builder=self, features=library.features.FeaturesDict(dict(text=library.features.Text())))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(range(40))}

    def _generate_examples(self, numbers):
        for number in numbers:
            yield number, dict(text=text_of(number))


class Numbers(Lines):
    """No text at all."""

    def _info(self):
        return library.core.DatasetInfo(builder=self, features=library.features.FeaturesDict(dict(number=np.int64)))

    def _generate_examples(self, numbers):
        for number in numbers:
            yield number, dict(number=number)


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A TFDS folder with the sets above prepared."""
    folder = str(tmp_path_factory.mktemp("tfds_text"))
    library.disable_progress_bar()
    for made in (Lines, Alone, Numbers):
        made(data_dir=folder, file_format="array_record").download_and_prepare()
    return folder


@pytest.fixture
def read(place, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def made(dataset, **keys):
        keys = dict(data_dir=place, length=16) | keys
        return build.data_source(config_lib.base(data=dict(name="tfds_text", dataset=dataset, **keys)))

    return made


def told(source, split):
    batch = source.splits[split].take(np.arange(len(source.splits[split])))
    vocabulary, tokens = source.codec.medium.vocabulary, batch["target"][batch["segment"] > 0]
    return {vocabulary.decode(part) for part in np.split(tokens, np.flatnonzero(tokens == vocabulary.end) + 1)} - {""}


def test_each_example_is_a_document_of_its_split(read):
    source = read("lines", feature="inner/words", tokenizer="bpe", vocabulary=280)
    assert told(source, "train") == set(map(text_of, range(30)))
    assert told(source, "validation") == set(map(text_of, range(30, 35)))
    assert source.about()[0].startswith("lines/1.0.0: 30 documents to train on (train), 5 held out (test), in ")


def test_without_another_split_the_last_of_it_is_held_out(read):
    source = read("alone")
    assert len(told(source, "validation")) == 2
    assert told(source, "train") | told(source, "validation") == set(map(text_of, range(40)))


def test_a_prepared_folder_is_the_same_data(read, place):
    half = read("alone", train="train[:50%]", validation="train[50%:]")
    assert read("alone").fingerprint == read(f"{place}/alone/1.0.0").fingerprint != half.fingerprint


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (dict(dataset=""), "config.data.dataset is missing"),
        (dict(dataset="lines"), r"several texts: choose one with config.data.feature=inner/title \| inner/words"),
        (dict(dataset="lines", feature="words"), "unknown text feature of lines 'words'"),
        (dict(dataset="numbers"), "holds no text; its features: number"),
        (dict(dataset="no_such_set"), "unknown TFDS data set 'no_such_set'"),
        (dict(dataset="someone:set"), "runs its author's code"),
        (dict(dataset="alone", tokenizer="word"), "unknown config.data.tokenizer"),
    ],
    ids=str,
)
def test_a_set_that_cannot_be_read_is_refused(keys, said, read):
    with pytest.raises(UserError, match=said):
        read(**keys)
