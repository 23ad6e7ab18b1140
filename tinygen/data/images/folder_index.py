"""Index of a folder's images: every one is decoded once, and unusable ones are listed with the reason.

The index is cached for the user, so that later starts decode only new and changed files. It depends on the files alone, not
on how they will be used.
"""

import dataclasses
import hashlib
import json
import os
import stat
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import PIL
from PIL import Image, UnidentifiedImageError

from tinygen.data.images import pixels
from tinygen.data.images.folder_metadata import NAMES as METADATA
from tinygen.errors import UserError

EXTENSIONS = (
    *("png", "jpg", "jpeg", "jpe", "jfif", "webp", "bmp", "dib", "gif", "tif", "tiff", "ppm", "pgm", "pbm", "pnm"),
    *(each for _, extensions in pixels.OPTIONAL.values() for each in extensions if each not in pixels.UNREADABLE),
)
TEXTS = ("txt", "caption")  # extensions of captions beside images
FORMAT = f"1, Pillow {PIL.__version__}"  # of the cache; another Pillow may read other files
LARGEST = 2**30  # bytes of an image file
CHUNK = 512  # files handed to the threads at once
PAUSE = 10.0  # seconds between lines of progress
UNKNOWN_TIME = -1  # matches no file: system errors are retried at the next start


class Picture(NamedTuple):
    """One image file.

    name: path below the folder, with "/"; bytes that are not UTF-8 become surrogates, as from `os.fsdecode`
    size, mtime_ns: bytes and nanoseconds, to detect changes
    width, height: pixels, after EXIF rotation; 0 if unusable
    digest: 16 hex digits of its content; "" if unusable
    reason: why it is unusable; "" if usable
    """

    name: str
    size: int
    mtime_ns: int
    width: int = 0
    height: int = 0
    digest: str = ""
    reason: str = ""


@dataclasses.dataclass
class Tree:
    """The content of a folder, with names as in `Picture`.

    files: image files, with only their sizes and times
    texts: {file that may be a caption: bytes}
    metadata: metadata files
    others: counts of other files, by extension
    hidden: number of files and folders whose names begin with a dot; such folders are not searched
    unreachable: {inaccessible file or folder: why}
    """

    files: list[Picture] = dataclasses.field(default_factory=list)
    texts: dict[str, int] = dataclasses.field(default_factory=dict)
    metadata: list[str] = dataclasses.field(default_factory=list)
    others: Counter[str] = dataclasses.field(default_factory=Counter)
    hidden: int = 0
    unreachable: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Index:
    """pictures: all image files, sorted by name. notes: lines for the user about the cache. cache: its file."""

    tree: Tree
    pictures: Sequence[Picture]
    notes: Sequence[str]
    cache: Path


def index(root: str, option: str = "config.data.path") -> Index:
    """Checks every image file below `root`. Raises UserError if `root` is not a folder that can be listed.

    option: the option that names `root`
    """
    if not os.path.isdir(root):
        raise UserError(f"{option}={root!r} is {'not a folder' if os.path.exists(root) else 'not there'}: give a folder of images")
    tree = walk(root)
    if "./" in tree.unreachable:
        raise UserError(f"{option}={root!r} cannot be listed ({tree.unreachable['./']})")
    cache = _cache_file(root)
    known, note = _read(cache)
    notes = [note] if note else []
    done = {file.name: known[file.name] for file in tree.files if file.name in known and known[file.name][:3] == file[:3]}
    fresh = [file for file in tree.files if file.name not in done]
    try:
        for picture in _watched(_checked(root, fresh), len(fresh)) if fresh else ():
            done[picture.name] = picture
    finally:  # keeps the results of an interrupted check
        if fresh or note or len(done) != len(known):
            body = {name: picture[1:] for name, picture in done.items()}
            if problem := write_whole(cache, json.dumps({"format": FORMAT, "files": body})):
                notes.append(f"the index could not be written to {cache} ({problem}): the next start checks every image again")
    return Index(tree, [done[file.name] for file in tree.files], notes, cache)


def walk(root: str) -> Tree:
    """The content of `root`, recursively, without hidden files and folders.

    Links are followed, but every real folder is visited once, under its own path if it has one below `root`; links to
    parents of `root` are ignored.
    """
    tree = Tree()
    seen = {_identity(str(folder)) for folder in Path(os.path.realpath(root)).parents}
    own, linked = [""], []
    while own or linked:
        if not own:
            linked.sort(reverse=True)
        folder = (own or linked).pop()
        path = os.path.join(root, folder)
        try:
            if (identity := _identity(path)) in seen:
                continue
            seen.add(identity)
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        tree.hidden += 1
                    elif _is_folder(entry):
                        (linked if entry.is_symlink() else own).append(f"{folder}{entry.name}/")
                    else:
                        _add(tree, f"{folder}{entry.name}", entry)
        except OSError as error:
            tree.unreachable[folder or "./"] = reason(error)
    tree.files.sort()
    tree.metadata.sort()
    return tree


