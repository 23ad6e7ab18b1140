"""Text previews for the page, truncated to fit."""

from collections.abc import Sequence

from tinygen.errors import printable
from tinygen.workdir.files import File

LONGEST = 20_000  # characters of one text
ROOM = 4_000_000  # characters of all texts


def read(paths: Sequence[File]) -> tuple[dict[File, str], dict[File, str]]:
    """(texts by path, problems of those that cannot be read)."""
    most = min(LONGEST, ROOM // max(1, len(paths)))
    texts, problems = {}, {}
    for path in paths:
        try:
            content = path.beginning(4 * most + 4)  # bytes; a character has at most four
        except OSError as error:
            problems[path] = str(error.strerror)
            continue
        text = printable(content.decode("utf-8", "replace"))
        texts[path] = text if len(text) <= most else f"{text[:most]}\n[the rest is in the file]"
    return texts, problems
