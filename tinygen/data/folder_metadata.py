"""What is written about the images of a folder: metadata.jsonl files, and text files beside the images.

A line of a metadata.jsonl is a JSON object with "file_name", relative to the file's own folder; "text" or "caption" is what the
image shows, any other key may be the label to train on.
"""

import dataclasses
import json
import os
import posixpath
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from tinygen.errors import UserError


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
        return bool(self.captions.get(name)) or _text_beside(name) in self.texts

    def caption(self, name: str) -> str:
        """ "" where there is none. Raises UserError for a text file that cannot be read."""
        if self.captions.get(name) or not self.has_caption(name):
            return self.captions.get(name, "")
        path = os.path.join(self.root, _text_beside(name))
        try:
            with open(path, encoding="utf-8-sig") as stream:
                return stream.read().strip()
        except (OSError, ValueError) as error:
            raise UserError(f"the caption {path!r} cannot be read ({error}): it must be there, as UTF-8 text") from error


def read_writing(root: str, files: Iterable[str], texts: Collection[str], images: Collection[str], column: str) -> Writing:
    """What the metadata `files` and the `texts` say about the `images`; `column` is the key to take labels from.

    Raises UserError, naming file and line, for a line that is no such object, and for a second one about the same image.
    """
    captions: dict[str, str] = {}
    labels: dict[str, str] = {}
    columns: set[str] = set()
    described: set[str] = set()
    absent = 0
    for file in files:
        with open(os.path.join(root, file), "rb") as stream:
            for number, line in enumerate(stream, 1):
                if not line.strip():
                    continue
                try:
                    entry = _entry(line)
                    name = posixpath.normpath(posixpath.join(posixpath.dirname(file), entry["file_name"]))
                    if name in described:
                        raise ValueError(f"{name!r} is described a second time")
                    if column in entry:
                        labels[name] = _label(column, entry[column])
                except ValueError as error:
                    raise UserError(f"{os.path.join(root, file)!r}, line {number}: {error}") from error
                columns |= entry.keys() - {"file_name", "text", "caption"}
                absent += name not in images
                described.add(name)
                captions[name] = (entry.get("text") or entry.get("caption") or "").strip()
    return Writing(root=root, captions=captions, labels=labels, columns=columns, absent=absent, texts=texts)


def _entry(line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(line.decode("utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from error
    if not isinstance(entry, dict):
        raise ValueError('not a JSON object such as {"file_name": "cat.png", "text": "a cat"}')
    if not isinstance(entry.get("file_name"), str):
        raise ValueError('"file_name" is missing, or not a string')
    for key in ("text", "caption"):
        if not isinstance(entry.get(key), str | None):
            raise ValueError(f"{key!r} is not a string")
    # Without null: an image without a value is one without the key.
    return {key: value for key, value in entry.items() if value is not None}


def _label(column: str, value: Any) -> str:
    if isinstance(value, str | int):  # true and false among them
        return value if isinstance(value, str) else json.dumps(value)
    raise ValueError(f"{column!r} is no label: a string, a whole number, true or false")


def _text_beside(name: str) -> str:
    return f"{posixpath.splitext(name)[0]}.txt"
