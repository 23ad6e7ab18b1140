"""The metadata files of a folder of images: metadata.jsonl and metadata.csv, with one entry per image.

An entry is a line with a JSON object in metadata.jsonl, or a row of metadata.csv, whose first row names the columns (the convention of
Hugging Face's `imagefolder`). "file_name" is relative to the metadata file's folder; "text" or "caption" is the caption; any other key
can be the label to train on. An empty cell is a missing value, like `null` in JSON.
"""

import csv
import dataclasses
import json
import os
import posixpath
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tinygen.data import encoding, naming
from tinygen.data.labels import LONGEST as LONGEST_LABEL
from tinygen.errors import UserError

NAMES = ("metadata.jsonl", "metadata.csv")
LONGEST = 2**20  # bytes of an entry
MOST_COLUMNS = 1000  # of all metadata files together; errors suggest the nearest of them
WORDS = ("text", "caption")  # the first of them that is not blank is the caption
EXAMPLE = '{"file_name": "cat.png", "text": "a cat"}'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metadata:
    """The content of a folder's metadata files.

    files: their names below the folder
    captions: {image: caption}, blank ones included
    labels: {image: value of the requested column}
    columns: all keys except file names and captions
    total: number of entries in all files
    absent: file names of entries without an image in the folder
    """

    files: Sequence[str]
    captions: Mapping[str, str]
    labels: Mapping[str, str]
    columns: Collection[str]
    total: int
    absent: Sequence[str]

    def strays(self) -> str:
        """A line on entries without an image; "" if there are none."""
        if not self.absent:
            return ""
        kinds = " and ".join(sorted({posixpath.basename(file) for file in self.files}))
        many = "entry names" if self.total == 1 else "entries name"
        return (
            f"{len(self.absent):,} of {self.total:,} {many} no image that is there ({kinds}: {naming.first(self.absent)}); "
            "a file_name is relative to the folder of its metadata file"
        )


def read_metadata(root: str, files: Sequence[str], images: Collection[str], column: str) -> Metadata:
    """Reads metadata `files` about `images`, both named relative to `root`; `column` is the key of labels.

    File names outside the folder match no image. Raises UserError, naming file and line, for a malformed entry and for a second entry
    about the same image in any file.
    """
    captions: dict[str, str] = {}
    labels: dict[str, str] = {}
    columns: set[str] = set()
    seen: dict[str, str] = {}  # {image: metadata file}
    absent = []
    for file in files:
        for where, entry in _entries(os.path.join(root, file)):
            name = posixpath.normpath(posixpath.join(posixpath.dirname(file), entry["file_name"]))
            if name in seen:
                raise UserError(f"{where}: {naming.quoted(name)} is described a second time, first in {seen[name]!r}")
            seen[name] = file
            columns |= entry.keys() - {"file_name", "", *WORDS}
            if len(columns) > MOST_COLUMNS:
                raise UserError(f"{where}: more than {MOST_COLUMNS:,} different keys: this describes no images")
            label = _label(where, column, entry[column]) if column in entry else None
            if name not in images:
                absent.append(name)
                continue
            if words := [entry[key].strip() for key in WORDS if key in entry]:
                captions[name] = next(filter(None, words), "")
            if label is not None:
                labels[name] = label
    return Metadata(files=files, captions=captions, labels=labels, columns=columns, total=len(seen), absent=absent)


