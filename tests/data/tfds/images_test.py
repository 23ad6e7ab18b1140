import functools
import json
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow_datasets as library
from PIL import Image
from tfds_sets import HELD_OUT, NUM, Squares, Stripes, numbers, pixels_of, prepared, source_of

from tinygen import build, train
from tinygen import config as config_lib
from tinygen.data.images import pixels
from tinygen.data.source import check_batch
from tinygen.data.tfds import images
from tinygen.errors import UserError
from tinygen.media import image
from tinygen.workdir import files


class Words(library.core.GeneratorBasedBuilder):
    """No image at all."""

    VERSION = library.core.Version("1.0.0")

    def _info(self):
        return library.core.DatasetInfo(builder=self, features=library.features.FeaturesDict(dict(word=library.features.Text())))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        yield 0, dict(word="hello")


class Far(Words):
    """A set that must be downloaded from a place that does not exist."""

    @property
    def url_infos(self):
        return {"http://nowhere.invalid/words.zip": None}


class Torn(Words):
    """Its author's code fails."""

    def _generate_examples(self):
        raise KeyError("a column that the file does not have")
        yield


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A TFDS folder with some sets prepared."""
    return prepared(tmp_path_factory.mktemp("tfds"), Stripes, Squares, Words)


@pytest.fixture
def read(place):
    """The source of a set under the table's keywords and the given ones."""
    return functools.partial(source_of, place)


def test_a_set_is_read_by_name_with_its_label_and_captions(read):
    source = read("stripes", size=8)
    examples = source.splits["train"]
    assert source.codec.labels == ("even", "odd")
    assert sorted(numbers(source)) == list(range(NUM))
    batch = examples.take(np.array([7, 3]))
    shown = [numbers(source)[index] for index in (7, 3)]
    assert batch["label"].tolist() == [number % 2 for number in shown]
    expected = np.stack([pixels_of(number)[2:10] for number in shown])  # the middle of the higher side
    np.testing.assert_array_equal(source.codec.medium.decode(batch["x"]), expected)
    check_batch(source.splits["train"].take(np.arange(8)), source.codec)


def test_a_test_split_is_held_out_where_there_is_no_validation_split(read):
    source = read("stripes", size=8)
    assert sorted(numbers(source, "validation")) == list(range(NUM, NUM + HELD_OUT))


def test_the_last_twentieth_is_held_out_where_there_is_one_split_only(read):
    source = read("squares", image="picture")
    assert (len(source.splits["train"]), len(source.splits["validation"])) == (38, 2)
    both = np.concatenate([source.splits[split].take(np.arange(len(source.splits[split])))["x"][:, 0, 0, 0] for split in source.splits])
    assert len(set(both.tolist())) == NUM


def test_splits_are_given_as_tfds_writes_them(read):
    source = read("stripes", size=8, train="train[:50%]", validation="train[90%:]")
    assert (len(source.splits["train"]), len(source.splits["validation"])) == (20, 4)
    assert not set(numbers(source)) & set(numbers(source, "validation"))


def test_a_nested_flag_is_a_label_with_two_names(read):
    source = read("stripes", size=8, label="attributes/Very_Red")
    assert source.codec.labels == ("not very red", "very red")
    assert source.splits["train"].take(np.arange(NUM))["label"].tolist() == [int(number > 20) for number in numbers(source)]
    assert source.codec.conditions[0].index("very red") == 1


def test_a_set_is_trained_without_its_label_when_told_so(read):
    source = read("stripes", size=8, label="")
    assert source.codec.labels == ()
    assert set(source.splits["train"].take(np.arange(2))) == {"x"}


def test_images_keep_their_size_and_channels_where_none_are_given(read):
    source = read("squares", image="picture")
    assert source.codec.spec["x"].shape == (8, 8, 1)
    assert read("squares", image="picture", channels=3, size=16).splits["train"].take(np.arange(3))["x"].shape == (3, 16, 16, 3)


def test_resizing_is_that_of_every_other_source(read):
    source = read("stripes", size=4, fit="pad")
    (number,) = numbers(source)[:1]
    by_hand = pixels.fitted(Image.fromarray(pixels_of(number)), size=(4, 4), fit="pad", channels=3, background="white")
    np.testing.assert_array_equal(source.codec.medium.decode(source.splits["train"].take(np.array([0]))["x"][0]), by_hand)


def test_a_prepared_builder_of_ones_own_is_read_from_its_folder(read, place):
    by_name, by_folder = read("stripes", size=8), read(f"{place}/stripes/1.0.0", size=8)
    assert by_name.fingerprint == by_folder.fingerprint
    np.testing.assert_array_equal(by_name.splits["train"].take(np.arange(9))["x"], by_folder.splits["train"].take(np.arange(9))["x"])


def test_the_fingerprint_tells_sets_splits_and_options_apart(read):
    made = [read("stripes", **each) for each in (dict(size=8), dict(size=4), dict(size=8, label=""), dict(size=8, train="train[:50%]"))]
    assert len({source.fingerprint for source in made}) == 4
    assert read("stripes", size=8).fingerprint == made[0].fingerprint


