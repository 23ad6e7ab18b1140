"""Small TFDS sets, for several test modules."""

import io

import numpy as np
import tensorflow_datasets as library
from PIL import Image

from tinygen import build
from tinygen import config as config_lib

NUM, HELD_OUT = 40, 6


def pixels_of(index):
    """Image `index` of `Stripes`: 8 wide, 12 high, three stripes whose colours tell the index."""
    return np.repeat(np.uint8([[[index, 0, 0]], [[0, index, 0]], [[255, 255, index]]]), 4, axis=0).repeat(8, axis=1)


def file_of(array):
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    file.seek(0)
    return file


class Stripes(library.core.GeneratorBasedBuilder):
    """A set with all that a source can use: an image, a class, a nested flag, a caption."""

    VERSION = library.core.Version("1.0.0")

    def _info(self):
        features = dict(
            image=library.features.Image(shape=(12, 8, 3)),
            kind=library.features.ClassLabel(names=["even", "odd"]),
            caption=library.features.Text(),
            attributes=dict(Very_Red=np.bool_, age=np.int64),
        )
        return library.core.DatasetInfo(builder=self, features=library.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(range(NUM)), "test": self._generate_examples(range(NUM, NUM + HELD_OUT))}

    def _generate_examples(self, numbers):
        for number in numbers:
            yield number, self.example(number)

    def example(self, number):
        attributes = dict(Very_Red=number > 20, age=number)
        return dict(image=file_of(pixels_of(number)), kind=number % 2, caption=f"stripes, the {number}th", attributes=attributes)


class Squares(library.core.GeneratorBasedBuilder):
    """One split, grey square images under another name, beside a second image; nothing else."""

    VERSION = library.core.Version("1.0.0")

    def _info(self):
        image = library.features.Image(shape=(8, 8, 1))
        return library.core.DatasetInfo(builder=self, features=library.features.FeaturesDict(dict(picture=image, mask=image)))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(NUM)}

    def _generate_examples(self, num):
        for number in range(num):
            image = np.full((8, 8), 5 * number, np.uint8)
            yield number, dict(picture=file_of(image), mask=file_of(image))


def prepared(folder, *sets):
    """A TFDS folder with these sets, without progress bars."""
    library.disable_progress_bar()
    for made in sets:
        made(data_dir=str(folder), file_format="array_record").download_and_prepare()
    return str(folder)


def source_of(place, dataset, **keywords):
    """The source of a set in a TFDS folder, under the table's keywords and the given ones."""
    return build.data_source(config_lib.base(data=dict(name="tfds", dataset=dataset, data_dir=place, **keywords)))


def numbers(source, split="train"):
    """The number of every image of a split of `Stripes`, by its caption."""
    return [int(caption.split()[-1][:-2]) for caption in source.splits[split].captions(np.arange(len(source.splits[split])))]
