"""Field: the shape, dtype and range of one array of an example."""

import dataclasses
import math
from collections.abc import Mapping

from tinygen.errors import UserError, unknown

LARGEST = 2**26  # values per example: readers of a codec allocate arrays of its shapes
DTYPES = ("float32", "float16", "int32", "int64", "uint8", "bool")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """One array of an example: its shape, its dtype and the closed range of its values."""

    shape: tuple[int, ...]
    dtype: str
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if len(self.shape) > 8 or not all(isinstance(side, int) and side > 0 for side in self.shape) or math.prod(self.shape) >= LARGEST:
            shown = str(list(self.shape[:8]))[:80]
            raise UserError(f"an example of shape {shown}: sides must be positive integers, and its values fewer than {LARGEST:,}")
        if self.dtype not in DTYPES:
            raise unknown("dtype of an array", self.dtype, DTYPES)
        if not all(bound is None or (isinstance(bound, int | float) and abs(bound) < 1e38) for bound in (self.low, self.high)):
            raise UserError("the bounds of an array must be finite numbers")


Spec = Mapping[str, Field]
"""The arrays of an example, by name."""
