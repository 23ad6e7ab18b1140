"""The line between a user's mistake and a fault of ours.

A `UserError` reaches the terminal as its message alone, with exit status 2; anything else keeps its traceback.
"""

import difflib
from collections.abc import Iterable

LONGEST = 200  # characters of a name that a message repeats


class UserError(Exception):
    """Something the user can put right. The message says what is wrong and what to do, in one or two lines."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a `name` that is not among the `known` ones, with the nearest match first.

    >>> print(unknown("model", "microdti", ["mlp", "microdit"]))
    unknown model 'microdti': did you mean 'microdit'? (known: microdit, mlp)
    """
    names = sorted(map(str, known))
    if len(text := str(name)) > LONGEST:
        name = f"{text[:LONGEST]}..."
    nearest = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    guess = f": did you mean {nearest[0]!r}?" if nearest else ";"
    listed = ", ".join(names) if len(names) <= 24 else ", ".join(names[:24]) + ", ..."
    if nearest and len(names) > 12:
        return UserError(f"unknown {kind} {name!r}{guess}")
    tail = f"(known: {listed})" if nearest else f"known: {listed or 'none'}"
    return UserError(f"unknown {kind} {name!r}{guess} {tail}")
