"""Image data sets: `x` float32 [H, W, C] in [-1, 1], `label` int32 if a label is requested."""

import hashlib

import numpy as np

from tinygen.data import builtin
from tinygen.data.codec import encode_pixels, image_codec
from tinygen.data.contents import Contents
from tinygen.data.examples import ArrayExamples
from tinygen.data.source import DataSource
from tinygen.errors import unknown


def digits(*, label: str) -> DataSource:
    """5,000 MNIST digits, 28x28x1, 500 per class: 4,500 to train on, 500 held out."""
    return _embedded("digits", label)


def digits8(*, label: str) -> DataSource:
    """1,797 digits, 8x8x1, of 17 grey levels."""
    return _embedded("digits8", label, levels=17)


def pixel_faces(*, label: str) -> DataSource:
    """10,000 pixel-art faces, 16x16x3; `label` is one of their attributes: hair_color, glasses, hat, beard, ..."""
    return _embedded("pixel_faces", label)


def _embedded(name: str, label: str, levels: int = 256) -> DataSource:
    arrays, meta = builtin.load(name)
    examples = {"x": encode_pixels(arrays["x"], levels)}
    names: tuple[str, ...] = ()
    if label:
        if label not in meta["labels"]:
            raise unknown(f"label of {name}", label, meta["labels"])
        names = tuple(meta["labels"][label])
        examples["label"] = arrays[label].astype(np.int32)
    held_out = meta["validation"]
    return DataSource(
        codec=image_codec(arrays["x"].shape[1:], names),
        splits={
            "train": ArrayExamples({key: array[:-held_out] for key, array in examples.items()}),
            "validation": ArrayExamples({key: array[-held_out:] for key, array in examples.items()}),
        },
        fingerprint=hashlib.sha256(f"{builtin.fingerprint(name)} {label}".encode()).hexdigest()[:16],
        contents=Contents(facts={f"{name}, as the package holds it": builtin.fingerprint(name)[:16]}),
    )
