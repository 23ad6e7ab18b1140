"""How a key of the configuration is declared: its default, its meaning, what it may be and when it may change.

    lr=key(1e-3, "peak learning rate", RESUME, low=POSITIVE)

The configuration's checks, `tinygen keys` and shell completion all read these declarations.
"""

import dataclasses
import enum
from collections.abc import Collection
from typing import Any

from tinygen.errors import UserError, unknown

POSITIVE, LARGEST = 1e-30, 1e30  # what float32 holds, with room for a step
BELOW_ONE = 1 - 2.0**-24  # the largest float32 below 1


class Mark(enum.Enum):
    """When a key may change, and whether its value follows to another row."""

    RESUME = "may change when a run is resumed; keys without this mark may not"
    STAGE = "may differ from the run that init.ckpt names: it says how weights are trained, not what they mean"
    # When a recipe, a variant or an override names another row, what was set in the old one is carried over to each key that
    # the new row has too, with a default of the same type. A key marked OWN in either row is not, but for two cases: "", which
    # is "none" in every row, and a key that both rows have from one shared group (AVERAGE, READING).
    OWN = "is not carried over when another row is named: its values mean something in its own row only"


RESUME, STAGE, OWN = Mark


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Key:
    """choices: of a key with a few names; empty where anything of the default's type will do
    low, high: bounds of a number, both included; None where the schema knows none
    """

    default: Any
    meaning: str
    marks: frozenset[Mark]
    choices: Collection[str]
    low: float | None
    high: float

    @property
    def constraint(self) -> str:
        """What the value must be, as it follows "must be"; "" where the schema knows no constraint."""
        if self.choices:
            return "one of " + ", ".join(name or "''" for name in self.choices)
        if self.low is None:
            return ""
        least = "positive" if self.low == POSITIVE else f"{self.low} or more"
        return least if self.high == LARGEST else f"{least}, {_most(self.high)}"

    def check(self, name: str, value: Any) -> None:
        """Raises UserError, calling the key `name`, for a value that is outside of the choices or the bounds."""
        if self.choices and value not in self.choices:
            raise unknown(name, value, self.choices)
        if self.low is not None and not self.low <= value <= self.high:
            raise UserError(f"{name}={value} must be {_most(self.high) if value > self.high else self.constraint}")


def key(default: Any, meaning: str, *marks: Mark, choices: Collection[str] = (), low: float | None = None, high: float = LARGEST) -> Key:
    """Declares a key. meaning: a few words, with the unit and with constraints that need other keys or the data."""
    return Key(default=default, meaning=meaning, marks=frozenset(marks), choices=choices, low=low, high=high)


class Section(dict[str, Any]):
    """Keys by name, and nested sections: a section of the schema, or a row of a table."""

    def __init__(self, meaning: str, /, **keys: Any) -> None:
        super().__init__(keys)
        self.meaning = meaning


def _most(high: float) -> str:
    if high == BELOW_ONE:
        return "below 1 in float32"
    return f"at most {high:,}" if isinstance(high, int) else f"at most {high:g}"
