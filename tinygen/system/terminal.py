"""Everything that is printed: names, captions and texts may come from strangers, and to a terminal some characters are commands."""

import contextlib
import sys

CONTROLS = (*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))  # the latter turn the order of writing
COMMANDS = {code: "\ufffd" for code in CONTROLS if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """Text without control characters, the escape of terminal sequences among them; line breaks and tabs stay."""
    return text.replace("\r\n", "\n").translate(COMMANDS)


def in_line(text: str) -> str:
    """Text as part of a line: a name or a value that breaks it could pass for a line of ours."""
    return printable(" ".join(text.split("\n")))


def say(text: str, *, error: bool = False, end: str = "\n") -> None:
    """Prints text to stdout, or to stderr, at once."""
    stream = sys.stderr if error else sys.stdout
    shown = printable(text)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    with contextlib.suppress(OSError) if error else contextlib.nullcontext():  # the status tells too
        print(shown.encode(encoding, "replace").decode(encoding), end=end, file=stream, flush=True)
