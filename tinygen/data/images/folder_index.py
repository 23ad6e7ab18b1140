"""The images of a folder, every one decoded once: what can be used, and what cannot and why.

What was learnt is kept in the user's cache folder, so that the next start looks only at new and changed files. It holds facts
of the files alone, nothing that depends on how they will be used.
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
FORMAT = f"1, Pillow {PIL.__version__}"  # of the cache; another Pillow may read what this one cannot
LARGEST = 2**30  # bytes of an image file
CHUNK = 512  # files handed to the threads at once
PAUSE = 10.0  # seconds between lines that say how far the check is
UNKNOWN_TIME = -1  # no file has it: what failed for the system's sake is tried again next time


class Picture(NamedTuple):
    """One image file.

    name: its path below the folder, with "/"; bytes that are not UTF-8 stand as surrogates, as `os.fsdecode` gives them
    size, mtime_ns: in bytes and nanoseconds, by which a change is known
    width, height: in pixels, the right way up; 0 where it cannot be used
    digest: of its content, 16 hex digits; "" where it cannot be used
    reason: why it cannot be used; "" where it can
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
    """What lies in a folder. Names are those of `Picture`.

    files: image files, with their sizes and times only
    texts: those of files that may be captions, with their sizes in bytes
    metadata: those of metadata files
    others: how many other files there are, by extension
    hidden: how many files and folders have a name that begins with a dot; nothing below such a folder is looked at
    unreachable: files and folders that the system does not give, and why
    """

    files: list[Picture] = dataclasses.field(default_factory=list)
    texts: dict[str, int] = dataclasses.field(default_factory=dict)
    metadata: list[str] = dataclasses.field(default_factory=list)
    others: Counter[str] = dataclasses.field(default_factory=Counter)
    hidden: int = 0
    unreachable: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Index:
    """pictures: every image file, in the order of their names. notes: what the user should know of the cache. cache: its file."""

    tree: Tree
    pictures: Sequence[Picture]
    notes: Sequence[str]
    cache: Path


def index(root: str, option: str = "config.data.path") -> Index:
    """Every image file below `root`, checked. Raises UserError where `root` is no folder that can be listed.

    option: what `root` was given as
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
    finally:  # an interrupted check has not been in vain
        if fresh or note or len(done) != len(known):
            body = {name: picture[1:] for name, picture in done.items()}
            if problem := write_whole(cache, json.dumps({"format": FORMAT, "files": body})):
                notes.append(f"the index could not be kept in {cache} ({problem}): the next start checks every image again")
    return Index(tree, [done[file.name] for file in tree.files], notes, cache)


def walk(root: str) -> Tree:
    """What lies below `root`, hidden files and folders apart (their names begin with a dot).

    Links are followed, but every real folder is visited once, under its own path where it has one below `root`; a link to a
    folder that holds `root` itself leads nowhere.
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
    """Writes a file in one piece, its folder too if need be. Returns why it could not; "" if it could."""
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
    except OSError:  # a ring of links, say: asked for as a file, it gives the reason
        return False


def is_image(name: str) -> bool:
    """Whether a file's name is that of an image."""
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
    """The files with all that can be known of them, decoded by threads (PIL lets go of the interpreter's lock)."""
    with ThreadPoolExecutor(os.cpu_count()) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about oddities of files that can be read all the same
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
    """What was known of each file, and what the user should be told; nothing is known where the cache is damaged."""
    try:
        stored = json.loads(cache.read_text("utf-8"))
        if stored["format"] != FORMAT:
            return {}, ""
        known = {name: Picture(name, *facts) for name, facts in stored["files"].items()}
        kinds = [type(value) for value in Picture("", 0, 0)]
        if all([type(value) for value in picture] == kinds for picture in known.values()):
            return known, ""
    except OSError:  # where it matters, writing it will fail as well
        return {}, ""
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass
    return {}, f"the index in {cache} was damaged: every image was checked again"


def _watched(pictures: Iterator[Picture], total: int) -> Iterator[Picture]:
    """The same pictures; meanwhile a bar with rate and time left on a terminal, elsewhere a line from time to time."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("checking images"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn(),
        console=console, disable=not console.is_terminal, transient=True,
    )  # fmt: skip
    task = bar.add_task("", total=total, rate="")
    began = told = time.monotonic()
    with bar:
        for done, picture in enumerate(pictures, 1):
            yield picture
            now = time.monotonic()
            rate = f"{done / max(now - began, 1e-9):,.0f} images/s"
            bar.update(task, completed=done, rate=rate)
            if not console.is_terminal and now - told > PAUSE:
                told = now
                console.print(f"{done:,} of {total:,} images checked, {rate}")