def test_threads_may_read_at_the_same_time(read):
    examples = read("stripes", size=8).splits["train"]
    alone, together = examples.take(np.arange(NUM))["x"], [None] * 8
    threads = [
        threading.Thread(target=lambda at: together.__setitem__(at, examples.take(np.arange(NUM))["x"]), args=(at,)) for at in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for x in together:
        np.testing.assert_array_equal(x, alone)


def test_a_run_shows_what_its_model_will_see_of_the_data(read, tmp_path):
    source = read("stripes", size=8)
    train.show_data(files.folder(tmp_path), source, 4)
    first, *_, last = json.loads((tmp_path / "data.json").read_text())
    spread = [numbers(source)[index] for index in (0, NUM - 1)]  # the ends of the split: it may be sorted
    assert [first["caption"], last["caption"]] == [f"stripes, the {number}th" for number in spread]
    assert first["label"] == ("even", "odd")[spread[0] % 2]
    shown = np.asarray(Image.open(tmp_path / "data.png"))
    first_image = source.codec.medium.decode(source.splits["train"].take(np.array([0]))["x"])
    assert shown.shape == image.grid(np.repeat(first_image, 4, axis=0)).shape
    np.testing.assert_array_equal(shown[:80, :80], image.grid(first_image)[:80, :80])


@pytest.mark.parametrize(
    ("dataset", "keywords", "said"),
    [
        ("", {}, "config.data.dataset is missing"),
        ("strips", {}, "did you mean 'stripes'?"),
        ("stripes:9.9.9", {}, "9.9.9"),
        ("words", {}, "holds no image; its features: word"),
        ("squares", {}, "several images: choose one with config.data.image=picture | mask"),
        ("squares", dict(image="pictur"), "did you mean 'picture'?"),
        ("stripes", dict(size=8, label="knd"), "did you mean 'kind'?"),
        ("stripes", dict(size=8, label="caption"), "caption: in stripes this is Text, but a label is a class, a flag or one whole number"),
        ("stripes", dict(size=(12, 8, 3)), "config.data.size=12,8,3 must be one number of pixels per side, or two: height,width"),
        ("stripes", dict(size=8, train="trian"), "Unknown split 'trian'"),
        ("stripes", dict(size=8, validation="train[0:0]"), "split 'train[0:0]' of stripes: it is empty"),
        ("stripes", dict(size=8, fit="stretch"), "fit"),
        ("/nowhere/stripes/1.0.0", {}, "there is no such folder"),
        ("./nowhere", {}, "there is no such folder"),
        ("../nowhere", {}, "there is no such folder"),
    ],
)
def test_what_is_not_there_is_refused_in_words(read, dataset, keywords, said):
    with pytest.raises(UserError) as refused:
        read(dataset, **keywords)
    assert said in str(refused.value)
    assert len(str(refused.value).splitlines()) <= 2


def test_what_a_set_does_not_have_is_refused_before_it_is_downloaded(tmp_path):
    with pytest.raises(UserError, match="holds no image"):
        build.data_source(config_lib.base(data=dict(name="tfds", dataset="far", data_dir=str(tmp_path))))
    with pytest.raises(UserError, match="did you mean 'hair_color'"):
        images.avatars(style="micah", num=100, size=(64,), label="hair_colr", flip=False, data_dir=str(tmp_path), prepares=True)
    assert not list(tmp_path.rglob("*.array_record*"))


def test_a_folder_that_holds_no_set_is_refused(read, tmp_path):
    with pytest.raises(UserError, match=r"no TFDS set there \(no dataset_info.json\)"):
        read(str(tmp_path))


def test_without_a_network_a_set_that_must_be_downloaded_is_refused_and_nothing_is_tried_again(tmp_path):
    with pytest.raises(UserError, match=r"nowhere.invalid cannot be reached for it.\nPrepare it where there is a network"):
        images.prepared(Far(data_dir=str(tmp_path), file_format="array_record"))


def test_a_server_that_never_answers_is_given_up(monkeypatch, tmp_path):
    """A look-up of a name can hang for minutes."""
    release = threading.Event()
    monkeypatch.setattr("requests.head", lambda url, timeout: release.wait())
    monkeypatch.setattr(images, "PATIENCE", 0.1)
    with pytest.raises(UserError, match="cannot be reached"):
        images.prepared(Far(data_dir=str(tmp_path), file_format="array_record"))
    release.set()


def test_a_server_that_answers_is_asked_for_the_set(monkeypatch, tmp_path):
    monkeypatch.setattr("requests.head", lambda url, timeout: SimpleNamespace())
    assert len(images.prepared(Far(data_dir=str(tmp_path), file_format="array_record")).as_data_source("train")) == 1


def test_where_an_authors_builder_fails_its_reason_is_given(tmp_path):
    with pytest.raises(UserError, match=r"torn/1.0.0 cannot be prepared in .*\n.*a column that the file does not have"):
        images.prepared(Torn(data_dir=str(tmp_path), file_format="array_record"))


def test_a_set_without_random_access_is_refused_with_what_to_do():
    def as_data_source(split, decoders):
        raise NotImplementedError("Random access data source for file format FileFormat.TFRECORD is not supported")

    stored = SimpleNamespace(
        as_data_source=as_data_source, data_path="here", info=SimpleNamespace(file_format=library.core.FileFormat.TFRECORD)
    )
    with pytest.raises(UserError, match=r"prepared as tfrecord, which has no random access.\nGive another config.data.data_dir"):
        images.rows_of(stored, "train", "image")
