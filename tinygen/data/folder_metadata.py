"""What is written about the images of a folder: metadata.jsonl files, and text files beside the images.

A line of a metadata.jsonl is a JSON object with "file_name", relative to the file's own folder; "text" or "caption" is what the
image shows, any other key may be the label to train on.
"""

import dataclasses
import json
import os
import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from absl import logging

from tinygen.data.codec import LONGEST_LABEL
from tinygen.errors import UserError

LONGEST = 2**20  # bytes of a line of a metadata.jsonl, characters of a caption's file


@dataclasses.dataclass(frozen=True, kw_only=True)
class Writing:
    """What is written about images, by their names below the folder `root`.

    captions: from metadata.jsonl files
    labels: the values of the column that was asked for
    columns: the keys that occur, those of file names and captions apart
    absent: entries about files that are not there
    texts: names of text files; where there is no other caption, one beside an image holds it
    """

    root: str
    captions: Mapping[str, str]
    labels: Mapping[str, str]
    columns: Collection[str]
    absent: int
    texts: Collection[str]

    def has_caption(self, name: str) -> bool:
        return bool(self.captions.get(name)) or self._beside(name) is not None

    def _beside(self, name: str) -> str | None:
        """The text file beside an image, img.txt or IMG.TXT as cameras write."""
        stem = posixpath.splitext(name)[0]
        return next((text for text in (f"{stem}.txt", f"{stem}.TXT") if text in self.texts), None)

    def caption(self, name: str) -> str:
        """ "" where there is none; for a text file that cannot be read too, of which the log is told."""
        beside = self._beside(name)
        if self.captions.get(name) or beside is None:
            return self.captions.get(name, "")
        path = os.path.join(self.root, beside)
        try:
            with open(path, encoding="utf-8-sig") as stream:
                if len(text := stream.read(LONGEST + 1)) > LONGEST:
                    raise ValueError(f"more than {LONGEST:,} characters")
                return text.strip()
        except (OSError, ValueError) as error:
            logging.warning("%r counts as no caption (%s): it must be there, as UTF-8 text", path, error)
            return ""


def read_writing(root: str, files: Iterable[str], texts: Collection[str], images: Collection[str], column: str) -> Writing:
    """What the metadata `files` and the `texts` say about the `images`; `column` is the key to take labels from.

    Raises UserError, naming file and line, for a line that is no such object, and for a second one about the same image.
    """
    captions: dict[str, str] = {}
    labels: dict[str, str] = {}
    columns: set[str] = set()
    for file in files:
        for where, entry in _entries(os.path.join(root, file)):
            name = posixpath.normpath(posixpath.join(posixpath.dirname(file), entry["file_name"]))
            if name in captions:
                raise UserError(f"{where}: {name!r} is described a second time")
            captions[name] = (entry.get("text") or entry.get("caption") or "").strip()
            columns |= entry.keys() - {"file_name", "text", "caption"}
            if column in entry:
                labels[name] = _label(where, column, entry[column])
    absent = sum(name not in images for name in captions)
    return Writing(root=root, captions=captions, labels=labels, columns=columns, absent=absent, texts=texts)


def _entries(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a metadata.jsonl, each with the words for where it stands. Keys without a value are left out."""
    try:
        with open(path, "rb") as stream:
            for number, line in enumerate(iter(lambda: stream.readline(LONGEST + 1), b""), 1):
                if line.strip():
                    where = f"{path!r}, line {number}"
                    if len(line) > LONGEST:
                        raise UserError(f"{where}: longer than {LONGEST:,} bytes")
                    yield where, _entry(where, line)
    except OSError as error:
        raise UserError(f"{path!r} cannot be read: {error.strerror}") from error


def _entry(where: str, line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON ({error})") from error
    if not isinstance(entry, dict) or not isinstance(entry.get("file_name"), str):
        raise UserError(f'{where}: not a JSON object with a "file_name", such as {{"file_name": "cat.png", "text": "a cat"}}')
    for key in ("text", "caption"):
        if not isinstance(entry.get(key), str | None):
            raise UserError(f'{where}: "{key}" is not a string')
    return {key: value for key, value in entry.items() if value is not None}


def _label(where: str, column: str, value: Any) -> str:
    if isinstance(value, str | int):  # true and false among them
        name = value if isinstance(value, str) else json.dumps(value)
        if len(name) > LONGEST_LABEL:
            raise UserError(f"{where}: {column!r} has {len(name):,} characters, a label at most {LONGEST_LABEL:,}")
        return name
    raise UserError(f"{where}: {column!r} is no label: neither a string, nor a whole number, nor true or false")
