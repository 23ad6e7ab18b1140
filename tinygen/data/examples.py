"""Examples: one split of a data set, with random access, in memory or on disk."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

Batch = dict[str, Any]
"""Arrays with a row per sample, or objects indexed like arrays."""

Rows = Callable[[np.ndarray], Batch]
"""indices -> arrays of the examples there, stacked on a new leading axis."""


class Examples(Protocol):
    """One split, with random access. A subclass may have no captions and no files."""

    def __len__(self) -> int: ...

    def take(self, indices: np.ndarray) -> Batch:
        """The examples at `indices`, stacked on a new leading axis."""
        ...

    def captions(self, indices: np.ndarray) -> list[str]:
        """The captions of the examples at `indices`; "" for examples without one."""
        return [""] * len(indices)

    def names(self, indices: np.ndarray) -> list[str]:
        """The files of the examples at `indices`, as `Contents` names them; "" for examples that are not files."""
        return [""] * len(indices)


@dataclasses.dataclass(frozen=True)
class ArrayExamples(Examples):
    """Examples in memory, as arrays with a common leading axis."""

    arrays: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def take(self, indices: np.ndarray) -> Batch:
        return {key: array[indices] for key, array in self.arrays.items()}


@dataclasses.dataclass(frozen=True)
class Derived(Examples):
    """Examples that differ from others in what a subclass overrides."""

    examples: Examples

    def __len__(self) -> int:
        return len(self.examples)

    def take(self, indices: np.ndarray) -> Batch:
        return self.examples.take(indices)

    def captions(self, indices: np.ndarray) -> list[str]:
        return self.examples.captions(indices)

    def names(self, indices: np.ndarray) -> list[str]:
        return self.examples.names(indices)


@dataclasses.dataclass(frozen=True)
class FirstExamples(Derived):
    """The first `num` examples."""

    num: int

    def __len__(self) -> int:
        return self.num


@dataclasses.dataclass(frozen=True)
class ExtendedExamples(Derived):
    """Examples with further arrays."""

    rows: Rows

    def take(self, indices: np.ndarray) -> Batch:
        return {**self.examples.take(indices), **self.rows(indices)}
