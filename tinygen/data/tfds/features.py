"""Selects the features of a TensorFlow Datasets set, by path ("attributes/Smiling")."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from etils import epy

from tinygen.errors import UserError, listed, unknown

with epy.lazy_imports():  # importing takes most of a second, which other sources need not pay
    import tensorflow_datasets as library

CHUNK = 1024  # examples read at once


def features_of(features: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(path, feature) of every leaf."""
    for name, feature in features.items():
        if isinstance(feature, library.features.FeaturesDict):
            yield from features_of(feature, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", feature


def only(builder: Any, features: Mapping[str, Any], kind: type, noun: str, key: str, name: str) -> str:
    """The path of the feature named by config.data.`key`, or of the only one of its kind. Raises UserError if there is no such feature."""
    paths = [path for path, feature in features.items() if isinstance(feature, kind)]
    if name and name not in paths:
        raise unknown(f"{noun} feature of {builder.name}", name, paths)
    if not name and len(paths) != 1:
        several = f"several {noun}s: choose one with config.data.{key}={' | '.join(paths)}"
        none = f"no {noun}; its features: {', '.join(features)}"
        raise UserError(f"data set {builder.name} holds {several if paths else none}")
    return name or paths[0]


def image_of(builder: Any, features: Mapping[str, Any], name: str) -> str:
    chosen = only(builder, features, library.features.Image, "image", "image", name)
    if features[chosen].np_dtype != np.uint8:
        raise UserError(f"data set {builder.name}: the image feature {chosen!r} is {np.dtype(features[chosen].np_dtype)}, not uint8")
    return chosen


def label_of(builder: Any, features: Mapping[str, Any], name: str) -> tuple[str, tuple[str, ...] | None]:
    """(path, names of its values); "auto" takes the only ClassLabel, if there is exactly one. The names are None for whole numbers:
    `values_of` collects those that occur in the data.
    """
    classes = [path for path, feature in features.items() if isinstance(feature, library.features.ClassLabel)]
    scalars = {path: np.dtype(feature.np_dtype).kind for path, feature in features.items() if feature.shape == () and path not in classes}
    switches = [path for path, kind in scalars.items() if kind == "b"]
    numbers = [path for path, kind in scalars.items() if kind in "iu"]
    if name == "auto":
        name = classes[0] if len(classes) == 1 else ""
    if not name:
        return "", ()
    if name in switches:
        words = name.rpartition("/")[2].replace("_", " ").lower()
        return name, (f"not {words}", words)
    if name in numbers:
        return name, None
    if name in classes:
        return name, tuple(features[name].names)
    known = classes + switches + numbers
    if name in features:
        kind = type(features[name]).__name__
        cure = f"choose one of {listed(known)}" if known else "leave it empty: the set has no such feature"
        raise UserError(
            f"config.data.label={name}: in {builder.name} this is {kind}, but a label is a class, a flag or one whole number: {cure}"
        )
    raise unknown(f"label of {builder.name}", name, known)


def values_of(splits: Iterable[Any], path: str) -> np.ndarray:
    """The sorted whole numbers [K] in a feature. splits: TFDS's random access to each, read completely"""
    found: set[int] = set()
    for rows in splits:
        for first in range(0, len(rows), CHUNK):
            found.update(int(at(row, path)) for row in rows.__getitems__(range(first, min(first + CHUNK, len(rows)))))
    return np.array(sorted(found))


def own_frame(builder: Any, image: str, shape: tuple[int | None, ...]) -> tuple[int, int]:
    """(height, width) of the images as stored. Raises UserError if they have no common size."""
    height, width, _ = shape
    if height is None or width is None:
        sizes = "x".join(str(side or "?") for side in (height, width))
        raise UserError(
            f"data set {builder.name}: its images ({image}) have no common size ({sizes}): set config.data.size, one number or height,width"
        )
    return height, width


def at(row: Any, path: str) -> Any:
    """The value of a feature at a path."""
    for name in path.split("/"):
        row = row[name]
    return row
