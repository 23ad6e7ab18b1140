"""`Folder`s, on a disk or in an object store: all reads and writes below a workdir go through one."""

import errno
import json
import os
from typing import Any, NamedTuple

from etils import epath

from tinygen.errors import UserError
from tinygen.workdir.bucket import Bucket
from tinygen.workdir.disk import Entry, Folder
from tinygen.workdir.reading import LINES, MIB, Refused

__all__ = ["JSON", "LINES", "MIB", "PICTURE", "TEXT", "Entry", "File", "Folder", "Refused", "folder", "json_object", "read_json"]

# Size limits of files that are read at once, in bytes
JSON = 64 * MIB  # takes up to 1.4 GiB when parsed
PICTURE = 64 * MIB
TEXT = 16 * MIB


def folder(root: epath.PathLike, *inside: str, held: bool = False) -> Folder:
    """The folder at a path, on a disk or in an object store."""
    return (Bucket if "://" in str(root) else Folder)(root, *inside, held=held)


class File(NamedTuple):
    """A name in a folder, which need not be a file."""

    folder: Folder
    name: str

    @property
    def path(self) -> epath.Path:
        return self.folder.path(self.name)

    def read(self, most: int) -> bytes:
        """Its content. Raises OSError if it does not exist or is larger than `most` bytes."""
        content = self.folder.read(self.name, most)
        if content is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.path))
        return content

    def beginning(self, most: int) -> bytes:
        """At most its first `most` bytes."""
        return self.folder.beginning(self.name, most)


def json_object(line: bytes | None) -> dict[str, Any] | None:
    """The object in a line of a JSON lines file; None if the line is torn, damaged or something else."""
    try:
        content = json.loads(line or b"")
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def read_json(folder: Folder, name: str) -> Any:
    """The content of a JSON file; None if it does not exist. Raises UserError if it is damaged."""
    try:
        content = folder.read(name, JSON)
        return None if content is None else json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{folder.path(name)} is damaged ({error}): restore it from a copy, or use another --workdir") from error
