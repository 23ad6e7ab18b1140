"""What a preview of a run passes on: from the device as arrays, to people as items."""

import dataclasses
from typing import Any, NamedTuple

import jax

from tinygen.media.base import Medium


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Preview:
    """One thing that an objective's preview shows.

    value: in the model's own domain, to be decoded by the run's codec; or, with a medium, in that medium's
    """

    value: Any
    medium: Medium | None = dataclasses.field(default=None, metadata=dict(static=True))


class View(NamedTuple):
    """What people are shown: items, and the medium that knows how to show them. columns: of a grid; None = the medium chooses"""

    medium: Medium
    items: Any
    columns: int | None = None
