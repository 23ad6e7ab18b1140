"""A folder on a disk that may have come from somebody else, and what is read and written below it.

Nothing below a `Folder` leads out of it: each part of a name is opened relative to the part before, without following
symbolic links, and only regular files are opened, never a pipe or a device. Reads have a limit of size. New content is
written under a name that cannot be guessed, created exclusively, and then takes the place of the old. Symbolic links in
the path of the folder itself are the user's own, and are followed.
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

from tinygen.workdir.reading import LINES, Refused, lines_of, too_large, up_to

SEARCH = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
ALONE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe opened so does not wait for its other end
UNFINISHED = re.compile(r"\..+\.[0-9a-f]{16}\.new")


class Entry(NamedTuple):
    """What a folder lists.

    type: "file" | "folder" | "link" | "pipe" | "socket" | "device"
    size, stored: bytes, and how many of them take room on the disk
    modified: seconds since 1970
    """

    name: str
    type: str
    size: int
    stored: int
    modified: float


class Folder:
    """A folder on a disk. Names are relative to it, with `/` between their parts.

    root: its path, or that of a folder above it, as the user gave it
    inside: the parts of the way from there that must not be links
    held: refuse everything once another folder, or none, stands at `root`: ours was moved or deleted

    Methods raise `Refused` for what is no plain file or folder, or too large, and OSError as the operating system does.
    """

    append_interval = 0.0  # seconds to wait between two calls of `append` where much is written

    def __init__(self, root: epath.PathLike, *inside: str, held: bool = False):
        self.root = epath.Path(root)
        self.inside = inside
        self.identity = _identity(os.stat(self.root)) if held else None

    def __truediv__(self, name: str) -> "Folder":
        """A folder within this one."""
        folder = type(self)(self.root, *self.inside, *parts_of(name))
        folder.identity = self.identity
        return folder

    def __str__(self) -> str:
        return str(self.path())

    def path(self, name: str = "") -> epath.Path:
        """The path of something in the folder, for messages and for libraries that open it by themselves."""
        return self.root.joinpath(*self.inside, *parts_of(name))

    def type_of(self, name: str = "") -> str | None:
        """The type that an `Entry` has; None where there is none."""
        *above, last = [*self.inside, *parts_of(name)] or ["."]
        try:
            with self._opened(above) as folder:
                return _type(os.stat(last, dir_fd=folder, follow_symlinks=last == ".").st_mode)
        except FileNotFoundError:
            return None

    def is_file(self, name: str) -> bool:
        return self.type_of(name) == "file"

    def is_folder(self, name: str = "") -> bool:
        return self.type_of(name) == "folder"

    def entries(self, name: str = "") -> list[Entry]:
        """What a folder lists, by name; nothing where there is none."""
        try:
            with self._opened([*self.inside, *parts_of(name)]) as folder, os.scandir(folder) as listed:
                found = [(each.name, each.stat(follow_symlinks=False)) for each in listed]
        except FileNotFoundError:
            return []
        return sorted(Entry(each, _type(status.st_mode), status.st_size, status.st_blocks * 512, status.st_mtime) for each, status in found)

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """A regular file, to be read."""
        with os.fdopen(self._descriptor(name, os.O_RDONLY), "rb") as file:
            yield file

    @contextlib.contextmanager
    def update(self, name: str) -> Iterator[io.FileIO]:
        """A regular file, made if missing, to be read, truncated and written to without a buffer. Writes go to its end."""
        with os.fdopen(self._descriptor(name, os.O_RDWR | os.O_CREAT | os.O_APPEND), "rb+", buffering=0) as file:
            yield file

    def read(self, name: str, most: int) -> bytes | None:
        """The content of a file of at most `most` bytes; None where there is none."""
        try:
            with self.open(name) as file:
                if os.fstat(file.fileno()).st_size > most:
                    raise Refused(self.path(name), too_large(most))
                return up_to(file, most, self.path(name))
        except FileNotFoundError:
            return None

    def beginning(self, name: str, most: int) -> bytes:
        """The first `most` bytes of a file, or all where it has fewer."""
        with self.open(name) as file:
            return file.read(most)

    def lines(self, name: str, last: int | None = None) -> Iterator[bytes | None]:
        """The lines of a file with their ends, one at a time; None for one of more than LINE bytes. Nothing where there is no file.

        last: only the whole lines among so many bytes at the end
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
        """Writes a file whole or not at all: a process killed here, or a full disk, leaves the old one."""
        pieces = [content.encode("utf-8", "backslashreplace")] if isinstance(content, str) else content
        pieces = [pieces] if isinstance(pieces, bytes) else pieces
        *above, last = [*self.inside, *parts_of(name)]
        if (found := self.type_of(name)) not in (None, "file", "link"):
            raise Refused(self.path(name), f"a {found}, where a file should be: it is not replaced")
        with self._opened(above) as folder:
            fresh = f".{last}.{secrets.token_hex(8)}.new"
            number = self._open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | ALONE, folder, self.path(name))
            try:
                with os.fdopen(number, "wb") as file:
                    if found == "file":  # one that its owner has made private stays so
                        os.fchmod(number, stat.S_IMODE(os.stat(last, dir_fd=folder, follow_symlinks=False).st_mode))
                    file.writelines(pieces)
                os.replace(fresh, last, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(fresh, dir_fd=folder)
                raise

    def append(self, name: str, content: str | bytes) -> None:
        """Adds whole lines, or bytes, to a file: all of them or none. Lines begin after one that a killed process left torn."""
        lines = isinstance(content, str)
        content = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
        with self.update(name) as file:
            end = file.seek(0, os.SEEK_END)
            if lines and end:
                file.seek(-1, os.SEEK_END)
                content = content if file.read(1) == b"\n" else b"\n" + content
            left = memoryview(content)
            try:
                while left:
                    left = left[file.write(left) :]
            except OSError:
                file.truncate(end)  # part of it may have fitted
                raise

    def make(self, name: str = "") -> None:
        """Makes a folder, unless it is there; the ones above it too, but not the root."""
        parts = [*self.inside, *parts_of(name)]
        for depth, part in enumerate(parts):
            with self._opened(parts[:depth]) as folder, contextlib.suppress(FileExistsError):
                os.mkdir(part, dir_fd=folder)
        with self._opened(parts):
            pass

    def remove(self, name: str) -> None:
        """Deletes a file, a link itself, or a folder with all that is in it. Nothing where there is none."""
        *above, last = [*self.inside, *parts_of(name)]
        with contextlib.suppress(FileNotFoundError), self._opened(above) as folder:
            if stat.S_ISDIR(os.stat(last, dir_fd=folder, follow_symlinks=False).st_mode):
                shutil.rmtree(last, dir_fd=folder)
            else:
                os.unlink(last, dir_fd=folder)

    def move(self, name: str, to: str) -> None:
        """Gives something in the folder another name in it, which must be free."""
        (*above, last), (*beyond, target) = parts_of(name), parts_of(to)
        if self.type_of(to) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self.path(to)))
        with self._opened([*self.inside, *above]) as old, self._opened([*self.inside, *beyond]) as new:
            os.rename(last, target, src_dir_fd=old, dst_dir_fd=new)

    def sweep(self, name: str = "") -> None:
        """Deletes what processes that were killed have left unfinished of files in a folder."""
        for entry in self.entries(name):
            if entry.type == "file" and UNFINISHED.fullmatch(entry.name):
                self.remove(f"{name}/{entry.name}")

    def check(self) -> None:
        """Raises `Refused` or OSError where this is no folder, or no longer the one that it was."""
        with self._opened(self.inside):
            pass

    @contextlib.contextmanager
    def _opened(self, parts: Iterable[str]) -> Iterator[int]:
        """The descriptor of a folder below the root."""
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

    def _root(self) -> int:
        try:
            number = os.open(self.root, SEARCH)
        except (FileNotFoundError, NotADirectoryError):
            if self.identity is None:
                raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(self.root)) from None
            raise Refused(self.root, "the folder was moved or deleted while it was in use") from None
        if self.identity is not None and _identity(os.fstat(number)) != self.identity:
            os.close(number)
            raise Refused(self.root, "the folder was moved or deleted while it was in use, and another one is there now")
        return number

    def _descriptor(self, name: str, flags: int) -> int:
        *above, last = [*self.inside, *parts_of(name)]
        with self._opened(above) as folder:
            return self._open(last, flags | ALONE, folder, self.path(name))

    def _open(self, name: str, flags: int, folder: int, path: epath.Path) -> int:
        try:
            number = os.open(name, flags, 0o666, dir_fd=folder)
        except OSError as error:
            raise _reason(error, name, folder, path, "a file") from error
        if not stat.S_ISREG(mode := os.fstat(number).st_mode):
            os.close(number)
            raise Refused(path, f"a {_type(mode)}, where a file should be: it is not opened")
        return number


def parts_of(name: str) -> tuple[str, ...]:
    parts = PurePosixPath(name).parts
    if ".." in parts or parts[:1] == ("/",):
        raise ValueError(f"{name!r} is no name within a folder")
    return parts


def _type(mode: int) -> str:
    types = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
    return types.get(stat.S_IFMT(mode), "device")


def _reason(error: OSError, name: str, folder: int, path: epath.Path, wanted: str) -> OSError:
    """What to raise where something could not be opened: what it is, where that is the reason."""
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EISDIR, errno.EMLINK):
        with contextlib.suppress(OSError):
            found = _type(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
            found = {"link": "symbolic link"}.get(found, found)
            return Refused(path, f"a {found}, where {wanted} should be: it is not opened")
    return type(error)(error.errno, error.strerror, str(path))


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
