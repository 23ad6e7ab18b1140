"""What a data set consists of, piece by piece: when a run is resumed on other data, by this it says what has changed.

The fingerprint decides whether data are the same. This only finds words for it, so short digests will do.
"""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from tinygen.data import naming

LONGEST = 200  # characters of a fact that a message repeats
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

    def to_json(self) -> dict[str, Any]:
        return {field.name: value for field in dataclasses.fields(self) if (value := dict(getattr(self, field.name)))}

    @classmethod
    def from_json(cls, tree: Any) -> "Contents":
        """What can be made out of it, which may be nothing: it explains a refusal, and is never the reason for one."""
        if not isinstance(tree, Mapping):
            return cls()
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


def _differing(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [name for name, value in before.items() if name in now and now[name] != value]


def _said(what: str, names: Sequence[str]) -> list[str]:
    return [f"{naming.plural(len(names), 'file')} {what}: {naming.first(names)}"] if names else []


def _cut(text: str) -> str:
    return naming.shown(text[:LONGEST])
