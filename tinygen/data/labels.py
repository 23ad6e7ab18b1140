"""Labels as a condition."""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from tinygen.data.condition import Batch, Condition, Request
from tinygen.data.encoding import composed
from tinygen.errors import UserError, listed, unknown
from tinygen.media.base import Medium

MOST, LONGEST = 2**20, 1000  # labels, characters per label


@dataclasses.dataclass(frozen=True)
class Labels(Condition):
    """names: the names of the values of `label`, in order"""

    names: tuple[str, ...]

    noun: ClassVar[str] = "label"
    keys: ClassVar[tuple[str, ...]] = ("label",)
    answers: ClassVar[tuple[str, ...]] = ("labels",)

    def __post_init__(self) -> None:
        if not all(isinstance(name, str) for name in self.names):
            raise UserError("labels must be strings")
        if len(self.names) > MOST or any(len(name) > LONGEST for name in self.names):
            raise UserError(f"there are at most {MOST:,} labels, of at most {LONGEST:,} characters")

    @classmethod
    def from_json(cls, tree: Mapping[str, Any], medium: Medium) -> "Labels | None":
        return cls(tuple(tree["labels"])) if tree["labels"] else None

    def to_json(self) -> dict[str, Any]:
        return {"labels": list(self.names)}

    def facts(self) -> dict[str, Any]:
        return {"classes": len(self.names)}

    def encode(self, request: Request, num: int) -> Batch:
        """`label`, int32 [num]: the requested labels in turn, or all of them. Raises UserError for a label that does not exist."""
        chosen = [self.index(name) for name in request.labels] or range(len(self.names))
        return {"label": np.resize(np.asarray(chosen, np.int32), num)}

    def index(self, name: str) -> int:
        """The index of a label given by name, in any Unicode normal form, or by number."""
        if name in self.names:
            return self.names.index(name)
        known = [composed(each) for each in self.names]
        if composed(name) in known:
            return known.index(composed(name))
        if re.fullmatch("-?[0-9]+", name):
            if 0 <= int(name) < len(self.names):
                return int(name)
            raise UserError(f"label {name} is out of range: this model knows 0 to {len(self.names) - 1} ({listed(self.names)})")
        raise unknown("label", name, self.names)

    @property
    def cycle(self) -> int:
        return len(self.names)

    def rule(self, request: Request) -> str:
        return ", ".join(self.names[self.index(name)] for name in request.labels) or super().rule(request)

    def of_batch(self, batch: Batch) -> Mapping[str, Sequence[str]]:
        return {"label": [self.names[label] for label in batch["label"]]}

    def describe(self, arrays: Mapping[str, Any], words: Sequence[str]) -> list[dict[str, Any]]:
        return [{"label": int(label), "name": self.names[label]} for label in arrays["label"]]

    @classmethod
    def differences(cls, old: Self | None, new: Self | None) -> list[str]:
        """The numbers of labels if they differ, and the first differing label."""
        before, now = (each.names if each else () for each in (old, new))
        number = [f"labels: {len(before)} -> {len(now)}"] if len(before) != len(now) else []
        pairs = enumerate(itertools.zip_longest(before, now))
        return number + next(([f"label {index}: {a!r} -> {b!r}"] for index, (a, b) in pairs if a != b), [])
