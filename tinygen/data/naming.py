"""How messages name files: the first few of many, others by their kind, and never more than a line can hold."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

FIRST = 3  # files that a message names; the rest are only counted
KINDS = 8  # that a message lists
LONGEST = 80  # characters of a name, which others may have chosen


def shown(text: str) -> str:
    """Line breaks, control characters and bytes that are not text escaped, so that a line stays a line."""
    return text if text.isprintable() else repr(text)


def quoted(name: str) -> str:
    """A name in quotes, its middle left out where it is long."""
    return repr(name if len(name) <= LONGEST else f"{name[: LONGEST // 2]}...{name[-LONGEST // 2 :]}")


def first(names: Iterable[str], reasons: Mapping[str, str] | None = None) -> str:
    """The first few names in their order, each with its reason where there are reasons."""
    ordered = sorted(names)
    each = (f"{quoted(name)} ({reasons[name]})" if reasons else quoted(name) for name in ordered[:FIRST])
    return ", ".join(each) + (", ..." if len(ordered) > FIRST else "")


def by_kind(counts: Counter[str], reasons: Mapping[str, str] = MappingProxyType({})) -> str:
    """Numbers of files by extension, the most frequent first; "" is the kind of those without one.

    reasons: {extension: why such files are not read}, where that has to be said
    """
    listed = counts.most_common(KINDS)
    more = ", ..." if len(counts) > len(listed) else ""
    why = {kind: f" ({reasons[kind]})" for kind, _ in listed if kind in reasons}
    each = (f"{num:,} {f'.{shown(kind[:LONGEST])}' if kind else 'without an extension'}{why.get(kind, '')}" for kind, num in listed)
    return ", ".join(each) + more


def passed_over(counts: Counter[str], others: Mapping[str, int], reasons: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """The line that says what lies in a folder and was not read; none where there is nothing.

    others: numbers of files by a word for what they are
    reasons: as `by_kind` takes them
    """
    parts = [by_kind(counts, reasons)] if counts else []
    parts += [f"{num:,} {what}" for what, num in others.items() if num]
    return [f"passed over: {', '.join(parts)}"] if parts else []


def plural(num: int, one: str, many: str = "") -> str:
    """A number of things: "1 file", "2 files"."""
    return f"{num:,} {one if num == 1 else many or f'{one}s'}"


def cut(names: Collection[str]) -> list[str]:
    """Names that others have chosen, for a message that lists them."""
    return [name[:LONGEST] for name in names]
