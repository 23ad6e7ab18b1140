"""Safe reads and writes below an untrusted folder on a disk.

Nothing below a `Folder` can escape it: each component of a name is opened relative to its parent without following symbolic
links, and only regular files are opened, never pipes or devices. Reads have a size limit. New content is written to an exclusively
created file with an unguessable name, which then replaces the old one. Symbolic links in the path of the folder itself are the
user's own and are followed. Neither pathlib nor epath can open a name relative to an open folder.
"""

import contextlib
import errno
import io
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import IO, NamedTuple

from etils import epath

from tinygen.workdir.reading import LINES, MIB, Refused, lines_of, too_large

SEARCH = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
ALONE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # opening a pipe does not block
UNFINISHED = re.compile(r"\..+\.[0-9a-f]{16}\.new")


class Entry(NamedTuple):
    """An entry of a folder.

    type: "file" | "folder" | "link" | "pipe" | "socket" | "device"
    size, stored: apparent size and disk usage in bytes
    modified: seconds since 1970
    """

    name: str
    type: str
    size: int
    stored: int
    modified: float


class Folder:
    """A folder on a disk. Names are relative to it, separated by `/`.

    root: its path, or that of a parent folder, as given by the user
    inside: the components from `root` on, which must not be links
    held: refuse everything once the folder at `root` has been moved, deleted or replaced

    Methods raise `Refused` for anything but plain files and folders and for files that are too large, and the operating system's OSError.
    """

    append_interval = 0.0  # minimum seconds between calls of `append` for frequent writers

    def __init__(self, root: epath.PathLike, *inside: str, held: bool = False):
        self.root = epath.Path(root)
        self.inside = inside
        self.held = os.stat(self.root) if held else None

    def __truediv__(self, name: str) -> "Folder":
        """A subfolder."""
        folder = type(self)(self.root, *self.inside, *parts_of(name))
        folder.held = self.held
        return folder

    def __str__(self) -> str:
        return str(self.path())

    def path(self, name: str = "") -> epath.Path:
        """The path of a name in the folder, for messages and for libraries that open files themselves."""
        return self.root.joinpath(*self.inside, *parts_of(name))

    def type_of(self, name: str = "") -> str | None:
        """The type as in `Entry`; None if it does not exist."""
        try:
            with self._above(name) as (folder, last):
                return _type(os.stat(last, dir_fd=folder, follow_symlinks=last == ".").st_mode)
        except FileNotFoundError:
            return None

    def entries(self, name: str = "") -> list[Entry]:
        """The entries of a folder, sorted by name; empty if it does not exist."""
        try:
            with self._opened([*self.inside, *parts_of(name)]) as folder, os.scandir(folder) as listed:
                found = [(each.name, each.stat(follow_symlinks=False)) for each in listed]
        except FileNotFoundError:
            return []
        return sorted(Entry(each, _type(status.st_mode), status.st_size, status.st_blocks * 512, status.st_mtime) for each, status in found)

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """Opens a regular file for reading."""
        with os.fdopen(self._descriptor(name, os.O_RDONLY), "rb") as file:
            yield file

    @contextlib.contextmanager
    def update(self, name: str) -> Iterator[io.FileIO]:
        """Opens a regular file, created if missing, for unbuffered reading, truncating and appending."""
        with os.fdopen(self._descriptor(name, os.O_RDWR | os.O_CREAT | os.O_APPEND), "rb+", buffering=0) as file:
            yield file

    def read(self, name: str, most: int) -> bytes | None:
        """The content of a file of at most `most` bytes; None if it does not exist."""
        pieces, left = [], most + 1
        try:
            with self.open(name) as file:
                while left and (piece := file.read(min(left, MIB))):
                    pieces.append(piece)
                    left -= len(piece)
        except FileNotFoundError:
            return None
        if not left:
            raise Refused(self.path(name), too_large(most))
        return b"".join(pieces)

    def lines(self, name: str, last: int | None = None) -> Iterator[bytes | None]:
        """Iterates over the lines of a file, including line ends; None for a line of more than LINE bytes. Empty if there is no file.

        last: only the complete lines within this many bytes at the end
        """
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(self.open(name))
            except FileNotFoundError:
                return
            size = os.fstat(file.fileno()).st_size
            if last is None and size > LINES:
                raise Refused(self.path(name), too_large(LINES))
            if last is not None and size > last:
                file.seek(size - last)
                next(lines_of(file, self.path(name)), None)
            yield from lines_of(file, self.path(name))

    def write(self, name: str, content: str | bytes | Iterable[bytes]) -> None:
        """Writes a file atomically: if the process is killed or the disk is full, the old file remains."""
        pieces = [encoded(content)] if isinstance(content, str | bytes) else content
        if (found := self.type_of(name)) not in (None, "file", "link"):
            raise Refused(self.path(name), f"a {found}, not a file: not replaced")
        with self._above(name) as (folder, last):
            fresh = f".{last}.{secrets.token_hex(8)}.new"
            number = self._open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | ALONE, folder, self.path(name))
            try:
                with os.fdopen(number, "wb") as file:
                    if found == "file":  # keep permissions, which may be private
                        os.fchmod(number, stat.S_IMODE(os.stat(last, dir_fd=folder, follow_symlinks=False).st_mode))
                    file.writelines(pieces)
                os.replace(fresh, last, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(fresh, dir_fd=folder)
                raise

    def append(self, name: str, content: str | bytes) -> None:
        """Appends complete lines, or bytes, to a file: all or nothing. Starts a new line after one torn by a killed process."""
        with self.update(name) as file:
            end, torn = file.seek(0, os.SEEK_END), False
            if isinstance(content, str) and end:
                file.seek(-1, os.SEEK_END)
                torn = file.read(1) != b"\n"
            left = memoryview(b"\n" * torn + encoded(content))
            try:
                while left:
                    left = left[file.write(left) :]
            except OSError:
                file.truncate(end)  # a part may have been written
                raise

    def make(self, name: str = "") -> None:
        """Creates a folder and its parents below the root, if missing."""
        parts = [*self.inside, *parts_of(name)]
        for depth, part in enumerate(parts):
            with self._opened(parts[:depth]) as folder, contextlib.suppress(FileExistsError):
                os.mkdir(part, dir_fd=folder)
        with self._opened(parts):
            pass

    def remove(self, name: str) -> None:
        """Deletes a file, a link (not its target), or a folder with its contents. Does nothing if it does not exist."""
        with contextlib.suppress(FileNotFoundError), self._above(name) as (folder, last):
            if stat.S_ISDIR(os.stat(last, dir_fd=folder, follow_symlinks=False).st_mode):
                shutil.rmtree(last, dir_fd=folder)
            else:
                os.unlink(last, dir_fd=folder)

    def move(self, name: str, to: str) -> None:
        """Renames a file or folder within this one. The new name must be free."""
        if self.type_of(to) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self.path(to)))
        with self._above(name) as (old, last), self._above(to) as (new, target):
            os.rename(last, target, src_dir_fd=old, dst_dir_fd=new)

    def sweep(self, name: str = "") -> None:
        """Deletes temporary files left in a folder by killed processes."""
        for entry in self.entries(name):
            if entry.type == "file" and UNFINISHED.fullmatch(entry.name):
                self.remove(f"{name}/{entry.name}")

    def check(self) -> None:
        """Raises `Refused` or OSError if this is not a folder, or no longer the same one."""
        with self._opened(self.inside):
            pass

    @contextlib.contextmanager
    def _opened(self, parts: Iterable[str]) -> Iterator[int]:
        """The file descriptor of a folder below the root."""
        number = self._root()
        try:
            path = self.root
            for part in parts:
                path = path / part
                try:
                    inner = os.open(part, SEARCH | os.O_NOFOLLOW, dir_fd=number)
                except OSError as error:
                    raise _reason(error, part, number, path, "a folder") from error
                os.close(number)
                number = inner
            yield number
        finally:
            os.close(number)

    @contextlib.contextmanager
    def _above(self, name: str) -> Iterator[tuple[int, str]]:
        """(file descriptor of the folder that contains `name`, its last component)."""
        *above, last = [*self.inside, *parts_of(name)] or ["."]
        with self._opened(above) as folder:
            yield folder, last

    def _root(self) -> int:
        try:
            number = os.open(self.root, SEARCH)
        except (FileNotFoundError, NotADirectoryError):
            if self.held is None:
                raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(self.root)) from None
            raise Refused(self.root, "the folder was moved or deleted while it was in use") from None
        if self.held is not None and not os.path.samestat(os.fstat(number), self.held):
            os.close(number)
            raise Refused(self.root, "the folder was moved or deleted while it was in use, and replaced by another one")
        return number

    def _descriptor(self, name: str, flags: int) -> int:
        with self._above(name) as (folder, last):
            return self._open(last, flags | ALONE, folder, self.path(name))

    def _open(self, name: str, flags: int, folder: int, path: epath.Path) -> int:
        try:
            number = os.open(name, flags, 0o666, dir_fd=folder)
        except OSError as error:
            raise _reason(error, name, folder, path, "a file") from error
        if not stat.S_ISREG(mode := os.fstat(number).st_mode):
            os.close(number)
            raise Refused(path, f"a {_type(mode)}, not a file: not opened")
        return number


def encoded(content: str | bytes) -> bytes:
    """Text as UTF-8, with lone surrogates escaped."""
    return content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content


def parts_of(name: str) -> tuple[str, ...]:
    parts = PurePosixPath(name).parts
    if ".." in parts or parts[:1] == ("/",):
        raise ValueError(f"{name!r} is not a name within a folder")
    return parts


def _type(mode: int) -> str:
    types = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
    return types.get(stat.S_IFMT(mode), "device")


def _reason(error: OSError, name: str, folder: int, path: epath.Path, wanted: str) -> OSError:
    """The error to raise for something that could not be opened, naming its type if that is the reason."""
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EISDIR, errno.EMLINK):
        with contextlib.suppress(OSError):
            found = _type(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
            found = {"link": "symbolic link"}.get(found, found)
            return Refused(path, f"a {found}, not {wanted}: not opened")
    return type(error)(error.errno, error.strerror, str(path))
