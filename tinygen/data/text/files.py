"""Lists the text files of a folder: those that match a pattern, or all that are text. Other files are counted."""

import codecs
import fnmatch
import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tinygen.data import naming
from tinygen.errors import UserError

START = 2**16  # bytes read to recognise a text file


class Listing(NamedTuple):
    """paths: sorted by name. passed_over: a line on the other files; [] if there are none."""

    paths: list[Path]
    passed_over: list[str]


def listed(path: str, pattern: str) -> Listing:
    """The files to read at a path.

    path: a file of any name, or a folder, searched recursively without hidden files or links to folders
    pattern: comma-separated globs of file names, ignoring case; "" = every file that begins as UTF-8 text
    Raises UserError if there is no such path, or a folder holds no file to read.
    """
    if not path:
        raise UserError("config.data.path is empty: give a text file, or a folder of them")
    root = Path(os.path.expanduser(path))
    if root.is_file():
        return Listing([root], [])
    if not root.is_dir():
        raise UserError(f"config.data.path={path}: there is no such file or folder")
    if "/" in pattern:
        raise UserError(f"config.data.pattern={pattern} matches names at any depth, such as *.py: give the folder as config.data.path")
    found = _below(root, [each.strip().lower() for each in pattern.split(",") if each.strip()])
    if not found.paths:
        why = f"matches config.data.pattern={pattern}" if pattern else "is text in UTF-8"
        raise UserError("; ".join([f"config.data.path={path}: no file in this folder {why}", *found.passed_over]))
    return found


def _below(root: Path, globs: list[str]) -> Listing:
    paths: list[Path] = []
    kinds: Counter[str] = Counter()
    others: Counter[str] = Counter()
    binary: list[str] = []

    def unlisted(error: OSError) -> None:
        others["that cannot be listed"] += 1

    for folder, folders, files in os.walk(root, onerror=unlisted):
        others["hidden"] += sum(name.startswith(".") for name in (*folders, *files))
        folders[:] = [name for name in folders if not name.startswith(".")]
        others["links to folders"] += sum(os.path.islink(os.path.join(folder, name)) for name in folders)
        for name in files:
            path = Path(folder, name)
            if name.startswith("."):
                continue
            if globs and not any(fnmatch.fnmatchcase(name.lower(), glob) for glob in globs):
                kinds[path.suffix[1:].lower()] += 1
            elif not path.is_file():
                others["that are not regular files"] += 1
            elif not globs and not _begins_as_text(path):
                binary.append(path.relative_to(root).as_posix())
            else:
                paths.append(path)
    if binary:
        others[f"that are not UTF-8 text ({naming.first(binary)})"] = len(binary)
    return Listing(sorted(paths), naming.passed_over(kinds, others))


def _begins_as_text(path: Path) -> bool:
    """Whether a file begins as UTF-8, without zero bytes. An unreadable file counts as text: reading it reports the reason."""
    try:
        with path.open("rb") as file:
            start = file.read(START)
    except OSError:
        return True
    try:
        codecs.utf_8_decode(start, "strict", len(start) < START)
    except UnicodeDecodeError:
        return False
    return b"\0" not in start
