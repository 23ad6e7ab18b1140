"""What a key's default is wrapped in: whether the key may change between starts, and between stages."""

from typing import Any, NamedTuple


class resume(NamedTuple):
    """Marks the default of a key that may change in an existing workdir."""

    default: Any


class stage(NamedTuple):
    """Marks the default of a key that says how weights are trained, not what they mean: it may differ where they begin another run."""

    default: Any
