"""Trees of keys and values: defaults, marked keys, changes of values, and what carries over from one row of a table to another."""

from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from tinygen.config.key import OWN, Key, Mark
from tinygen.config.schema import SCHEMA, TABLES
from tinygen.errors import UserError, unknown


def defaults(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The default of every key of a section, with the same nesting."""
    return {name: defaults(value) if isinstance(value, Mapping) else value.default for name, value in tree.items()}


def row(section: str, name: Any) -> dict[str, Any]:
    """The keys of a row and their defaults. Raises UserError for an unknown row."""
    table = TABLES[section]
    if not isinstance(name, str) or name not in table:
        raise unknown({"data": "data set"}.get(section, section), name, table)
    return defaults(table[name])


def carried(section: str, old: str, new: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those `values` of keys of row `old` that carry over to row `new`. For the rule see `tinygen.config.key.Mark.OWN`."""

    def carries_over(before: Key, after: Key, value: Any) -> bool:
        if type(before.default) is not type(after.default):
            return False
        return before is after or value == "" or OWN not in before.marks | after.marks

    before, after = TABLES[section][old], TABLES[section][new]
    return {key: value for key, value in values.items() if key in after and carries_over(before[key], after[key], value)}


def known(names: Mapping[str, str]) -> dict[str, Key]:
    """Every key of a configuration by dotted name. names: the row of each section"""
    found = dict(entries(SCHEMA))
    for section, table in TABLES.items():
        found |= entries(table[names[section]], f"{section}.")
    return found


def marked(names: Mapping[str, str], *marks: Mark) -> set[str]:
    """The dotted names of keys with any of these marks. names: the row of each section"""
    return {name for name, each in known(names).items() if each.marks & {*marks}}


def entries(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, key or value) of a section and those nested in it."""
    for name, value in tree.items():
        if isinstance(value, Mapping | ConfigDict):
            yield from entries(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


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
