"""Cached files: a lock so that one process at a time creates a file, and pruning to keep a folder below a size limit."""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def alone(lock: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[bool]:
    """Admits one process at a time. The kernel releases the lock when its process ends; the file is deleted when the block ends.

    lock: the file to lock; its folder is created if needed
    waiting: called once if another process holds the lock
    Yields False if the file system does not support locks: then several processes may be inside.
    Raises OSError if the file cannot be created.
    """
    with contextlib.ExitStack() as stack:
        while True:
            lock.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(lock.open("ab"))
            locked = _locked(file, waiting)
            if not locked or _names(lock, file):
                break
            stack.close()  # its owner has deleted it in the meantime: the next process would lock another file
        stack.callback(lock.unlink, missing_ok=True)
        yield locked


def hold(file: IO[bytes]) -> None:
    """Protects an open file from `prune` in other processes until its last descriptor or memory map is closed."""
    with contextlib.suppress(OSError):  # no locks on this file system, or the file is being deleted and stays readable anyway
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)


def prune(folder: Path, limit: int) -> tuple[int, int]:
    """Deletes the least recently used files of a folder until at most `limit` bytes are left, skipping held files.

    Returns (number, bytes) of the deleted files.
    """
    found = []
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # another process is pruning too
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
    """Waits for the lock and takes it. False if the file system does not support locks."""
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
    """Whether a path still refers to an open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _deleted(path: Path) -> bool:
    """Deletes a file unless a process holds it. Without locks any file may be deleted: an open one stays readable."""
    try:
        with path.open("r+b") as file:  # on network file systems an exclusive lock needs a writable file
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
