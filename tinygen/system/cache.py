"""Files that are kept for the next start: one process at a time makes one, and a folder of them stays below a limit in bytes."""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def alone(lock: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[bool]:
    """Admits one process at a time. The lock is the kernel's, so it ends with its process; its file is deleted when the block ends.

    lock: the file to lock; its folder is made if need be
    waiting: called once, where another process is inside and this one has to wait
    Yields False where the file system has no locks: then several processes may be inside.
    Raises OSError where the file cannot be made.
    """
    with contextlib.ExitStack() as stack:
        while True:
            lock.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(lock.open("ab"))
            locked = _locked(file, waiting)
            if not locked or _names(lock, file):
                break
            stack.close()  # its owner has deleted it meanwhile: whoever comes next locks another file
        stack.callback(lock.unlink, missing_ok=True)
        yield locked


def hold(file: IO[bytes]) -> None:
    """Keeps `prune` in other processes from deleting an open file until its last descriptor is closed, memory maps included."""
    with contextlib.suppress(OSError):  # a file system without locks; or it is being deleted, and stays readable all the same
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)


def prune(folder: Path, limit: int) -> tuple[int, int]:
    """Deletes files of a folder, the least recently used first, until at most `limit` bytes are left or the others are held.

    Returns (number, bytes) of the files that were deleted.
    """
    found = []
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # another process prunes as well
            stat = path.stat()
            found.append((max(stat.st_atime, stat.st_mtime), stat.st_size, path))
    excess = sum(size for _, size, _ in found) - limit
    deleted = []
    for _, size, path in sorted(found):
        if excess <= 0:
            break
        if size and _deleted(path):
            excess -= size
            deleted.append(size)
    return len(deleted), sum(deleted)


def _locked(file: IO[bytes], waiting: Callable[[], None]) -> bool:
    """Takes the lock, however long it takes. False where the file system has none."""
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:
        return False
    return True


def _names(path: Path, file: IO[bytes]) -> bool:
    """Whether a path still leads to an open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _deleted(path: Path) -> bool:
    """Deletes a file that no process holds. Where there are no locks it may be any: whoever has it open can still read it."""
    try:
        with path.open("r+b") as file:  # an exclusive lock needs a file that may be written, on network file systems
            if free := _free(file):
                path.unlink()
            return free
    except OSError:
        return False


def _free(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True
