"""The metadata files of a folder of images: metadata.jsonl and metadata.csv, whose entries describe an image each.

An entry is a line of a metadata.jsonl, a JSON object, or a row of a metadata.csv, whose first row names its columns (the convention of
Hugging Face's `imagefolder`). "file_name" is relative to the metadata file's own folder; "text" or "caption" is what the image shows; any
other key may be the label to train on. An empty cell of a table is a key without a value, as `null` is in JSON.
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
MOST_COLUMNS = 1000  # of all metadata files together: whoever asks for an unknown one is shown the nearest
WORDS = ("text", "caption")  # the first of them that is not blank is the caption
EXAMPLE = '{"file_name": "cat.png", "text": "a cat"}'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metadata:
    """What the metadata files of a folder say.

    files: their names below the folder
    captions: {image: what it shows}, blank ones included, of entries with a caption
    labels: {image: its value of the column that was asked for}
    columns: the keys that occur, those of file names and captions apart
    total: entries of all files
    absent: the names, below the folder, of entries about files that are no images there
    """

    files: Sequence[str]
    captions: Mapping[str, str]
    labels: Mapping[str, str]
    columns: Collection[str]
    total: int
    absent: Sequence[str]

    def strays(self) -> str:
        """What to say of entries that fit no image; "" where all fit."""
        if not self.absent:
            return ""
        kinds = " and ".join(sorted({posixpath.basename(file) for file in self.files}))
        many = "entry names" if self.total == 1 else "entries name"
        return (
            f"{len(self.absent):,} of {self.total:,} {many} no image that is there ({kinds}: {naming.first(self.absent)}); "
            "a file_name is relative to the folder of its metadata file"
        )


def read_metadata(root: str, files: Sequence[str], images: Collection[str], column: str) -> Metadata:
    """What the metadata `files` say about the `images`, both named as they lie below `root`; `column` is the key to take labels from.

    Names that lead out of the folder are those of no image. Raises UserError, naming file and line, for an entry that is malformed, and
    for a second one about the same image, in whichever file.
    """
    captions: dict[str, str] = {}
    labels: dict[str, str] = {}
    columns: set[str] = set()
    seen: dict[str, str] = {}  # in which file
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
    """The entries of a metadata file, each with the words for where it stands. Keys without a value are left out."""
    try:
        with open(path, "rb") as stream:
            lines = _Lines(path, iter(lambda: stream.readline(LONGEST + 1), b""))
            yield from _rows(lines) if path.endswith(".csv") else _objects(lines)
    except OSError as error:
        raise UserError(f"{path!r} cannot be read: {error.strerror}") from error


class _Lines:
    """The lines of a file as text, of which none and no row of several makes more than `LONGEST` bytes."""

    def __init__(self, path: str, lines: Iterator[bytes]) -> None:
        self.path, self.lines = path, lines
        self.number = self.begun = self.size = 0

    def begin(self) -> None:
        """The next line begins an entry."""
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
    """A value without the byte order mark of a file that it may have been copied from."""
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
    """The rows of a table that are not empty. A row may span lines, where quotes hold their ends."""
    before = csv.field_size_limit(LONGEST)  # the whole module's; a row is measured in `_Lines`
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
    raise UserError(f"{where}: {column!r} is no label: neither a string, nor a whole number, nor true or false")
