"""Formats names of files for messages: the first few of many, counts by kind, all cut to fit a line."""

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType

FIRST = 3  # files named in a message
KINDS = 8  # kinds listed in a message
LONGEST = 80  # characters of a name


def shown(text: str) -> str:
    """Escapes line breaks, control characters and undecodable bytes, to keep a message on one line."""
    return text if text.isprintable() else repr(text)


def quoted(name: str) -> str:
    """A quoted name; the middle of a long one is elided."""
    return repr(name if len(name) <= LONGEST else f"{name[: LONGEST // 2]}...{name[-LONGEST // 2 :]}")


def first(names: Iterable[str], reasons: Mapping[str, str] | None = None) -> str:
    """The first few names, sorted, each with its reason if given."""
    ordered = sorted(names)
    each = (f"{quoted(name)} ({reasons[name]})" if reasons else quoted(name) for name in ordered[:FIRST])
    return ", ".join(each) + (", ..." if len(ordered) > FIRST else "")


def by_kind(counts: Counter[str], reasons: Mapping[str, str] = MappingProxyType({})) -> str:
    """Counts of files by extension, most frequent first; "" = no extension.

    reasons: {extension: why such files are not read}
    """
    listed = counts.most_common(KINDS)
    more = ", ..." if len(counts) > len(listed) else ""
    why = {kind: f" ({reasons[kind]})" for kind, _ in listed if kind in reasons}
    each = (f"{num:,} {f'.{shown(kind[:LONGEST])}' if kind else 'without an extension'}{why.get(kind, '')}" for kind, num in listed)
    return ", ".join(each) + more


def passed_over(counts: Counter[str], others: Mapping[str, int], reasons: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """A line on the files of a folder that were not read; [] if there are none.

    others: counts of other files, by description
    reasons: as `by_kind` takes them
    """
    parts = [by_kind(counts, reasons)] if counts else []
    parts += [f"{num:,} {what}" for what, num in others.items() if num]
    return [f"passed over: {', '.join(parts)}"] if parts else []


def plural(num: int, one: str, many: str = "") -> str:
    """A count with its noun: "1 file", "2 files"."""
    return f"{num:,} {one if num == 1 else many or f'{one}s'}"
