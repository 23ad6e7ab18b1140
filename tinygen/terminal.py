"""Everything that is printed: names, captions and texts may come from strangers, and to a terminal some characters are commands."""

import sys

COMMANDS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """Text without control characters, the escape of terminal sequences among them; line breaks and tabs stay."""
    return text.replace("\r\n", "\n").translate(COMMANDS)


def say(text: str, *, error: bool = False, end: str = "\n") -> None:
    """Prints text to stdout, or to stderr, at once."""
    stream = sys.stderr if error else sys.stdout
    shown = printable(text)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    print(shown.encode(encoding, "replace").decode(encoding), end=end, file=stream, flush=True)
