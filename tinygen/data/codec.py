"""Codec: what turns arrays into media and prompts into arrays, without the data.

It is written to the workdir and into every checkpoint, so that sampling never needs the data set.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tinygen.errors import UserError, unknown

Batch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """What one array of a batch holds, an example: its shape, its dtype and the closed range of its values."""

    shape: tuple[int, ...]
    dtype: str
    low: float | None = None
    high: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Codec:
    """The meaning of a data set's arrays.

    kind: "image" (`x` is [H, W, C] in [-1, 1]), or another name for arrays that have no picture
    spec: what a batch holds, an example
    labels: the names of the values of `label`, in order; empty without one
    """

    kind: str
    spec: Mapping[str, Field]
    labels: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        """What a model or an objective may need to know of the data, under the names of their keyword arguments."""
        facts: dict[str, Any] = {"classes": len(self.labels)}
        if "x" in self.spec:
            facts["shape"] = self.spec["x"].shape
        if "y" in self.spec:
            facts["target_shape"] = self.spec["y"].shape
        if "tokens" in self.spec:
            facts |= {"length": self.spec["tokens"].shape[0], "vocabulary": int(self.spec["tokens"].high or 0) + 1}
        return facts

    def conditions(self, num: int, labels: Sequence[str] | None = None) -> Batch:
        """The conditions of `num` samples: the given labels (numbers or names) in turn, or all of them in turn.

        Raises UserError for a label that does not exist, or for labels where there is no label to give.
        """
        if not self.labels:
            if labels:
                raise UserError("--labels: this model was trained without labels")
            return {}
        chosen = [self.label(name) for name in labels] if labels else range(len(self.labels))
        return {"label": np.resize(np.asarray(chosen, np.int32), num)}

    def label(self, name: str) -> int:
        """The index of a label given as a name or a number."""
        if name in self.labels:
            return self.labels.index(name)
        if re.fullmatch("-?[0-9]+", name):
            if 0 <= int(name) < len(self.labels):
                return int(name)
            raise UserError(f"label {name} is out of range: this model knows 0 to {len(self.labels) - 1} ({', '.join(self.labels)})")
        raise unknown("label", name, self.labels)

    def decode(self, x: np.ndarray) -> np.ndarray:
        """Model values in [-1, 1] as uint8 pixels, rounded to the nearest level: the inverse of `encode_pixels`."""
        return np.clip(np.floor(127.5 * np.asarray(x, np.float32) + 128.0), 0, 255).astype(np.uint8)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"spec": {key: dataclasses.asdict(field) for key, field in self.spec.items()}}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "Codec":
        spec = {key: Field(**{**field, "shape": tuple(field["shape"])}) for key, field in tree["spec"].items()}
        return cls(**{**tree, "spec": spec, "labels": tuple(tree["labels"])})


def encode_pixels(pixels: np.ndarray, levels: int = 256) -> np.ndarray:
    """Integer pixels 0 .. levels-1 as float32 in [-1, 1]."""
    return (pixels.astype(np.float32) * (2.0 / (levels - 1)) - 1.0).astype(np.float32)
