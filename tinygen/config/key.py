"""Declarations of configuration keys: default, meaning, constraint, and when the value may change.

    lr=key(1e-3, "peak learning rate", RESUME, low=POSITIVE)

Validation, `tinygen keys` and shell completion all read these declarations.
"""

import dataclasses
import enum
from collections.abc import Collection
from typing import Any

from tinygen.errors import UserError, unknown

POSITIVE, LARGEST = 1e-30, 1e30  # within float32's range, with room for a step
BELOW_ONE = 1 - 2.0**-24  # the largest float32 below 1


class Mark(enum.Enum):
    """When a key may change, and whether its value carries over to another row."""

    RESUME = "may change when a run is resumed; keys without this mark may not"
    STAGE = "may differ from the run that init.ckpt names: it affects training, not what the weights mean"
    # When a recipe, a variant or an override selects another row, values set in the old row carry over to keys of the new row with the
    # same name and type. A key marked OWN in either row does not, with two exceptions: "", which means "none" in every row, and a
    # key that both rows take from one shared group (AVERAGE, READING).
    OWN = "does not carry over when another row is selected: its values are specific to its row"


RESUME, STAGE, OWN = Mark


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Key:
    """choices: the allowed names; empty = any value of the default's type
    low, high: inclusive bounds of a number; None = unbounded in the schema
    """

    default: Any
    meaning: str
    marks: frozenset[Mark]
    choices: Collection[str]
    low: float | None
    high: float

    @property
    def constraint(self) -> str:
        """The constraint as it follows "must be"; "" if there is none."""
        if self.choices:
            return "one of " + ", ".join(name or "''" for name in self.choices)
        if self.low is None:
            return ""
        least = "positive" if self.low == POSITIVE else f"{self.low} or more"
        return least if self.high == LARGEST else f"{least}, {_most(self.high)}"

    def check(self, name: str, value: Any) -> None:
        """Raises UserError, which calls the key `name`, for a value outside the choices or bounds."""
        if self.choices and value not in self.choices:
            raise unknown(name, value, self.choices)
        if self.low is not None and not self.low <= value <= self.high:
            raise UserError(f"{name}={value} must be {_most(self.high) if value > self.high else self.constraint}")


def key(default: Any, meaning: str, *marks: Mark, choices: Collection[str] = (), low: float | None = None, high: float = LARGEST) -> Key:
    """Declares a key. meaning: a short description with the unit, and constraints that depend on other keys or the data."""
    return Key(default=default, meaning=meaning, marks=frozenset(marks), choices=choices, low=low, high=high)


class Section(dict[str, Any]):
    """Keys and nested sections by name: a section of the schema, or a row of a table."""

    def __init__(self, meaning: str, /, **keys: Any) -> None:
        super().__init__(keys)
        self.meaning = meaning


def _most(high: float) -> str:
    if high == BELOW_ONE:
        return "below 1 in float32"
    return f"at most {high:,}" if isinstance(high, int) else f"at most {high:g}"
