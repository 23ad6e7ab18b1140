"""Limits for reads of untrusted files, and the error of refused ones."""

import errno
from collections.abc import Iterator
from typing import IO

from etils import epath

MIB = 2**20
LINES = 128 * MIB  # size limit of a JSON lines file, which is read line by line
LINE = MIB  # size limit of one of its lines
MOST_LINES = 1_000_000  # a metrics file reaches the size limit first


class Refused(OSError):
    """Something in a folder that is not opened, and why. An OSError, so that it is handled like any unreadable file."""

    def __init__(self, path: epath.PathLike, reason: str):
        super().__init__(errno.ELOOP, reason, str(path))


def too_large(most: int) -> str:
    return f"larger than {most // MIB} MiB, the most that is read"


def lines_of(file: IO[bytes], path: epath.Path) -> Iterator[bytes | None]:
    left = MOST_LINES
    while line := file.readline(LINE + 1):
        if not left:
            raise Refused(path, f"more than {MOST_LINES:,} lines, the most that are read")
        left -= 1
        if len(line) <= LINE:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(LINE)
        yield None
