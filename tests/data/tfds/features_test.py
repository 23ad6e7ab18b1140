"""Which features of a TFDS set are learnt, and in which shape."""

import numpy as np
import pytest
import tensorflow_datasets as library
from tfds_sets import HELD_OUT, NUM, Stripes, file_of, numbers, pixels_of, prepared, source_of

from tinygen.data.source import check_batch
from tinygen.errors import UserError


class Sorted(Stripes):
    """The same images with sparse whole numbers as their only label, some of them negative."""

    KINDS = (-3, 7, 10**12)

    def _info(self):
        features = dict(image=library.features.Image(shape=(12, 8, 3)), caption=library.features.Text(), kind=np.int64)
        return library.core.DatasetInfo(builder=self, features=library.features.FeaturesDict(features))

    def example(self, number):
        return dict(image=file_of(pixels_of(number)), caption=f"stripes, the {number}th", kind=self.KINDS[number % 3])


class Mixed(Stripes):
    """Images of several sizes, and no feature that could be a label."""

    def _info(self):
        features = dict(image=library.features.Image(shape=(None, None, 3)), caption=library.features.Text())
        return library.core.DatasetInfo(builder=self, features=library.features.FeaturesDict(features))

    def example(self, number):
        return dict(image=file_of(pixels_of(number)[: 6 + number % 2]), caption=f"stripes, the {number}th")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("tfds"), Stripes, Sorted, Mixed)


def test_images_of_one_shape_that_is_not_square_are_read_as_they_are_stored(place):
    source = source_of(place, "stripes")
    assert source.codec.spec["x"].shape == (12, 8, 3)
    batch = source.splits["train"].take(np.arange(4))
    np.testing.assert_array_equal(source.codec.medium.decode(batch["x"]), np.stack([pixels_of(number) for number in numbers(source)[:4]]))
    given = source_of(place, "stripes", size=(12, 8))
    assert given.fingerprint == source.fingerprint != source_of(place, "stripes", size=(8, 12)).fingerprint


def test_images_of_several_sizes_need_one_to_be_named(place):
    with pytest.raises(UserError, match=r"no common size \(\?x\?\): set config\.data\.size, one number or height,width"):
        source_of(place, "mixed")
    assert source_of(place, "mixed", size=(6, 8), fit="squeeze").splits["train"].take(np.arange(3))["x"].shape == (3, 6, 8, 3)


def test_whole_numbers_are_labels_in_the_order_of_their_values(place):
    source = source_of(place, "sorted", label="kind")
    assert source.codec.labels == ("-3", "7", "1000000000000")
    for split, num in (("train", NUM), ("validation", HELD_OUT)):
        batch = source.splits[split].take(np.arange(num))
        check_batch(batch, source.codec)
        assert batch["label"].tolist() == [number % 3 for number in numbers(source, split)]
    nested = source_of(place, "stripes", label="attributes/age")
    assert nested.codec.labels == tuple(map(str, range(NUM + HELD_OUT)))
    assert source_of(place, "sorted").codec.labels == ()  # a number may be anything: it is a label where it is called one


def test_where_no_feature_can_be_a_label_that_is_said(place):
    with pytest.raises(UserError, match=r"caption: in mixed this is Text.* leave it empty: the set has no such feature"):
        source_of(place, "mixed", size=8, label="caption")
    with pytest.raises(UserError, match="unknown label of sorted 'knid': did you mean 'kind'"):
        source_of(place, "sorted", label="knid")
