"""What follows from the tables and their marks: a row's defaults, which keys are marked, and what of one row's values another takes."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tinygen.errors import unknown
from tinygen.keys import SCHEMA, TABLES
from tinygen.keys.marks import is_marked, own, unmarked


def defaults(tree: Mapping[str, Any]) -> dict[str, Any]:
    """`tree` with the marks taken off."""
    plain = {key: unmarked(value) for key, value in tree.items()}
    return {key: defaults(value) if isinstance(value, Mapping) else value for key, value in plain.items()}


def row(section: str, name: Any) -> dict[str, Any]:
    """The keywords of a row and their defaults. Raises UserError for an unknown one."""
    table = TABLES[section]
    if not isinstance(name, str) or name not in table:
        raise unknown({"data": "data set"}.get(section, section), name, table)
    return defaults(table[name])


def carried(section: str, old: str, new: str, values: Mapping[str, Any], chosen: Collection[str]) -> dict[str, Any]:
    """Those of the `chosen` keys' `values` in row `old` that row `new` takes over. The rule stands at `tinygen.keys.marks.own`."""
    before, after = TABLES[section][old], TABLES[section][new]
    return {key: values[key] for key in chosen if key in after and _means_the_same(before[key], after[key], values[key])}


def _means_the_same(before: Any, after: Any, value: Any) -> bool:
    if type(unmarked(before)) is not type(unmarked(after)):
        return False
    return before is after or value == "" or not (is_marked(before, own) or is_marked(after, own))


def marked(names: Mapping[str, str], *marks: type) -> set[str]:
    """The dotted keys that have one of these marks. names: the row of each section"""
    found = {name for name, value in _entries(SCHEMA) if is_marked(value, *marks)}
    for section, table in TABLES.items():
        found |= {f"{section}.{name}" for name, value in _entries(table[names[section]]) if is_marked(value, *marks)}
    return found


def _entries(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _entries(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
