"""Documents: independent texts, in plain files or in memory, read in pieces rather than whole files.

In files, documents are separated by markers and stripped of white space at their ends.
"""

import codecs
import contextlib
import dataclasses
import hashlib
import itertools
import mmap
import os
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Protocol

import numpy as np

from tinygen.data import encoding
from tinygen.data.text import files
from tinygen.errors import UserError

PIECE = 2**20  # bytes or characters of a document read at once
WHITE = " \t\n\v\f\r"
BLANK = frozenset(WHITE.encode())
LONGEST_MARKER = 256  # bytes


class Documents(Protocol):
    """Texts with random access.

    size: approximate bytes of all; None if unknown without reading them
    """

    @property
    def size(self) -> int | None: ...

    def __len__(self) -> int: ...

    def pieces(self, indices: Iterable[int]) -> Iterator[tuple[str, bool]]:
        """The documents at `indices` as consecutive pieces: (text, whether it begins a document)."""
        ...


@dataclasses.dataclass(frozen=True)
class Texts:
    """Documents in memory."""

    texts: Sequence[str]

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def size(self) -> int:
        return sum(map(len, self.texts))

    def pieces(self, indices: Iterable[int]) -> Iterator[tuple[str, bool]]:
        for index in indices:
            yield from cut(self.texts[index])


