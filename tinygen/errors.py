"""Errors shown to users, and the wording of names and durations in messages.

A `UserError` is printed as its message, with exit status 2; anything else keeps its traceback.
"""

import difflib
import math
from collections.abc import Iterable

LONGEST = 200  # characters of a name quoted in a message
MOST = 24  # names listed in a message
CONTROLS = (*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))  # the latter change the writing direction
COMMANDS = {code: "\ufffd" for code in CONTROLS if chr(code) not in "\n\t"}


class UserError(Exception):
    """An error that the user can fix. The message says what is wrong and what to do, in one or two lines."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a `name` that is not among the `known` ones, with the nearest match first.

    >>> print(unknown("model", "microdti", ["mlp", "microdit"]))
    unknown model 'microdti': did you mean 'microdit'? (known: microdit, mlp)
    """
    names = sorted(shortened(str(each)) for each in known)
    name = shortened(str(name))
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    guess = f": did you mean {nearest[0]!r}?" if nearest else ";"
    if nearest and len(names) > MOST // 2:
        return UserError(f"unknown {kind} {name!r}{guess}")
    tail = f"(known: {listed(names)})" if nearest else f"known: {listed(names) or 'none'}"
    return UserError(f"unknown {kind} {name!r}{guess} {tail}")


def check_positive(section: str, **values: float) -> None:
    """Raises UserError for a value that is not positive and finite. values: by their keys in config.SECTION"""
    for key, value in values.items():
        if not 0 < value < math.inf:
            raise UserError(f"config.{section}.{key}={value} must be positive")


def check_share(section: str, **values: float) -> None:
    """Raises UserError for a value outside [0, 1). values: by their keys in config.SECTION"""
    for key, value in values.items():
        if not 0 <= value < 1:
            raise UserError(f"config.{section}.{key}={value} must lie in [0, 1)")


def listed(names: Iterable[str]) -> str:
    """The first few names, possibly untrusted, as part of a line.

    >>> listed(["a", "b"])
    'a, b'
    """
    each = [*names]
    return ", ".join([*map(shortened, each[:MOST]), *["..."] * (len(each) > MOST)])


def shortened(text: str) -> str:
    """A name as part of a line, truncated if long.

    >>> len(shortened("a" * 1000))
    203
    """
    return in_line(text if len(text) <= LONGEST else f"{text[:LONGEST]}...")


def printable(text: str) -> str:
    """Text without control characters such as terminal escapes; line breaks and tabs stay."""
    return text.replace("\r\n", "\n").translate(COMMANDS)


def in_line(text: str) -> str:
    """Text as part of a line, without line breaks, which could forge a line of output."""
    return printable(" ".join(text.split("\n")))


def duration(seconds: float) -> str:
    """A duration in a suitable unit.

    >>> [duration(seconds) for seconds in (0.123, 40, 600, 9000)]
    ['0.12 s', '40 s', '10 min', '2.5 h']
    """
    if seconds < 99.5:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
