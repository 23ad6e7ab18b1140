"""Captioned images and a text encoder as small as can be, for several test modules."""

import dataclasses
import zlib

import numpy as np

from tinygen.data.codec import Codec, Field
from tinygen.data.examples import ArrayExamples
from tinygen.data.source import DataSource
from tinygen.errors import UserError
from tinygen.media import Image
from tinygen.pretrained.text_encoder import Encoder

FEATURES, LONGEST = 6, 16
WORDS = ("red", "blue", "a house", "a tree beside a house", "")


@dataclasses.dataclass(frozen=True)
class Told(ArrayExamples):
    """Arrays with captions."""

    words: tuple[str, ...] = ()

    def captions(self, indices):
        return [self.words[index] for index in indices]


def source(*, num=24, side=16, words=WORDS, fingerprint="told"):
    """`num` images of noise with the words in turn, and eight held-out ones."""
    rng = np.random.default_rng(0)

    def examples(count):
        x = rng.uniform(-1, 1, (count, side, side, 3)).astype(np.float32)
        return Told({"x": x}, tuple(words[index % len(words)] for index in range(count)))

    codec = Codec(medium=Image(), spec={"x": Field(shape=(side, side, 3), dtype="float32", low=-1.0, high=1.0)})
    return DataSource(codec=codec, splits={"train": examples(num), "validation": examples(8)}, fingerprint=fingerprint)


def vector(word, place):
    """The embedding of a word in its place."""
    return np.random.default_rng([zlib.crc32(word.encode()), place]).normal(size=FEATURES).astype(np.float32)


def encoder(name="/encoder", sha256="e" * 64):
    """One that reads word by word."""

    def encode(captions, length):
        embed, there = np.zeros((len(captions), length, FEATURES), np.float32), np.zeros((len(captions), length), bool)
        for row, caption in enumerate(captions):
            for place, word in enumerate(caption.split()[:length]):
                embed[row, place], there[row, place] = vector(word, place), True
        return embed, there

    def count(captions):
        return [len(caption.split()) for caption in captions]

    return Encoder(name=name, sha256=sha256, features=FEATURES, length=LONGEST, count=count, encode=encode)


def loading(*known):
    """`text_encoder.load` where there are those encoders and no others."""

    def load(name, option="--encoder", *, accelerated=False):
        for each in known or (encoder(),):
            if each.name == name:
                return each
        raise UserError(f"{option}={name}: there is no such folder")

    return load
