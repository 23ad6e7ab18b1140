"""Everything that is printed: names, captions and texts may come from strangers, and to a terminal some characters are commands."""

import contextlib
import sys

from tinygen.errors import printable


def say(text: str, *, error: bool = False, end: str = "\n") -> None:
    """Prints text to stdout, or to stderr, at once."""
    stream = sys.stderr if error else sys.stdout
    shown = printable(text)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    with contextlib.suppress(OSError) if error else contextlib.nullcontext():  # the status tells too
        print(shown.encode(encoding, "replace").decode(encoding), end=end, file=stream, flush=True)
