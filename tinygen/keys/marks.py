"""What a key's default is wrapped in: whether the key may change between starts and between stages, and whether it follows another row.

Marks nest: `own(resume(""))`.
"""

from typing import Any, NamedTuple


class resume(NamedTuple):
    """Marks the default of a key that may change in an existing workdir."""

    default: Any


class stage(NamedTuple):
    """Marks the default of a key that says how weights are trained, not what they mean: it may differ where they begin another run."""

    default: Any


class own(NamedTuple):
    """Marks the default of a key whose values mean something in its own row only, such as the name of a label.

    When a recipe, a variant or an override names another row, what was set in the old one is carried over to each key that the new row
    has too, with a default of the same type. A key marked `own` in either row is not, but for two cases: "", which is "none" in every
    row, and a key that both rows have from one shared group (AVERAGE, READING).
    """

    default: Any


MARKS = (resume, stage, own)


def unmarked(value: Any) -> Any:
    """A default without its marks."""
    while isinstance(value, MARKS):
        value = value.default
    return value


def is_marked(value: Any, *marks: type) -> bool:
    """Whether one of these is among the marks of a default."""
    while isinstance(value, MARKS):
        if isinstance(value, marks):
            return True
        value = value.default
    return False
