"""Arrays that have no picture: samples are numbers in one .npz file."""

import dataclasses
import io
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from tinygen.errors import UserError
from tinygen.media.base import Medium


@dataclasses.dataclass(frozen=True)
class Array(Medium):
    """Arrays of any meaning. name: what the data set calls them"""

    name: str = "array"

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "Array":
        if not isinstance(tree["kind"], str):
            raise UserError("a codec's kind is a word")
        return cls(tree["kind"])

    sheet: ClassVar[str] = "samples.npz"

    def contents(self, items: Any, columns: int | None, conditions: Mapping[str, Any]) -> bytes:
        del columns
        packed = io.BytesIO()  # zip seeks in its file, which object stores do not allow
        arrays: Any = {"x": items, **{name: rows[:] for name, rows in conditions.items()}}
        np.savez(packed, **arrays)
        return packed.getvalue()
