"""Queries on the schema's tables: a row's defaults, marked keys, and the values that carry over from one row to another."""

from collections.abc import Iterator, Mapping
from typing import Any

from tinygen.config.key import OWN, Key, Mark
from tinygen.config.schema import SCHEMA, TABLES
from tinygen.errors import unknown


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


def entries(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Key]]:
    """(dotted name, key) of a section and those nested in it."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from entries(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
