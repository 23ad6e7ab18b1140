"""A user's folder of images, with optional labels from subfolders and captions from text files.

The images stay in place. `folder_index` decodes each once to check it; a batch decodes its images again on request.
"""

import dataclasses
import hashlib
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from tinygen.data import naming
from tinygen.data.codec import encode_pixels, image_codec
from tinygen.data.contents import Contents, short
from tinygen.data.encoding import composed
from tinygen.data.examples import Batch, Examples
from tinygen.data.images import folder_captions, folder_index, pixels
from tinygen.data.images.folder_captions import read_captions
from tinygen.data.images.folder_index import Index, Picture
from tinygen.data.images.folder_metadata import Metadata, read_metadata
from tinygen.data.source import DataSource
from tinygen.errors import UserError, unknown

HELD_OUT = ("validation", "val", "test")  # the first of these folders beside train/ is the validation split


@dataclasses.dataclass(frozen=True)
class FolderExamples(Examples):
    """One split of a folder. In memory an image is only its name, its caption and a few numbers.

    labels: int32 [N], or None
    words: {image: caption}
    options: keywords of `pixels.fitted`
    """

    root: str
    pictures: Sequence[Picture]
    labels: np.ndarray | None
    words: Mapping[str, str]
    options: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.pictures)

    def take(self, indices: np.ndarray) -> Batch:
        """Raises UserError if a file has changed since it was indexed."""
        batch = {"x": encode_pixels(np.stack([self._pixels(self.pictures[number]) for number in indices]))}
        return batch if self.labels is None else {**batch, "label": self.labels[indices]}

    def captions(self, indices: np.ndarray) -> list[str]:
        return [self.words.get(self.pictures[number].name, "") for number in indices]

    def names(self, indices: np.ndarray) -> list[str]:
        return [self.pictures[number].name for number in indices]

    def _pixels(self, picture: Picture) -> np.ndarray:
        path = os.path.join(self.root, picture.name)
        try:
            with open(path, "rb") as stream:
                now = os.fstat(stream.fileno())
                if (now.st_size, now.st_mtime_ns) != (picture.size, picture.mtime_ns):
                    raise ValueError("another size or time")
                with Image.open(stream, formats=pixels.FORMATS) as image:
                    return pixels.fitted(image, **self.options)
        except Exception as error:  # a damaged file can make a decoder raise anything
            raise UserError(
                f"{path!r} can no longer be read as it was at the start ({folder_index.reason(error)}).\n"
                "Put the old content back and run the same command again; data that have changed for good need another --workdir."
            ) from error


