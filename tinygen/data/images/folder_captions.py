"""Captions of a folder's images, from metadata files and from text files beside the images.

The first caption that is not blank is used: from a metadata file, img.txt, then img.caption. All are read once, at the start.
"""

import dataclasses
import os
import posixpath
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from rich.console import Console
from rich.progress import track

from tinygen.data import encoding, naming
from tinygen.data.captions.tokenized import counted

KINDS = ("txt", "TXT", "caption", "CAPTION")  # some tools write capitals
LONGEST = 2**20  # characters of a file
BLOCK = 256  # files that a thread reads at a time
MANY = 20_000  # files above which progress is shown


@dataclasses.dataclass(frozen=True, kw_only=True)
class Captions:
    """The captions of some images, by the images' names.

    words: captions that are not blank
    blank: number of images with only blank captions
    bad: {text file beside an image: why it cannot be read}
    spared: number of text files not read, because another caption takes precedence
    """

    words: Mapping[str, str]
    blank: int
    bad: Mapping[str, str]
    spared: int

    def lines(self, splits: Mapping[str, Collection[str]]) -> list[str]:
        """Lines for the log; [] if no image has a caption. splits: the images of "train" and "validation"."""
        counts = {split: (sum(name in self.words for name in names), len(names)) for split, names in splits.items()}
        said = [counted(counts)] if self.words or self.blank or self.bad else []
        if said and self.blank:
            said[0] += f"; {self.blank:,} more {'is' if self.blank == 1 else 'are'} blank"
        if self.bad:
            said.append(f"{naming.plural(len(self.bad), 'caption file')} cannot be read: {naming.first(self.bad, self.bad)}")
        if self.spared:
            order = "a metadata file takes precedence over img.txt, and img.txt over img.caption"
            said.append(f"{naming.plural(self.spared, 'caption file')} not read: {order}")
        return said


def read_captions(root: str, described: Mapping[str, str], texts: Mapping[str, int], images: Sequence[str]) -> Captions:
    """The captions of the `images`.

    described: {image: caption} from metadata files
    texts: {text file below `root`: its size}
    """
    words = {name: described[name] for name in images if described.get(name)}
    beside = {name: found for name in images if (found := _beside(name, texts))}
    spared = sum(len(found) for name, found in beside.items() if name in words)
    waiting = {name: found for name, found in beside.items() if name not in words}
    blank, bad = {name for name in images if name in described and name not in words}, {}
    while waiting:  # another round for each blank or unreadable file
        read = _read(root, {found[0]: size for found in waiting.values() if (size := texts[found[0]])})
        following = {}
        for name, (file, *more) in waiting.items():
            said, fault = read.get(file, ("", ""))
            if said:
                words[name] = said
                spared += len(more)
                continue
            if fault:
                bad[file] = fault
            else:
                blank.add(name)
            if more:
                following[name] = more
        waiting = following
    return Captions(words=words, blank=len(blank - words.keys()), bad=bad, spared=spared)


def alone(texts: Iterable[str], images: Iterable[str]) -> Counter[str]:
    """Counts of text files that are not beside an image, by extension."""
    stems = {posixpath.splitext(name)[0] for name in images}
    parts = (posixpath.splitext(text) for text in texts)
    return Counter(extension[1:].lower() for stem, extension in parts if stem not in stems)


def _beside(name: str, texts: Collection[str]) -> list[str]:
    """The text files beside an image, in order of precedence."""
    stem = posixpath.splitext(name)[0]
    return [text for kind in KINDS if (text := f"{stem}.{kind}") in texts]


def _read(root: str, files: Mapping[str, int]) -> dict[str, tuple[str, str]]:
    """{file: (stripped text, why it cannot be read)}, one of the two empty. files: {file: size}"""
    ordered = sorted(files)
    blocks = [ordered[start : start + BLOCK] for start in range(0, len(ordered), BLOCK)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        read = pool.map(lambda block: [_text(os.path.join(root, file), files[file]) for file in block], blocks)
        watched = track(
            read, "reading captions", total=len(blocks), console=Console(stderr=True), transient=True, disable=len(ordered) < MANY
        )
        return dict(zip(ordered, (each for block in watched for each in block), strict=True))


def _text(path: str, size: int) -> tuple[str, str]:
    if size > len(encoding.BOM) + 4 * LONGEST:  # a character has at most four bytes
        return "", f"more than {LONGEST:,} characters"
    try:
        with open(path, "rb", buffering=0) as stream:
            content = stream.readall()
        text = content.decode("utf-8-sig")
    except OSError as error:
        return "", (error.strerror or str(error)).lower()
    except ValueError:
        return "", f"{encoding.fault(content)} text"
    if len(text) > LONGEST:
        return "", f"more than {LONGEST:,} characters"
    return ("", "not UTF-8 text: it holds a zero byte") if "\0" in text else (text.strip(), "")
