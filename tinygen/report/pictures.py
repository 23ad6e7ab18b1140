"""The previews of a report: pictures, each stored once and compressed to fit a size budget, and texts."""

import base64
import dataclasses
import io
import math
import struct
import warnings
from collections.abc import Sequence
from typing import Any

from PIL import Image, UnidentifiedImageError

from tinygen.errors import printable
from tinygen.workdir.files import PICTURE, File

BUDGET = 12_000_000  # base64 characters of all pictures
WEBP_SIDE = 16383  # the format's limit
PIXELS = 2**25  # limit of a picture; a grid of 64 images of 512 x 512 has half as many
ALL_PIXELS = 2**25  # limit of all pictures; more would rarely fit the budget, and take long to encode
LONGEST = 20_000  # characters of one text
ROOM = 4_000_000  # characters of all texts


@dataclasses.dataclass
class Picture:
    """An encoded picture for the page."""

    width: int
    height: int
    data: str  # a data: URI


@dataclasses.dataclass
class Album:
    """Pictures by file, and a note about compressed or omitted ones."""

    pictures: dict[File, Picture]
    problems: dict[File, str]
    note: str = ""

    @property
    def characters(self) -> int:
        return sum(len(picture.data) for picture in self.pictures.values())


def pack(groups: Sequence[Sequence[File]], budget: int = BUDGET) -> Album:
    """Pictures, lossless if they fit the budget, else lossy, else fewer per group; the first and last of a group are dropped last."""
    album = Album({}, {})
    groups, album.note = _affordable(groups)
    paths = [path for group in groups for path in group]
    album.pictures = _encode(paths, None, album.problems)
    whole = album.characters
    if whole <= budget:
        return album
    note = f"{album.note} " if album.note else ""
    for quality in (90, 75):
        lossy = _encode(list(album.pictures), quality, album.problems)
        album.pictures = {
            path: min(stored, lossy.get(path, stored), key=lambda each: len(each.data)) for path, stored in album.pictures.items()
        }
        sizes = f"without loss they take {whole / 1e6:.3g} MB, allowed are {budget / 1e6:.3g}."
        album.note = f"{note}Pictures are lossy WebP (quality {quality}): {sizes}"
        if album.characters <= budget:
            return album
    packed, share = dict(album.pictures), budget / album.characters
    readable = [[path for path in group if path in packed] for group in groups]
    while album.characters > budget and any(len(group) > 2 for group in readable):
        readable = [_spread(group, math.floor(len(group) * min(share, 0.95))) for group in readable]
        album.pictures = {path: packed[path] for group in readable for path in group}
        share = 0.95
    while album.characters > budget:  # drop the largest
        del album.pictures[max(album.pictures, key=lambda path: len(packed[path].data))]
    album.note += f" Even so only {len(album.pictures)} of {len(packed)} fit; the others are in the folder."
    return album


def _affordable(groups: Sequence[Sequence[File]]) -> tuple[list[list[File]], str]:
    """The pictures of each group that can be encoded in reasonable time, and a note if some are omitted."""
    pixels = {path: _pixels(path) for group in groups for path in group}
    total = sum(pixels.values())
    if total <= ALL_PIXELS:
        return [list(group) for group in groups], ""
    kept, left = [], ALL_PIXELS
    for group in groups:
        kept.append([])
        for path in _spread(list(group), math.floor(len(group) * ALL_PIXELS / total)):
            if pixels[path] <= left:
                left -= pixels[path]
                kept[-1].append(path)
    shown = f"{sum(map(len, kept))} of {len(pixels)} pictures are shown"
    return kept, f"{shown}: all together have {total:,} pixels. The others are in the folder."


def _pixels(path: File) -> int:
    """The number of pixels declared in a PNG header; 0 if there is none."""
    try:
        content = path.beginning(24)
    except OSError:
        return 0
    width, height = struct.unpack(">II", content[16:24]) if len(content) == 24 else (0, 0)
    return min(width * height, PIXELS)  # a larger one is not decoded


def _spread(items: list[File], count: int) -> list[File]:
    """`count` evenly spaced items (at least two, if there are two), including the first and the last."""
    count = max(2, count)
    return items if len(items) <= count else [items[round(index * (len(items) - 1) / (count - 1))] for index in range(count)]


def _encode(paths: list[File], quality: int | None, problems: dict[File, str]) -> dict[File, Picture]:
    pictures = {}
    for path in paths:
        try:
            stored = path.read(PICTURE)
            with (
                warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning),  # PIXELS is the limit here
                Image.open(io.BytesIO(stored), formats=("PNG",)) as image,
            ):
                if image.width * image.height > PIXELS:
                    raise ValueError(f"{image.width} x {image.height} pixels, and at most {PIXELS:,} are shown")
                if stored[12:16] != b"IHDR":  # PIL would search further and could find another size
                    raise ValueError("it does not begin with its size, as a PNG file does")
                image.load()
                content = _compressed(stored, image, quality)
                kind = "png" if content.startswith(b"\x89PNG") else "webp"
                pictures[path] = Picture(image.width, image.height, f"data:image/{kind};base64,{base64.b64encode(content).decode()}")
        except UnidentifiedImageError:
            problems[path] = "it is not a picture"
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            problems[path] = getattr(error, "strerror", None) or str(error)
    return pictures


def _compressed(stored: bytes, image: Image.Image, quality: int | None) -> bytes:
    """WebP, or the stored file if that is smaller. quality: None = lossless"""
    if max(image.size) > WEBP_SIDE or (quality is None and len(stored) > BUDGET):  # the latter could rarely be compressed enough
        return stored
    buffer = io.BytesIO()
    options: dict[str, Any] = {"lossless": True, "quality": 50} if quality is None else {"quality": quality}
    image.convert("RGB").save(buffer, "WEBP", method=2, **options)
    return min(stored, buffer.getvalue(), key=len)


def texts(paths: Sequence[File]) -> tuple[dict[File, str], dict[File, str]]:
    """(texts by path, truncated to fit; problems of those that cannot be read)"""
    most = min(LONGEST, ROOM // max(1, len(paths)))
    found, problems = {}, {}
    for path in paths:
        try:
            content = path.beginning(4 * most + 4)  # bytes; a character has at most four
        except OSError as error:
            problems[path] = str(error.strerror)
            continue
        text = printable(content.decode("utf-8", "replace"))
        found[path] = text if len(text) <= most else f"{text[:most]}\n[the rest is in the file]"
    return found, problems