@dataclasses.dataclass(frozen=True)
class FileDocuments:
    """Documents of plain files.

    marks: size and modification time (ns) of each file when it was hashed
    spans: int64 [N, 3]: file, first byte, the byte after the last
    content: SHA-256 of the content of all files, in order
    digests: {path below the folder, or the file's name: digest of its content}
    passed_over: a line on the other files of the folder; [] if there are none
    """

    paths: Sequence[Path]
    marks: Sequence[tuple[int, int]]
    spans: np.ndarray
    content: str
    digests: Mapping[str, str]
    passed_over: Sequence[str]

    def __len__(self) -> int:
        return len(self.spans)

    @property
    def size(self) -> int:
        return int((self.spans[:, 2] - self.spans[:, 1]).sum())

    def pieces(self, indices: Iterable[int]) -> Iterator[tuple[str, bool]]:
        """Raises UserError for content that is not text, naming file and byte, and for a file that has changed."""
        for number, group in itertools.groupby(map(int, indices), lambda index: int(self.spans[index, 0])):
            with self._opened(number) as file:
                for index in group:
                    start, stop = map(int, self.spans[index, 1:])
                    yield from _pieces(file, start, stop, self.paths[number])

    @contextlib.contextmanager
    def _opened(self, number: int) -> Iterator[BufferedReader]:
        path = self.paths[number]
        changed = UserError(f"{path} has changed while it was read: start again when it is whole")
        with _open(path) as file:
            if _mark(file) != self.marks[number]:
                raise changed
            yield file
            if _mark(file) != self.marks[number]:
                raise changed

    def some(self, indices: Sequence[int] | np.ndarray) -> "FileDocuments":
        return dataclasses.replace(self, spans=self.spans[indices])

    def halved(self, share: float) -> "FileDocuments":
        """Splits the only document in two, the second about that share of it, at the end of a line or else of a word.

        Raises UserError if it is too short.
        """
        number, start, stop = map(int, self.spans[0])
        data = _mapped(self.paths[number])
        part = max(1, round(share * (stop - start)))
        target = stop - part
        ends = (data.rfind(mark, max(start, target - part // 2), target + 1) for mark in (b"\n", b" "))
        middle = next((end for end in ends if end > start), target)
        while start < middle and data[middle] & 0xC0 == 0x80:  # inside a character
            middle -= 1
        spans = [[number, *_stripped(data, *span)] for span in ((start, middle), (middle, stop))]
        if any(first == last for _, first, last in spans):
            raise UserError(f"{self.paths[number]}: its only document, of {stop - start:,} bytes, is too short to hold out a part")
        return dataclasses.replace(self, spans=np.asarray(spans, np.int64))


def find(path: str, marker: str, pattern: str) -> FileDocuments:
    """The documents of a file, or of a folder's files in the order of their names.

    marker: separates documents; "" = each file is one document
    pattern: globs of file names, as in `files.listed`
    Raises UserError if there is no such path, no matching file or no document.
    """
    paths, others = files.listed(path, pattern)
    root = Path(os.path.expanduser(path))
    try:
        separator = marker.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"config.data.marker={marker!r} is not valid text") from error
    if len(separator) > LONGEST_MARKER:
        raise UserError(f"config.data.marker has {len(separator):,} bytes; the limit is {LONGEST_MARKER}")
    spans, digest, marks, digests = array("q"), hashlib.sha256(), [], {}
    for number, each in enumerate(paths):
        with _open(each) as file:
            marks.append(_mark(file))
            content = hashlib.file_digest(file, "sha256")
        digest.update(content.digest())
        digests[each.name if each == root else each.relative_to(root).as_posix()] = content.hexdigest()[:16]
        data = _mapped(each)
        if encoding.wide(start := bytes(data[:4])):
            raise UserError(f"{each} is {encoding.fault(start)}: save it as UTF-8")
        for start, stop in _spans(data, separator):
            spans.extend((number, start, stop))
    if not spans:
        size = sum(each.stat().st_size for each in paths)
        why = f"it holds only white space and {marker!r}" if size and marker else "it holds only white space" if size else "it is empty"
        raise UserError(f"config.data.path={path}: no documents: {why}")
    return FileDocuments(paths, marks, np.frombuffer(spans, np.int64).reshape(-1, 3), digest.hexdigest(), digests, others)


def cut(text: str) -> Iterator[tuple[str, bool]]:
    """The pieces of a document in memory, as from `Documents.pieces`."""
    start = 0
    while len(text) - start > PIECE:
        piece = text[start : start + PIECE]
        piece = piece[: seam(piece)]
        yield piece, start == 0
        start += len(piece)
    yield text[start:], start == 0


def seam(text: str) -> int:
    """Where to cut a text without changing its BPE tokens: before white space that follows a word, or else at its end."""
    low = len(text) // 2
    word = text[: max(text.rfind(" ", low), text.rfind("\n", low), 0)].rstrip(WHITE)
    return len(word) if len(word) > low and not word[-1].isspace() else len(text)


def _pieces(file: BufferedReader, start: int, stop: int, path: Path) -> Iterator[tuple[str, bool]]:
    """The pieces of the document in bytes `start` to `stop` of a file, as from `Documents.pieces`."""
    begun = start
    while start < stop:
        file.seek(start)
        block = file.read(min(PIECE, stop - start))
        if len(block) < min(PIECE, stop - start):
            raise UserError(f"{path} has become shorter while it was read: start again when it is whole")
        text, read = _decoded(block, start, stop, path)
        if start + read < stop:
            text = text[: seam(text)]
            read = len(text.encode())
        yield text, start == begun
        start += read


def _mark(file: BufferedReader) -> tuple[int, int]:
    about = os.fstat(file.fileno())
    return about.st_size, about.st_mtime_ns


@contextlib.contextmanager
def _open(path: Path) -> Iterator[BufferedReader]:
    """Raises UserError if the file cannot be read."""
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def _mapped(path: Path) -> mmap.mmap | bytes:
    with _open(path) as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if os.fstat(file.fileno()).st_size else b""


def _spans(data: mmap.mmap | bytes, marker: bytes) -> Iterator[tuple[int, int]]:
    """(start, stop) of each document that is not blank."""
    start = len(encoding.BOM) if data[: len(encoding.BOM)] == encoding.BOM else 0
    ends = ((found.start(), found.end()) for found in re.finditer(re.escape(marker), data)) if marker else iter(())
    for stop, following in itertools.chain(ends, [(len(data), len(data))]):
        first, last = _stripped(data, start, stop)
        if first < last:
            yield first, last
        start = following


def _stripped(data: mmap.mmap | bytes, start: int, stop: int) -> tuple[int, int]:
    while start < stop and data[start] in BLANK:
        start += 1
    while start < stop and data[stop - 1] in BLANK:
        stop -= 1
    return start, stop


def _decoded(block: bytes, start: int, stop: int, path: Path) -> tuple[str, int]:
    """(text, number of bytes decoded). A character cut by the block's end is left to the next block."""
    try:
        text, read = codecs.utf_8_decode(block, "strict", start + len(block) == stop)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {start + error.start:,} is not UTF-8: the file is not text, or has another encoding") from error
    if (nul := text.find("\0")) >= 0:
        at = start + len(text[:nul].encode())
        raise UserError(f"{path}: byte {at:,} is zero: the file is not text, or is not UTF-8")
    return text, read
