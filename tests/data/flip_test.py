import dataclasses
import itertools

import numpy as np

from tinygen.data.codec import Codec, Field
from tinygen.data.examples import ArrayExamples
from tinygen.data.source import DataSource
from tinygen.media import Image


def numbered_images(num=12):
    """A source whose image i holds the value i / num on its left half and -1 on its right, so that a mirrored one is known."""
    x = np.full((num, 2, 4, 1), -1.0, np.float32)
    x[:, :, :2] = (np.arange(num) / num)[:, None, None, None]
    codec = Codec(medium=Image(), spec={"x": Field(shape=(2, 4, 1), dtype="float32", low=-1, high=1)})
    examples = ArrayExamples({"x": x})
    return DataSource(codec=codec, splits={"train": examples, "validation": examples}, fingerprint="numbers", flip=True)


def read(source, num, split="train", **keywords):
    return np.stack([batch["x"] for batch in itertools.islice(source.batches(split, 4, 0, **keywords), num)])


def test_flipping_mirrors_half_of_the_images_and_another_half_each_epoch():
    plain, flipped = read(dataclasses.replace(numbered_images(), flip=False), 60), read(numbered_images(), 60)
    mirrored = np.all(flipped == plain[:, :, :, ::-1], (2, 3, 4))
    assert np.all(mirrored | np.all(flipped == plain, (2, 3, 4)))
    assert 0.35 < mirrored.mean() < 0.65  # 240 fair coins: five standard deviations are 0.16
    assert len({tuple(epoch) for epoch in mirrored.reshape(20, 12)}) > 15


def test_a_flipped_batch_is_a_function_of_its_number_alone():
    whole = read(numbered_images(), 9)
    np.testing.assert_array_equal(whole[5:], read(numbered_images(), 4, start=5))
    np.testing.assert_array_equal(whole[:, [1, 2]], read(numbered_images(), 9, rows=[1, 2]))
    assert not np.array_equal(whole, read(numbered_images(), 9, attempt=1))


def test_held_out_images_are_not_flipped():
    plain = dataclasses.replace(numbered_images(), flip=False)
    np.testing.assert_array_equal(read(numbered_images(), 6, "validation"), read(plain, 6, "validation"))
    np.testing.assert_array_equal(next(numbered_images().epoch("validation", 12))["x"], plain.splits["train"].take(np.arange(12))["x"])
