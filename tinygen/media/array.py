"""Arrays that cannot be shown: samples are saved as numbers, in one .npz file."""

import dataclasses
import io
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from tinygen.errors import UserError
from tinygen.media.base import Medium


@dataclasses.dataclass(frozen=True)
class Array(Medium):
    """Arrays of any meaning. name: given by the data set"""

    name: str = "array"

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "Array":
        if not isinstance(tree["kind"], str):
            raise UserError("a codec's kind must be a string")
        return cls(tree["kind"])

    sheet: ClassVar[str] = "samples.npz"

    def contents(self, items: Any, columns: int | None, conditions: Mapping[str, Any]) -> bytes:
        packed = io.BytesIO()  # zip seeks, which object stores do not support
        arrays: Any = {"x": items, **{name: rows[:] for name, rows in conditions.items()}}
        np.savez(packed, **arrays)
        return packed.getvalue()
