"""Printing to the terminal without control characters: names, captions and texts may come from untrusted files."""

import contextlib
import os
import sys

from tinygen.errors import printable


def say(text: str, *, error: bool = False, end: str = "\n") -> None:
    """Prints text to stdout or stderr and flushes."""
    stream = sys.stderr if error else sys.stdout
    shown = printable(text)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    with contextlib.suppress(OSError) if error else contextlib.nullcontext():  # the exit status reports the error anyway
        print(shown.encode(encoding, "replace").decode(encoding), end=end, file=stream, flush=True)


def drop_output() -> None:
    """Redirects stdout to /dev/null, so that flushing at exit cannot fail."""
    with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:  # ValueError: stdout has no file descriptor
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