def _entries(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(location for messages, entry) for each entry of a metadata file. Keys without a value are dropped."""
    try:
        with open(path, "rb") as stream:
            lines = _Lines(path, iter(lambda: stream.readline(LONGEST + 1), b""))
            yield from _rows(lines) if path.endswith(".csv") else _objects(lines)
    except OSError as error:
        raise UserError(f"{path!r} cannot be read: {error.strerror}") from error


class _Lines:
    """The lines of a file as text. Raises UserError for an entry, of one or more lines, above `LONGEST` bytes."""

    def __init__(self, path: str, lines: Iterator[bytes]) -> None:
        self.path, self.lines = path, lines
        self.number = self.begun = self.size = 0

    def begin(self) -> None:
        """Marks the next line as the beginning of an entry."""
        self.begun, self.size = self.number + 1, 0

    @property
    def where(self) -> str:
        return f"{self.path!r}, line {self.begun}"

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        line = next(self.lines)
        self.number += 1
        self.size += len(line)
        if self.size > LONGEST:
            raise UserError(f"{self.where}: longer than {LONGEST:,} bytes")
        kind = self.path.rpartition(".")[2].upper().replace("JSONL", "JSON")
        try:
            text = line.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UserError(f"{self.where}: not {kind} (line {self.number} is {encoding.fault(line)})") from error
        if "\0" in text:
            raise UserError(f"{self.where}: not {kind} (line {self.number} holds a zero byte)")
        return text


def _objects(lines: _Lines) -> Iterator[tuple[str, dict[str, Any]]]:
    lines.begin()
    for line in lines:
        if line.strip():
            yield lines.where, _object(lines.where, line)
        lines.begin()


def _object(where: str, line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON ({error})") from error
    if not isinstance(entry, dict) or not isinstance(entry.get("file_name"), str):
        raise UserError(f'{where}: not a JSON object with a "file_name", such as {EXAMPLE}')
    for key in WORDS:
        if not isinstance(entry.get(key), str | None):
            raise UserError(f'{where}: "{key}" is not a string')
    return {key: _plain(value) for key, value in entry.items() if value is not None}


def _plain(value: Any) -> Any:
    """A value without a leading byte order mark."""
    return value.removeprefix(encoding.MARK) if isinstance(value, str) else value


def _rows(lines: _Lines) -> Iterator[tuple[str, dict[str, Any]]]:
    columns: list[str] = []
    for where, cells in _cells(lines):
        if not columns:
            columns = _columns(where, cells)
        elif len(cells) != len(columns):
            raise UserError(f"{where}: {len(cells):,} cells, where the first row names {naming.plural(len(columns), 'column')}")
        else:
            entry = {column: _plain(cell) for column, cell in zip(columns, cells, strict=True) if cell}
            if "file_name" not in entry:
                raise UserError(f"{where}: no file_name")
            yield where, entry


def _cells(lines: _Lines) -> Iterator[tuple[str, list[str]]]:
    """(location, cells) of each row that is not empty. A row may span lines within quotes."""
    before = csv.field_size_limit(LONGEST)  # global to the module; `_Lines` limits rows
    try:
        lines.begin()
        reader = csv.reader(lines, strict=True)
        while True:
            try:
                cells = next(reader, None)
            except csv.Error as error:
                raise UserError(f"{lines.where}: not CSV ({error})") from error
            if cells is None:
                return
            if any(cells):
                yield lines.where, cells
            lines.begin()
    finally:
        csv.field_size_limit(before)


def _columns(where: str, cells: Iterable[str]) -> list[str]:
    columns = [cell.strip() for cell in cells]
    if "file_name" not in columns:
        listed = ", ".join(naming.quoted(column) for column in columns[: naming.KINDS]) + (", ..." if len(columns) > naming.KINDS else "")
        raise UserError(
            f'{where}: no column "file_name" among {listed}: the first row names the columns, with commas between them.\n'
            "If the table is not about these images, give it another name."
        )
    if len(columns) > MOST_COLUMNS:
        raise UserError(f"{where}: more than {MOST_COLUMNS:,} different keys: this describes no images")
    if twice := [column for column, num in Counter(columns).items() if num > 1 and column]:
        raise UserError(f"{where}: two columns are named {naming.quoted(twice[0])}")
    return columns


def _label(where: str, column: str, value: Any) -> str:
    if isinstance(value, str | int):  # true and false among them
        name = value if isinstance(value, str) else json.dumps(value)
        if len(name) > LONGEST_LABEL:
            raise UserError(f"{where}: {column!r} has {len(name):,} characters, a label at most {LONGEST_LABEL:,}")
        return name
    raise UserError(f"{where}: {column!r} is not a label: give a string, a whole number, true or false")
