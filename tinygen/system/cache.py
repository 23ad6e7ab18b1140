"""Cached files: a lock so that one process at a time creates a file, and pruning to keep a folder below a size limit.

Readers hold a file by a shared lock of the kernel's, which filelock does not offer: its read-write lock is an SQLite database.
"""

import contextlib
import errno
import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from filelock import FileLock, Timeout, lock_descriptor

UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)  # from network file systems without locks


@contextlib.contextmanager
def alone(lock: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[bool]:
    """Admits one process at a time. The kernel releases the lock when its process ends; the file is deleted when the block ends.

    lock: the file to lock; its folder is created if needed
    waiting: called once if another process holds the lock
    Yields False if the file system does not support locks: then several processes may be inside.
    Raises OSError if the file cannot be created.
    """
    file = FileLock(lock, fallback_to_soft=False)
    try:
        owned = file.acquire(blocking=False)
    except Timeout:
        waiting()
        owned = file.acquire()
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        owned = None
    with owned or contextlib.nullcontext():
        try:
            yield owned is not None
        finally:
            lock.unlink(missing_ok=True)  # whoever waits for it notices, and creates another


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
        if not size:
            continue
        with contextlib.suppress(OSError), path.open("r+b") as file:  # network file systems lock only writable files exclusively
            if _free(file):
                path.unlink()
                excess -= size
                deleted.append(size)
    return len(deleted), sum(deleted)


def _free(file: IO[bytes]) -> bool:
    """Whether no process holds a file. Without locks, any file may be deleted: an open one stays readable."""
    try:
        return lock_descriptor(file.fileno(), blocking=False)
    except OSError:
        return True
