"""Pictures for scoring, from a folder, an .npz file or a split of a data set: in a fixed order, read lazily."""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from absl import logging
from PIL import Image

from tinygen.data import naming
from tinygen.data.images import folder_index, pixels
from tinygen.data.source import DataSource
from tinygen.errors import UserError
from tinygen.evaluation.features.resize import rgb
from tinygen.system import npy

Read = Callable[[], np.ndarray]  # of a picture, uint8 [H, W, 3]
BLOCK = 64  # pictures of a split read at once
NAMED = 3  # skipped files named in a warning
IMAGES = ("arr_0", "images", "samples")  # names of an .npz file's array of pictures; NumPy's default name first


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pictures:
    """Pictures of any sizes."""

    name: str  # shown to the user
    num: int
    fingerprint: str  # of content and order
    reads: Callable[[int], Iterator[Read]]  # first index -> functions that each read one picture; safe to call from threads
    left_out: int = 0  # files skipped because they cannot be decoded

    def first(self, num: int) -> "Pictures":
        """The first `num` pictures, or all if there are fewer."""
        return dataclasses.replace(self, num=min(num, self.num), fingerprint=f"{self.fingerprint}[:{num}]") if num < self.num else self


def of_folder(path: str, option: str) -> Pictures:
    """Every image file below a folder, sorted by name, decoded as in `features.resize.rgb`.

    Undecodable files are skipped with a warning, as in training; the grid of `tinygen sample` is skipped silently. Raises UserError
    if no picture remains.
    """
    found = folder_index.index(path, option)
    drawn = os.path.exists(os.path.join(path, "samples.json"))
    files = [file for file in found.pictures if not (drawn and file.name == "grid.png")]
    left_out = found.tree.unreachable | {file.name: file.reason for file in files if file.reason}
    usable = [file for file in files if not file.reason]
    total = len(usable) + len(left_out)
    shown = "; ".join(f"{name!a}: {reason}" for name, reason in itertools.islice(sorted(left_out.items()), NAMED))
    shown += "; ..." if len(left_out) > NAMED else ""
    if not usable and left_out:
        raise UserError(f"{option}={path}: none of its {total:,} image files can be read ({shown})")
    if not usable:
        others = f" (but {naming.by_kind(found.tree.others)})" if found.tree.others else ""
        raise UserError(f"{option}={path}: no images there{others}: {', '.join(pixels.FORMATS)} are read")
    unread = Counter({kind: num for kind, num in found.tree.others.items() if kind in pixels.UNREADABLE})
    lines = [*found.notes, *naming.passed_over(unread, {}, pixels.UNREADABLE)]
    lines += [f"{len(left_out):,} of {total:,} files are left out ({shown})"] if left_out else []
    for line in lines:
        logging.warning("%s=%s: %s", option, path, line)
    content = hashlib.sha256("\n".join(f"{file.digest} {file.name!a}" for file in usable).encode())

    def reads(start: int) -> Iterator[Read]:
        for file in usable[start:]:
            yield functools.partial(_decoded, os.path.join(path, file.name), (file.size, file.mtime_ns))

    return Pictures(name=path, num=len(usable), fingerprint=content.hexdigest()[:16], reads=reads, left_out=len(left_out))


def of_npz(path: str, option: str) -> Pictures | None:
    """The array of pictures, uint8 [N, H, W, 1, 3 or 4], of an .npz file; None if it has none.

    It is streamed, never whole in memory. Raises UserError for other files, and for pictures of more pixels than PIL accepts.
    """
    with reading(path, option), npy.Npz(path) as archive:
        member = next((name for name in IMAGES if name in archive), None)
        if member is None:
            return None
        found = archive.header(member)
    shape = found.shape
    if found.dtype != np.uint8 or len(shape) != 4 or shape[-1] not in (1, 3, 4) or found.columns or not all(shape):
        raise UserError(f"{option}={path}: {member} is {found}, where pictures are uint8 [N, H, W, 1, 3 or 4], row by row")
    try:
        pixels.check_size(*shape[1:3])
    except ValueError as error:
        raise UserError(f"{option}={path}: {member} is {found}, pictures of {error}") from error
    num, size, stamp = shape[0], int(np.prod(shape[1:])), _stamp(os.stat(path))

    def reads(start: int) -> Iterator[Read]:
        if _stamp(os.stat(path)) != stamp:
            raise UserError(f"{option}={path} has changed while being read: run the command again")
        with reading(path, option), npy.Npz(path) as archive, archive.open(member) as stream:
            stream.seek(start * size, os.SEEK_CUR)
            for _ in range(start, num):
                row = stream.read(size)
                if len(row) < size:
                    raise UserError(f"{option}={path} ends before the last of its {num} pictures")
                yield functools.partial(colour, np.frombuffer(row, np.uint8).reshape(shape[1:]))

    return Pictures(name=path, num=num, fingerprint=digest(path), reads=reads)


def of_split(source: DataSource, split: str, name: str) -> Pictures:
    """A split of a data set, as a model sees it. Raises UserError for data that are not pictures."""
    if not source.codec.comparable:
        raise UserError(f"{name}: scores compare pictures, and these are {source.codec.noun} data")
    examples = source.splits[split]

    def reads(start: int) -> Iterator[Read]:
        for first in range(start, len(examples), BLOCK):
            block = np.arange(first, min(first + BLOCK, len(examples)))
            domain = source.codec.domain
            for picture in source.codec.medium.decode(domain.to_medium(examples.take(block)[domain.key])):
                yield functools.partial(colour, picture)

    return Pictures(name=name, num=len(examples), fingerprint=f"{source.fingerprint}:{split}", reads=reads)


def colour(picture: np.ndarray) -> np.ndarray:
    """uint8 [H, W, C] as RGB: grey repeated, transparency dropped."""
    return picture.repeat(3, -1) if picture.shape[-1] == 1 else picture[..., :3]


def _stamp(found: os.stat_result) -> tuple[int, int]:
    """Size and modification time."""
    return found.st_size, found.st_mtime_ns


def _decoded(path: str, stamp: tuple[int, int]) -> np.ndarray:
    try:
        with open(path, "rb") as stream:
            if _stamp(os.fstat(stream.fileno())) != stamp:
                raise ValueError("it has changed while being read")
            with Image.open(stream, formats=pixels.FORMATS) as image:
                pixels.check_size(*image.size)
                return rgb(image)
    except Exception as error:  # a damaged file can make a decoder raise anything
        raise UserError(f"{path} cannot be read ({folder_index.reason(error)}): repair or remove it") from error


def digest(path: str) -> str:
    """16 hex digits of a file's content."""
    try:
        with open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()[:16]
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error


@contextlib.contextmanager
def reading(path: str, option: str) -> Iterator[None]:
    """Turns whatever zipfile, zlib and NumPy raise for a malformed archive into a UserError of one line."""
    try:
        if not Path(path).exists():
            raise UserError(f"{option}={path} is not there")
        if not Path(path).is_file():
            raise UserError(f"{option}={path} is neither a folder nor a regular file")
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{option}={path} is not an .npz file that can be read ({folder_index.reason(error)})") from error
