"""The features of a TensorFlow Datasets set: which of them are read, by their paths ("attributes/Smiling")."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from etils import epy

from tinygen.errors import UserError, unknown

with epy.lazy_imports():  # it takes most of a second, which other sources should not cost
    import tensorflow_datasets as library


def features_of(features: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(path, feature) of every leaf."""
    for name, feature in features.items():
        if isinstance(feature, library.features.FeaturesDict):
            yield from features_of(feature, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", feature


def only(builder: Any, features: Mapping[str, Any], kind: type, noun: str, key: str, name: str) -> str:
    """The path of the feature of a kind that config.data.`key` names, or of the only one. Raises UserError where that is not one."""
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


def label_of(builder: Any, features: Mapping[str, Any], name: str) -> tuple[str, tuple[str, ...]]:
    """(path, names of its values); "auto" takes the only ClassLabel, if there is exactly one."""
    classes = [path for path, feature in features.items() if isinstance(feature, library.features.ClassLabel)]
    switches = [path for path, feature in features.items() if feature.shape == () and feature.np_dtype == np.bool_]
    if name == "auto":
        name = classes[0] if len(classes) == 1 else ""
    if not name:
        return "", ()
    if name in switches:
        words = name.rpartition("/")[2].replace("_", " ").lower()
        return name, (f"not {words}", words)
    if name not in classes:
        raise unknown(f"label of {builder.name}", name, classes + switches)
    return name, tuple(features[name].names)


def own_size(builder: Any, image: str, shape: tuple[int | None, ...]) -> int:
    height, width, _ = shape
    if height is None or height != width:
        raise UserError(f"data set {builder.name}: its images ({image}) are {height}x{width}: set config.data.size, pixels a side")
    return height


def at(row: Any, path: str) -> Any:
    """The value of a feature, by its path."""
    for name in path.split("/"):
        row = row[name]
    return row
