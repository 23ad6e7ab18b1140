"""Changes of a configuration's values: only of keys that exist, and only to values of their types."""

from collections.abc import Mapping
from typing import Any

from tinygen.errors import UserError, unknown


def merged(tree: Mapping[str, Any], changes: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """`tree` with nested `changes` made. Raises UserError for a key that it does not have, and for a value of another type."""
    found = dict(tree)
    for key, value in changes.items():
        if key not in tree:
            where = f"config key (in {path[:-1]})" if path else "config key"
            raise unknown(where, key, tree)
        if isinstance(tree[key], Mapping) and isinstance(value, Mapping):
            found[key] = merged(tree[key], value, f"{path}{key}.")
        else:
            found[key] = _coerced(f"{path}{key}", tree[key], value)
    return found


def _coerced(key: str, default: Any, value: Any, *, item: bool = False) -> Any:
    """`value` as the type of `default`: an int will do for a float, a list or a lone number for a tuple; nothing else is converted."""
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as error:
            raise UserError(f"config.{key}: no float is as large as a number of {len(str(value))} digits") from error
    if isinstance(default, tuple):
        plain = bool(default) and not isinstance(default[0], tuple)  # all items of one type; of a tuple of tuples nothing is known here
        if plain and isinstance(default[0], int | float) and isinstance(value, int | float):
            value = (value,)
        if isinstance(value, list | tuple):
            return tuple(_coerced(key, default[0], each, item=True) if plain else _frozen(each) for each in value)
    if type(value) is not type(default):
        kind = {int: "whole number", float: "number"}.get(
            type(default), "section" if isinstance(default, Mapping) else type(default).__name__
        )
        several = f", or several with commas between them, such as {default!r},{default!r}" if item else ""  # item: of a tuple
        raise UserError(f"config.{key}={repr(value)[:80]} is a {type(value).__name__}, but must be a {kind} such as {default!r}{several}")
    return value


def _frozen(value: Any) -> Any:
    """Lists in it as tuples."""
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
