"""`tinygen keys`: lists the keys of the schema and of the tables' rows."""

import shutil
import textwrap
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tinygen.config.key import Key, Mark
from tinygen.config.schema import SCHEMA, TABLES
from tinygen.errors import unknown
from tinygen.system.terminal import say

HEAD = 36  # columns; longer names get a separate line
NARROW, WIDE = 60, 120  # minimum and maximum width in columns


class Group(NamedTuple):
    """Keys that are listed together.

    address: "optim" for a section, "model.microdit" for a row, "" for top-level keys
    keys: by dotted name, "model.width"
    """

    address: str
    meaning: str
    keys: dict[str, Key]

    def spellings(self, name: str) -> tuple[str, str]:
        """A key's dotted name without and with its row: "model.width" and "model.microdit.width"."""
        return name, f"{self.address}.{name.rpartition('.')[2]}".lstrip(".")


def groups() -> Iterator[Group]:
    """All keys in the schema's order: top-level keys, then each section followed by the rows of its table."""
    yield Group("", SCHEMA.meaning, {name: each for name, each in SCHEMA.items() if isinstance(each, Key)})
    for section, keys in SCHEMA.items():
        if isinstance(keys, Key):
            continue
        rows = {f"{section}.{row}": found for row, found in TABLES.get(section, {}).items()}
        for address, found in {section: keys, **rows}.items():
            yield Group(address, found.meaning, {f"{section}.{name}": key for name, key in found.items()})


def selected(prefix: str) -> list[Group]:
    """The keys whose names start with `prefix`: "optim", "model.width", "model.microdit.w". If there are none, the keys with that name in
    any section, or in a row with that name: "lr", "microdit".

    Raises UserError, with the nearest name, if nothing matches.
    """
    everything = [*groups()]
    found = _matching(everything, lambda name: name.startswith(prefix))
    found = found or _matching(everything, lambda name: prefix in name.split(".")[1:])
    if not found:
        names = {each for group in everything for name in group.keys for each in group.spellings(name)}
        raise unknown("key or section", prefix, names.union(*(name.split(".") for name in names)))
    return found


def _matching(everything: list[Group], matches: Callable[[str], bool]) -> list[Group]:
    def kept(group: Group) -> dict[str, Key]:
        return {name: key for name, key in group.keys.items() if any(map(matches, group.spellings(name)))}

    return [group._replace(keys=keys) for group in everything if (keys := kept(group))]


def _block(group: Group, width: int) -> str:
    heads = {f"  {name}={key.default or repr(key.default)}": key for name, key in group.keys.items()}
    column = min(max(map(len, heads)) + 2, HEAD)
    lines = [f"{group.address}: {group.meaning}" if group.address else group.meaning]
    for head, key in heads.items():
        parts = [key.meaning, key.constraint] if key.constraint else [key.meaning]
        marks = f" [{', '.join(mark.name.lower() for mark in Mark if mark in key.marks)}]" if key.marks else ""
        if len(head) + 2 > column:
            lines.append(head)
            head = ""
        text = f"{head:<{column}}{type(key.default).__name__:<5}  {'; '.join(parts)}{marks}"
        lines += textwrap.wrap(text, width, subsequent_indent=" " * (column + 7), break_on_hyphens=False)
    return "\n".join(lines)


def main(prefix: str | None) -> int:
    """Prints the keys selected by `prefix`, or all."""
    chosen = selected(prefix or "")
    width = min(max(shutil.get_terminal_size((100, 24)).columns, NARROW), WIDE)
    blocks = [_block(group, width) for group in chosen]
    used = frozenset[Mark]().union(*(key.marks for group in chosen for key in group.keys.values()))
    legend = [f"[{mark.name.lower()}] {mark.value}" for mark in Mark if mark in used]
    blocks.append("\n".join([*legend, "Set a key with tinygen train --config=RECIPE --config.KEY=VALUE"]))
    say("\n\n".join(blocks))
    return 0
