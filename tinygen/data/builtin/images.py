"""Image data sets: `x` float32 [H, W, C] in [-1, 1], `label` int32 if a label is requested."""

import hashlib

import numpy as np

from tinygen.data import builtin
from tinygen.data.codec import Codec, Field, encode_pixels, image_codec
from tinygen.data.contents import Contents
from tinygen.data.domain import Levels
from tinygen.data.examples import ArrayExamples
from tinygen.data.source import DataSource
from tinygen.errors import unknown
from tinygen.media import Image


def digits(*, label: str) -> DataSource:
    """5,000 MNIST digits, 28x28x1, 500 per class: 4,500 to train on, 500 held out."""
    return _embedded("digits", label)


def digits8(*, label: str, tokens: bool) -> DataSource:
    """1,797 digits, 8x8x1, of 17 grey levels; with `tokens`, the levels are `tokens` int32 [8, 8]."""
    return _embedded("digits8", label, levels=17, tokens=tokens)


def pixel_faces(*, label: str) -> DataSource:
    """10,000 pixel-art faces, 16x16x3; `label` is one of their attributes: hair_color, glasses, hat, beard, ..."""
    return _embedded("pixel_faces", label)


def _embedded(name: str, label: str, levels: int = 256, tokens: bool = False) -> DataSource:
    arrays, meta = builtin.load(name)
    codec, examples = image_codec(arrays["x"].shape[1:], ()), {"x": encode_pixels(arrays["x"], levels)}
    if tokens:
        spec = {"tokens": Field(shape=arrays["x"].shape[1:3], dtype="int32", low=0, high=levels - 1)}
        codec, examples = Codec(medium=Image(), spec=spec, domain=Levels(levels)), {"tokens": arrays["x"][..., 0].astype(np.int32)}
    names: tuple[str, ...] = ()
    if label:
        if label not in meta["labels"]:
            raise unknown(f"label of {name}", label, meta["labels"])
        names = tuple(meta["labels"][label])
        examples["label"] = arrays[label].astype(np.int32)
    held_out = meta["validation"]
    return DataSource(
        codec=codec.labelled(names),
        splits={
            "train": ArrayExamples({key: array[:-held_out] for key, array in examples.items()}),
            "validation": ArrayExamples({key: array[-held_out:] for key, array in examples.items()}),
        },
        fingerprint=hashlib.sha256(f"{builtin.fingerprint(name)} {label}{' tokens' * tokens}".encode()).hexdigest()[:16],
        contents=Contents(facts={f"{name}, as the package holds it": builtin.fingerprint(name)[:16]}),
    )