def folder(
    *, path: str, size: Sequence[int], fit: str, channels: int, background: str, min_side: int, label: str, validation: float, flip: bool
) -> DataSource:
    """The images below `path`: `x` float32 [height, width, channels] in [-1, 1], and `label` int32 if there are labels.

    If `path` holds only train/ and validation/ (or val/, or test/), these are the splits. Otherwise the images whose names
    have the lowest hashes are held out, so that adding files does not reshuffle the others.

    The fingerprint covers names, contents and labels, not times: a copied folder is the same data.

    Args: as explained in `tinygen.config.schema.DATASETS`; the rules for pixels are those of `pixels`.

    Raises:
      UserError: an option is invalid; fewer than two images are usable; some lack the requested label; an entry of a
        metadata file is malformed. Later, from `take`: a file has changed or is missing.
    """
    options: dict[str, Any] = dict(size=pixels.frame_of(size), fit=fit, channels=channels, background=background)
    pixels.check_options(**options)
    if not path:
        raise UserError("config.data.path is empty: give a folder of images, for example --config.data.path=photos")
    if not 0 <= validation < 1:
        raise UserError(f"config.data.validation={validation} must lie in [0, 1): the share of the images to hold out")
    if min_side < 0:
        raise UserError(f"config.data.min_side={min_side} must be 0 or positive (pixels)")
    root = os.path.expanduser(path)
    found = folder_index.index(root)
    left_out = found.tree.unreachable | {each.name: fault for each in found.pictures if (fault := _fault(each, min_side))}
    usable = [each for each in found.pictures if each.name not in left_out]
    if len(usable) < 2:
        raise _too_few(root, found, left_out, len(usable))
    splits, depth, notes = _divided(root, found.pictures, usable, validation)
    used = [each for split in splits.values() for each in split]
    metadata = read_metadata(root, found.tree.metadata, left_out.keys() | {each.name for each in usable}, label)
    captions = read_captions(root, metadata.captions, found.tree.texts, [each.name for each in used])
    labels = _labels(root, label, used, depth, metadata)
    known = sorted(set(labels.values()), key=_natural)
    numbers = {name: number for number, name in enumerate(known)}

    def examples(split: Sequence[Picture]) -> FolderExamples:
        column = np.array([numbers[labels[each.name]] for each in split], np.int32) if known else None
        return FolderExamples(root, split, column, captions.words, options)

    written = captions.lines({split: [each.name for each in pictures] for split, pictures in splits.items()})
    written += filter(None, [metadata.strays()])
    return DataSource(
        codec=image_codec((*options["size"], channels), tuple(known)),
        splits={name: examples(split) for name, split in splits.items()},
        fingerprint=_fingerprint(options, known, splits, labels),
        contents=Contents(files={each.name: each.digest for each in used}, labels={name: short(each) for name, each in labels.items()}),
        flip=flip,
        summary=(_counted(path, splits, labels), *notes, *_left_out(found, left_out), *written, *_passed_over(found), *found.notes),
        uncaptioned="; ".join(written),
    )


def _fault(picture: Picture, min_side: int) -> str:
    """Why an image is left out; "" if it is used."""
    if picture.reason or min(picture.width, picture.height) >= min_side:
        return picture.reason
    return f"{picture.width}x{picture.height}, a side under {min_side} pixels"


def _too_few(root: str, found: Index, left_out: Mapping[str, str], num: int) -> UserError:
    reasons = f"\nLeft out: {naming.first(left_out, left_out)}" if left_out else ""
    if not found.pictures and not any(map(folder_index.is_image, left_out)):
        others = f", only other files ({naming.by_kind(found.tree.others, pixels.UNREADABLE)})" if found.tree.others else ""
        cure = f"give a folder of {', '.join(folder_index.EXTENSIONS[:3])}, ... files"
        return UserError(f"config.data.path={root!r} holds no images{others}: {cure}{reasons}")
    total = num + sum(map(folder_index.is_image, left_out))
    return UserError(
        f"config.data.path={root!r}: {num} of {total} images can be used; it takes two, one to train on and one to hold out.{reasons}"
    )


def _divided(
    root: str, pictures: Sequence[Picture], usable: Sequence[Picture], share: float
) -> tuple[dict[str, list[Picture]], int, Sequence[str]]:
    """(splits, depth of their folders: 0 or 1, notes on images in neither)"""
    tops = {each.name.partition("/")[0] if "/" in each.name else "" for each in pictures}
    named = "train" in tops and tops <= {"train", *HELD_OUT}
    held_out = [top for top in HELD_OUT if top in tops] if named else []
    if not held_out:
        order = sorted(usable, key=lambda each: hashlib.sha256(os.fsencode(each.name)).digest())
        num = min(max(1, math.ceil(share * len(order) - 1e-9)), len(order) - 1)  # 0.07 x 100 is a little over 7
        return {"train": sorted(order[num:]), "validation": sorted(order[:num])}, int(named), ()
    splits = {}
    for split, top in (("train", "train"), ("validation", held_out[0])):
        splits[split] = [each for each in usable if each.name.startswith(f"{top}/")]
        if not splits[split]:
            raise UserError(f"config.data.path={root!r}: none of the images in {top}/ can be used")
    unused = Counter(each.name.partition("/")[0] for each in usable)
    return splits, 1, [
        f"{top}/ is not used ({naming.plural(unused[top], 'image')}): {held_out[0]}/ is held out" for top in held_out[1:]
    ]  # fmt: skip


