"""Previews of a run: arrays on the device, then items of a medium."""

import dataclasses
from typing import Any, NamedTuple

import jax

from tinygen.media.base import Medium


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Preview:
    """An entry of an objective's preview.

    value: in the model's domain, to be decoded by the run's codec; with a medium, to be decoded by that
    """

    value: Any
    medium: Medium | None = dataclasses.field(default=None, metadata=dict(static=True))


class View(NamedTuple):
    """Items and the medium that shows them. columns: of a grid; None = the medium chooses"""

    medium: Medium
    items: Any
    columns: int | None = None
