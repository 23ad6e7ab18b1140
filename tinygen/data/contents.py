"""What a data set consists of, piece by piece: when a run is resumed on other data, by this it says what has changed.

The fingerprint decides whether data are the same. This only finds words for it, so short digests will do.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tinygen.data import naming

LONGEST = 200  # characters of a fact that a message repeats
FILE = "data_files.json"  # where contents are kept
MOST = 2**20  # pieces that are kept: more would take a workdir 50 MB


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contents:
    """
    files: {name: digest of its content}
    labels, captions: {file: digest of what is said about it}, where its name does not say so
    facts: {what: in a few words}: of what are no files, or not the user's
    """

    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    captions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    facts: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there is anything worth keeping, and not too much."""
        return 0 < sum(map(len, (self.files, self.labels, self.captions, self.facts))) <= MOST

    def also(self, captions: Mapping[str, str] | None = None, facts: Mapping[str, str] | None = None) -> "Contents":
        return dataclasses.replace(self, captions={**self.captions, **(captions or {})}, facts={**self.facts, **(facts or {})})

    def kept(self, fingerprint: str) -> str:
        """As JSON, a line a piece, with the fingerprint of the data."""
        tables = {field.name: value for field in dataclasses.fields(self) if (value := dict(getattr(self, field.name)))}
        return json.dumps({"fingerprint": fingerprint, **tables}, indent=0) + "\n"

    @classmethod
    def of(cls, tree: Any, fingerprint: str | None) -> "Contents | None":
        """From parsed JSON; None where that is not of data with this fingerprint. What is malformed is left out: it only explains."""
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
    """What has changed, a few words each, naming the first few files; what one of the two does not know of its files is passed over."""
    said = []
    if before.files and now.files:
        said += _said("added", [name for name in now.files if name not in before.files])
        said += _said("removed", [name for name in before.files if name not in now.files])
        said += _said("changed", _differing(before.files, now.files))
    if before.labels and now.labels:
        said += _said("with another label", _differing(before.labels, now.labels))
    said += _said("with another caption", _differing(before.captions, now.captions))
    for what in _differing(before.facts, now.facts):
        said.append(f"{naming.shown(what)}: {_cut(before.facts[what])} -> {_cut(now.facts[what])}")
    return said


def difference(earlier: Contents | None, before: str | None, now: Contents, fingerprint: str, others: Sequence[str] = ()) -> str:
    """What tells data from those of the fingerprint `before`, in a line.

    earlier: their contents, if they were kept
    others: further differences, which are known anyway
    """
    said = [*others, *(changes(earlier, now) if earlier else ())]
    unknown = f"{FILE} names no difference" if earlier else f"{FILE}, which would say what they were, is not there"
    return "; ".join(said) or f"their fingerprint was {naming.shown(str(before)[:40])} and is {fingerprint}; {unknown}"


def _differing(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [name for name, value in before.items() if name in now and now[name] != value]


def _said(what: str, names: Sequence[str]) -> list[str]:
    return [f"{naming.plural(len(names), 'file')} {what}: {naming.first(names)}"] if names else []


def _cut(text: str) -> str:
    return naming.shown(text[:LONGEST])
