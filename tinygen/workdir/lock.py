"""The lock that limits a workdir to one run at a time, and the file in it that names the owner.

The heartbeat is ours, since filelock's leases measure silence from the moment a new process looks: every start would wait for minutes.
"""

import contextlib
import dataclasses
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
from filelock import lock_descriptor

from tinygen.errors import UserError
from tinygen.system.cache import UNSUPPORTED
from tinygen.workdir.files import folder
from tinygen.workdir.reading import Refused

FILE = ".lock"
SIZE = 4096  # bytes; a longer file is not an owner file
BEAT = 60.0  # seconds between heartbeats of an owner without a lock
SILENCE = 300.0  # seconds without a heartbeat after which an owner on another machine counts as dead
SLACK = 2.0  # seconds; `since` is in whole seconds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Owner:
    """The owner of a workdir. since: when it took the lock, in ISO 8601 with UTC offset."""

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
    """Creates the workdir and locks it for the duration of the block. Raises UserError if either fails.

    The kernel releases the lock when the process ends, however it ends. The file names the owner and is emptied on a normal exit, so
    an owner without a lock means that the run was killed. On file systems without locks, the owner's heartbeat takes its place. Object
    stores (gs://) have neither.
    """
    with contextlib.ExitStack() as stack:
        try:
            workdir.mkdir(parents=True, exist_ok=True)
            if "://" not in str(workdir):
                file = stack.enter_context(folder(workdir).update(FILE))  # not emptied, since it may belong to another process
                stack.enter_context(_held(workdir, file))
        except (Refused, UserError):
            raise
        except Exception as error:  # stores raise their own types: no bucket, no permission, no network
            reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:160]
            raise UserError(f"--workdir={workdir} cannot be written: {reason}. Choose a writable folder.") from error
        yield


@contextlib.contextmanager
def _held(workdir: epath.Path, file: IO[bytes]) -> Iterator[None]:
    """Locks the file, and names this process in it for the duration of the block."""
    supported = True
    try:
        free = lock_descriptor(file.fileno(), blocking=False)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        supported = free = False
    before = read(file)
    if not supported:
        free = before is None or not _alive(before, file)
    if not free:
        who = f": {before}" if before else ""
        cure = "" if supported else f".\nThis file system does not support locks. If that run has ended, delete {workdir / FILE}."
        raise UserError(f"--workdir={workdir}: another process is training there{who}{cure}")
    if before is not None:
        logging.info("The last run here (%s) did not exit normally: it was killed, or its machine stopped", before)
    since = datetime.now(UTC).astimezone().isoformat(timespec="seconds")
    owner = Owner(pid=os.getpid(), host=socket.gethostname(), since=since, command=shlex.join(sys.argv)[:1000])
    _write(file, json.dumps(dataclasses.asdict(owner)).encode())
    try:
        with contextlib.nullcontext() if supported else _beating(file):
            yield
    finally:
        with contextlib.suppress(OSError):  # the disk can no longer be written
            _write(file, b"")


def read(file: IO[bytes]) -> Owner | None:
    """The owner named in a lock file; None if it is empty or damaged."""
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


def _alive(owner: Owner, file: IO[bytes]) -> bool:
    """Whether the owner still runs: here, under its PID and started no later than it took the lock; elsewhere, by its heartbeat."""
    if owner.host != socket.gethostname():
        return time.time() - os.fstat(file.fileno()).st_mtime < SILENCE
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    began = _began(owner.pid)
    return began is None or began <= owner.taken.timestamp() + SLACK


def _began(pid: int) -> float | None:
    """The start of a process in seconds since 1970; None on systems other than Linux."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])  # since the machine was booted
    except (OSError, ValueError, IndexError):
        return None
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def _beating(file: IO[bytes]) -> Iterator[None]:
    """Touches the file periodically inside the block: a heartbeat for other machines."""
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
