"""The pictures that a score compares: a folder, an .npz file or a split of a data set, in a fixed order, read when they are asked for."""

import contextlib
import dataclasses
import functools
import hashlib
import os
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tinygen.data import folder_index, pixels
from tinygen.data.base import DataSource
from tinygen.errors import UserError
from tinygen.scores.resize import rgb

Read = Callable[[], np.ndarray]
BLOCK = 64  # pictures that are read at once where they lie side by side
IMAGES = ("arr_0.npy", "images.npy", "samples.npy")  # names of an .npz file's array of pictures; the first is what NumPy gives unnamed ones


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pictures:
    """Pictures of any sizes.

    name: for a person
    fingerprint: of their content and order
    reads: from a number on, what gives each picture as uint8 [H, W, 3]; to be called in threads
    """

    name: str
    num: int
    fingerprint: str
    reads: Callable[[int], Iterator[Read]]

    def first(self, num: int) -> "Pictures":
        """The first `num` of them; all where there are no more."""
        return dataclasses.replace(self, num=min(num, self.num), fingerprint=f"{self.fingerprint}[:{num}]") if num < self.num else self


def of_folder(path: str, option: str) -> Pictures:
    """Every image file below a folder, in the order of their names, by the rules of `scores.resize.rgb`. Raises UserError without one.

    The grid that `tinygen sample` draws beside its samples is not among them.
    """
    tree = folder_index.walk(path)
    drawn = os.path.exists(os.path.join(path, "samples.json"))
    files = [file for file in tree.files if not (drawn and file.name == "grid.png")]
    if not files:
        others = ", ".join(f"{num} .{kind}" for kind, num in tree.others.most_common(3))
        raise UserError(
            f"{option}={path}: no images there" + (f" (but {others})" if others else "") + f": {', '.join(pixels.FORMATS)} are read"
        )
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        digests = list(pool.map(lambda file: digest(os.path.join(path, file.name)), files))
    content = hashlib.sha256("\n".join(f"{digest} {file.name!a}" for digest, file in zip(digests, files, strict=True)).encode())

    def reads(start: int) -> Iterator[Read]:
        for file in files[start:]:
            yield functools.partial(_decoded, os.path.join(path, file.name), (file.size, file.mtime_ns))

    return Pictures(name=path, num=len(files), fingerprint=content.hexdigest()[:16], reads=reads)


def of_npz(path: str, option: str) -> Pictures | None:
    """The array of pictures, uint8 [N, H, W, 1, 3 or 4], in an .npz file; None where it has none.

    It is read from front to back, and never stands whole in memory. Raises UserError for what is no such file.
    """
    with reading(path, option), zipfile.ZipFile(path) as archive:
        member = next((name for name in IMAGES if name in archive.namelist()), None)
        if member is None:
            return None
        with archive.open(member) as stream:
            shape, order, dtype = _header(stream)
    if dtype != np.uint8 or len(shape) != 4 or shape[-1] not in (1, 3, 4) or order or not all(shape):
        raise UserError(
            f"{option}={path}: {member[:-4]} is {dtype}{list(shape)}, where pictures are uint8 [N, H, W, 1, 3 or 4], row by row"
        )
    num, size, stamp = shape[0], int(np.prod(shape[1:])), _stamp(os.stat(path))

    def reads(start: int) -> Iterator[Read]:
        if _stamp(os.stat(path)) != stamp:
            raise UserError(f"{option}={path} has changed since it was looked at: give the same command again")
        with reading(path, option), zipfile.ZipFile(path) as archive, archive.open(member) as stream:
            _header(stream)
            stream.seek(start * size, os.SEEK_CUR)
            for _ in range(start, num):
                row = stream.read(size)
                if len(row) < size:
                    raise UserError(f"{option}={path} ends before the last of its {num} pictures")
                yield functools.partial(colour, np.frombuffer(row, np.uint8).reshape(shape[1:]))

    return Pictures(name=path, num=num, fingerprint=digest(path), reads=reads)


def of_split(source: DataSource, split: str, name: str) -> Pictures:
    """A split of a data set, as a model sees it. Raises UserError for data that are no pictures."""
    if source.codec.kind != "image" or source.codec.latents is not None:
        kind = source.codec.kind if source.codec.latents is None else "latents"
        raise UserError(f"{name}: scores compare pictures, and these data are {kind}")
    examples = source.splits[split]

    def reads(start: int) -> Iterator[Read]:
        for first in range(start, len(examples), BLOCK):
            block = np.arange(first, min(first + BLOCK, len(examples)))
            for picture in source.codec.decode(examples.take(block)["x"]):
                yield functools.partial(colour, picture)

    return Pictures(name=name, num=len(examples), fingerprint=f"{source.fingerprint}:{split}", reads=reads)


def colour(picture: np.ndarray) -> np.ndarray:
    """uint8 [H, W, C] as RGB: grey repeated, transparency dropped."""
    return picture.repeat(3, -1) if picture.shape[-1] == 1 else picture[..., :3]


def _stamp(found: os.stat_result) -> tuple[int, int]:
    """What changes when a file does."""
    return found.st_size, found.st_mtime_ns


def _decoded(path: str, stamp: tuple[int, int]) -> np.ndarray:
    try:
        with open(path, "rb") as stream:
            if _stamp(os.fstat(stream.fileno())) != stamp:
                raise ValueError("it has changed since it was looked at")
            with Image.open(stream, formats=pixels.FORMATS) as image:
                pixels.check_pixels(image)
                return rgb(image)
    except Exception as error:  # a damaged file can make a decoder raise anything
        raise UserError(f"{path} cannot be read ({folder_index.reason(error)}): mend it or take it away") from error


def digest(path: str) -> str:
    """16 hex digits of a file's content."""
    try:
        with open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()[:16]
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error


def _header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    """(shape, whether column by column, dtype) of the array that a stream begins; it stands at the first value then."""
    version = np.lib.format.read_magic(stream)
    return (np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0)(stream)


@contextlib.contextmanager
def reading(path: str, option: str) -> Iterator[None]:
    """What a file that is no archive of arrays makes zipfile, zlib and NumPy raise, which may be anything, as one line."""
    try:
        if not Path(path).exists():
            raise UserError(f"{option}={path} is not there")
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{option}={path} is no .npz file that can be read ({folder_index.reason(error)})") from error
