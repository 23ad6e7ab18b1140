"""The contents of a data set, to report what has changed when a run is resumed on other data.

The fingerprint decides whether data are the same. Contents only explain, so short digests suffice.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tinygen.data import naming

LONGEST = 200  # characters of a fact in a message
FILE = "data_files.json"  # stores the contents
MOST = 2**20  # pieces stored: more would take 50 MB in a workdir


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contents:
    """
    files: {name: digest of its content}
    labels, captions: {file: digest of its label or caption}
    facts: {what: value in a few words}, for data that are not the user's files
    """

    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    captions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    facts: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there is anything to store, and not too much."""
        return 0 < sum(map(len, (self.files, self.labels, self.captions, self.facts))) <= MOST

    def also(self, captions: Mapping[str, str] | None = None, facts: Mapping[str, str] | None = None) -> "Contents":
        return dataclasses.replace(self, captions={**self.captions, **(captions or {})}, facts={**self.facts, **(facts or {})})

    def kept(self, fingerprint: str) -> str:
        """JSON with one line per piece, and the fingerprint of the data."""
        tables = {field.name: value for field in dataclasses.fields(self) if (value := dict(getattr(self, field.name)))}
        return json.dumps({"fingerprint": fingerprint, **tables}, indent=0) + "\n"

    @classmethod
    def of(cls, tree: Any, fingerprint: str | None) -> "Contents | None":
        """From parsed JSON; None if the fingerprint differs. Malformed entries are dropped: contents only explain."""
        if not isinstance(tree, Mapping) or tree.get("fingerprint") != fingerprint:
            return None
        tables = {field.name: tree.get(field.name) for field in dataclasses.fields(cls)}
        return cls(
            **{
                name: {key: value for key, value in table.items() if isinstance(value, str)}
                for name, table in tables.items()
                if isinstance(table, Mapping)
            }
        )


def short(text: str) -> str:
    """A digest of 8 hex digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def changes(before: Contents, now: Contents) -> list[str]:
    """The changes in words, naming the first few files. Tables that either side lacks are skipped."""
    said = []
    if before.files and now.files:
        said += _said("added", [name for name in now.files if name not in before.files])
        said += _said("removed", [name for name in before.files if name not in now.files])
        said += _said("changed", _differing(before.files, now.files))
    if before.labels and now.labels:
        said += _said("with another label", _differing(before.labels, now.labels))
    said += _said("with another caption", _differing(before.captions, now.captions))
    for what in _differing(before.facts, now.facts):
        old, new = (naming.shown(each.facts[what][:LONGEST]) for each in (before, now))
        said.append(f"{naming.shown(what)}: {old} -> {new}")
    return said


def difference(earlier: Contents | None, before: str | None, now: Contents, fingerprint: str, others: Sequence[str] = ()) -> str:
    """One line on the difference from the data with the fingerprint `before`.

    earlier: their contents, if stored
    others: further known differences
    """
    said = [*others, *(changes(earlier, now) if earlier else ())]
    unknown = f"{FILE} names no difference" if earlier else f"{FILE}, which would list the earlier contents, is missing"
    return "; ".join(said) or f"their fingerprint was {naming.shown(str(before)[:40])} and is {fingerprint}; {unknown}"


def _differing(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [name for name, value in before.items() if name in now and now[name] != value]


def _said(what: str, names: Sequence[str]) -> list[str]:
    return [f"{naming.plural(len(names), 'file')} {what}: {naming.first(names)}"] if names else []
