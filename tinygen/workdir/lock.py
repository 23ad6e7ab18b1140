"""The lock that keeps a workdir to one run, and the file in it that says whose it is."""

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import shlex
import socket
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from absl import logging
from etils import epath

from tinygen.errors import UserError
from tinygen.workdir.files import Refused, folder

FILE = ".lock"
SIZE = 4096  # bytes; a longer file is none of ours
UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)  # what network file systems say that know no locks
BEAT = 60.0  # seconds between an owner's signs of life where there is no lock
SILENCE = 300.0  # seconds without one, after which an owner on another machine counts as gone
SLACK = 2.0  # seconds; the kernel tells the hour it began at in whole ones, and the owner its own


@dataclasses.dataclass(frozen=True, kw_only=True)
class Owner:
    """Who holds a workdir. since: when it took it, in ISO 8601 with the offset to UTC."""

    pid: int
    host: str
    since: str
    command: str

    @property
    def taken(self) -> datetime:
        return datetime.fromisoformat(self.since).astimezone()

    def __str__(self) -> str:
        today = self.taken.date() == datetime.now().astimezone().date()
        return f"pid {self.pid} on {self.host} since {self.taken.strftime('%H:%M' if today else '%Y-%m-%d %H:%M')}"


@contextlib.contextmanager
def own(workdir: epath.Path) -> Iterator[None]:
    """Makes the workdir and keeps other runs out of it while inside. Raises UserError where either fails.

    The lock is the kernel's: it goes with the process, however that ends. The file names the owner, and is emptied when that one
    leaves; a file that names one whose lock has gone tells of a run that was killed. Where the file system knows no locks, the owner's
    facts stand for one. Object stores (gs://) have neither.
    """
    with contextlib.ExitStack() as stack:
        file = None
        try:
            workdir.mkdir(parents=True, exist_ok=True)
            if "://" not in str(workdir):  # not emptied: it may be another's
                file = stack.enter_context(folder(workdir).update(FILE))
        except Refused:
            raise
        except Exception as error:  # stores raise kinds of their own: no bucket, no permission, no network
            raise _unwritable(workdir, error) from error
        if file is not None:
            stack.enter_context(_held(workdir, file))
        yield


@contextlib.contextmanager
def _held(workdir: epath.Path, file: IO[bytes]) -> Iterator[None]:
    locked = _locked(workdir, file)
    before = read(file)
    if not locked and before is not None and (cure := _in_use(workdir, before, file)) is not None:
        raise _refusal(workdir, before, cure)
    if before is not None:
        logging.info("The last run here (%s) ended without leaving: it was killed, or its machine stopped", before)
    try:
        _write(file, json.dumps(dataclasses.asdict(_this_process())).encode())
    except OSError as error:  # a full disk
        raise _unwritable(workdir, error) from error
    try:
        with contextlib.nullcontext() if locked else _beating(file):
            yield
    finally:
        with contextlib.suppress(OSError):  # a disk that can no longer be written
            _write(file, b"")


def read(file: IO[bytes]) -> Owner | None:
    """The owner that a lock file names; None where it is empty or damaged."""
    file.seek(0)
    text = file.read(SIZE + 1)
    if len(text) > SIZE:
        return None
    try:
        owner = Owner(**json.loads(text))
        sound = isinstance(owner.pid, int) and 0 < owner.pid < 2**31 and owner.host.isprintable() and owner.taken
        return owner if sound else None
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _locked(workdir: epath.Path, file: IO[bytes]) -> bool:
    """Takes the kernel's lock. False where the file system has none. Raises UserError where another process holds it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise _refusal(workdir, read(file)) from error
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise _unwritable(workdir, error) from error
        return False
    return True


def _in_use(workdir: epath.Path, owner: Owner, file: IO[bytes]) -> str | None:
    """Without a lock: None where the owner has gone, else what to do if it has and this is wrong."""
    cure = f"This file system knows no locks. If that run has ended, delete {workdir / FILE}."
    if owner.host == socket.gethostname():
        return cure if _alive(owner) else None
    return cure if time.time() - os.fstat(file.fileno()).st_mtime < SILENCE else None


def _alive(owner: Owner) -> bool:
    """Whether a process of that number runs here that may be the owner: one that began later is another."""
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    began = _began(owner.pid)
    return began is None or began <= owner.taken.timestamp() + SLACK


def _began(pid: int) -> float | None:
    """When a process began, in seconds since 1970; None where the system does not tell (all but Linux)."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        booted = next(int(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    return booted + ticks / os.sysconf("SC_CLK_TCK")


def _this_process() -> Owner:
    since = datetime.now(UTC).astimezone().isoformat(timespec="seconds")
    return Owner(pid=os.getpid(), host=socket.gethostname(), since=since, command=shlex.join(sys.argv)[:1000])


@contextlib.contextmanager
def _beating(file: IO[bytes]) -> Iterator[None]:
    """Touches the file from time to time while inside, for those who look at it from another machine."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT):
            with contextlib.suppress(OSError):
                os.utime(file.fileno())

    thread = threading.Thread(target=beat, name="lock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _write(file: IO[bytes], text: bytes) -> None:
    file.seek(0)
    file.truncate()
    file.write(text)


def _refusal(workdir: epath.Path, owner: Owner | None, cure: str = "") -> UserError:
    who = f": {owner}" if owner else ""
    return UserError(f"--workdir={workdir}: another process is training there{who}" + (f".\n{cure}" if cure else ""))


def _unwritable(workdir: epath.Path, error: Exception) -> UserError:
    reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:160]
    return UserError(f"--workdir={workdir} cannot be written: {reason}. Give a folder that can be.")