def _labels(root: str, label: str, used: Sequence[Picture], depth: int, metadata: Metadata) -> Mapping[str, str]:
    """{image: label}; empty without labels. Labels are compared in Unicode normal form C.

    Raises UserError if some images lack the requested label.
    """
    if label == "":
        return {}
    if label in ("auto", "folder"):
        parts = {each.name: each.name.split("/")[depth:] for each in used}
        labels = {name: composed(folders[0]) for name, folders in parts.items() if len(folders) > 1}
        if len(labels) == len(used) and len(set(labels.values())) > 1:
            return labels
        if label == "auto":
            return {}
        if len(labels) == len(used):
            raise UserError(f"config.data.label='folder': all images of {root!r} lie in one folder; give label='' to train without labels")
    elif label not in metadata.columns:
        raise unknown("config.data.label", label, {"auto", "folder", *(column[: naming.LONGEST] for column in metadata.columns)})
    else:
        labels = metadata.labels
    if lacking := [each.name for each in used if each.name not in labels]:
        where = "lie in no subfolder" if label == "folder" else f"have no such value in a {' or '.join(folder_index.METADATA)}"
        strays = f"\n{metadata.strays()}" if label != "folder" and metadata.absent else ""
        raise UserError(
            f"config.data.label={label!r}: {len(lacking):,} of {len(used):,} images {where}, for example {lacking[0]!r}{strays}"
        )
    return {each.name: composed(labels[each.name]) for each in used}


def _natural(name: str) -> tuple[int, str]:
    """Sort key: numbers by value, before words."""
    return (int(name), name) if re.fullmatch("-?[0-9]{1,18}", name) else (10**18, name)


def _fingerprint(
    options: Mapping[str, Any], known: Sequence[str], splits: Mapping[str, Sequence[Picture]], labels: Mapping[str, str]
) -> str:
    digest = hashlib.sha256(ascii((sorted(pixels.recorded(options).items()), known)).encode())
    for split, pictures in splits.items():
        for each in pictures:
            digest.update(ascii((split, each.name, each.digest, labels.get(each.name))).encode())
    return digest.hexdigest()[:16]


# Lines for the log


def _counted(path: str, splits: Mapping[str, Sequence[Picture]], labels: Mapping[str, str]) -> str:
    train, held_out = len(splits["train"]), len(splits["validation"])
    said = f"{train + held_out:,} images in {naming.shown(path.rstrip('/'))}/: {train:,} to train on, {held_out:,} held out; "
    counts = Counter(labels.values()).most_common()
    shown = ", ".join(f"{naming.shown(name)} {num:,}" for name, num in counts[:8]) + (", ..." if len(counts) > 8 else "")
    return said + (f"{len(counts):,} labels ({shown})" if counts else "no labels")


def _left_out(found: Index, left_out: Mapping[str, str]) -> list[str]:
    if not left_out:
        return []
    total = len(found.pictures) + len(found.tree.unreachable)
    file = found.cache.with_suffix(".left-out.txt")
    problem = folder_index.write_whole(file, "".join(f"{name!r}: {left_out[name]}\n" for name in sorted(left_out)))
    where = f"the whole list could not be written to {file} ({problem})" if problem else f"all of them: {file}"
    most = ["most of this folder cannot be used"] if 2 * len(left_out) > total else []
    return [*most, f"{len(left_out):,} of {total:,} files left out: {naming.first(left_out, left_out)}; {where}"]


def _passed_over(found: Index) -> list[str]:
    names = [each.name for each in found.pictures] + [name for name in found.tree.unreachable if not name.endswith("/")]
    texts = folder_captions.alone(found.tree.texts, names)
    beside = {f".{kind} beside no image": num for kind, num in texts.items()}
    return naming.passed_over(found.tree.others, {**beside, "hidden": found.tree.hidden}, pixels.UNREADABLE)