def write_whole(path: Path, text: str) -> str:
    """Writes a file atomically, creating its folder. Returns the reason of a failure; "" on success."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")  # several processes may index the same folder
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(text, "utf-8")
        fresh.replace(path)
    except OSError as error:
        return reason(error)
    return ""


def _identity(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a cycle of links, say: reading it as a file reports the reason
        return False


def is_image(name: str) -> bool:
    """Whether a file has the extension of an image."""
    return _extension(name) in EXTENSIONS


def _extension(name: str) -> str:
    return os.path.splitext(name)[1][1:].lower()


def _add(tree: Tree, name: str, entry: os.DirEntry[str]) -> None:
    extension = _extension(entry.name)
    if extension not in EXTENSIONS and extension not in TEXTS and entry.name not in METADATA:
        tree.others[extension] += 1
        return
    try:
        found = entry.stat()
    except OSError as error:
        tree.unreachable[name] = reason(error)
        return
    if not stat.S_ISREG(found.st_mode):
        tree.unreachable[name] = "not a regular file"
    elif entry.name in METADATA:
        tree.metadata.append(name)
    elif extension in TEXTS:
        tree.texts[name] = found.st_size
    else:
        tree.files.append(Picture(name, found.st_size, found.st_mtime_ns))


def _checked(root: str, files: Sequence[Picture]) -> Iterator[Picture]:
    """Decodes the files in threads (PIL releases the GIL) and fills in the rest of each `Picture`."""
    with ThreadPoolExecutor(os.cpu_count()) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from files that can be read all the same
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        for start in range(0, len(files), CHUNK):
            yield from pool.map(lambda file: _inspect(root, file), files[start : start + CHUNK])


def _inspect(root: str, file: Picture) -> Picture:
    if file.size > LARGEST:
        return file._replace(reason=f"larger than {LARGEST >> 30} GiB")
    try:
        with open(os.path.join(root, file.name), "rb") as stream:
            with Image.open(stream, formats=pixels.FORMATS) as image:
                width, height = pixels.upright(image).size
            stream.seek(0)
            digest = hashlib.file_digest(stream, "sha256").hexdigest()[:16]
    except Exception as error:  # a damaged file can make a decoder raise anything
        failed = isinstance(error, OSError) and error.errno is not None
        fault = "an empty file" if file.size == 0 else reason(error)
        return file._replace(reason=fault, mtime_ns=UNKNOWN_TIME if failed else file.mtime_ns)
    return file._replace(width=width, height=height, digest=digest)


def reason(error: Exception) -> str:
    """Why a file cannot be used, in a few words."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image of a known kind"
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return f"more than {Image.MAX_IMAGE_PIXELS:,} pixels, which PIL takes for an attack"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return " ".join(str(error).split())[:120] or type(error).__name__


def _cache_file(root: str) -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    name = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:16]
    return Path(home) / "tinygen" / "folders" / f"{name}.json"


def _read(cache: Path) -> tuple[dict[str, Picture], str]:
    """({file: picture}, note for the user); empty if the cache is missing or damaged."""
    try:
        stored = json.loads(cache.read_text("utf-8"))
        if stored["format"] != FORMAT:
            return {}, ""
        known = {name: Picture(name, *facts) for name, facts in stored["files"].items()}
        kinds = [type(value) for value in Picture("", 0, 0)]
        if all([type(value) for value in picture] == kinds for picture in known.values()):
            return known, ""
    except OSError:  # if this matters, writing will fail too
        return {}, ""
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass
    return {}, f"the index in {cache} was damaged: every image was checked again"


def _watched(pictures: Iterator[Picture], total: int) -> Iterator[Picture]:
    """Yields the pictures with progress: a bar on a terminal, else occasional lines."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("checking images"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn(),
        console=console, disable=not console.is_terminal, transient=True,
    )  # fmt: skip
    task = bar.add_task("", total=total, rate="")
    began = logged = time.monotonic()
    with bar:
        for done, picture in enumerate(pictures, 1):
            yield picture
            now = time.monotonic()
            rate = f"{done / max(now - began, 1e-9):,.0f} images/s"
            bar.update(task, completed=done, rate=rate)
            if not console.is_terminal and now - logged > PAUSE:
                logged = now
                console.print(f"{done:,} of {total:,} images checked, {rate}")
