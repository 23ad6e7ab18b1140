"""What surrounds a run: the signals that end it politely, the lock that keeps a workdir to one process, the C heap's manners, and
the folder where compiled programs stay for the next process."""

import contextlib
import ctypes
import errno
import fcntl
import functools
import glob
import logging as std_logging
import os
import re
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from absl import logging
from etils import epath
from rich.console import Console

from tinygen.errors import UserError

COMPILED = 2 * 2**30  # bytes of compiled programs that are kept, at most; a program has 0.1 to 10 MB
ROOM = 2**26  # bytes that must be free to keep more


class StopSignal:
    """Set by the first SIGTERM or Ctrl-C, here or at another process of the run; the loop saves and leaves.

    A Ctrl-C that follows a signal to this process leaves at once.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self.received = False  # by this process
        self.early = False  # whether the run left before all was done

    def __bool__(self) -> bool:
        return self.number is not None

    @property
    def name(self) -> str:
        return signal.Signals(self.number).name if self.number is not None else ""

    @property
    def status(self) -> int:
        """The exit status of a process that this signal ended, so that a scheduler does not take the run for finished."""
        return 128 + self.number if self.number is not None else 0

    def __int__(self) -> int:
        """The signal's number, or 0: the form in which processes tell each other."""
        return self.number or 0

    def _handle(self, number: int, frame: object) -> None:
        if self.received and number == signal.SIGINT:
            os._exit(128 + number)
        self.number, self.received = number, True
        # Not print: the signal may have come in the middle of one.
        os.write(sys.stderr.fileno(), f"\n{signal.Signals(number).name}: saving after this step; Ctrl-C again leaves at once.\n".encode())


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopSignal]:
    """Turns SIGTERM and SIGINT into a flag while inside."""
    stop = StopSignal()
    before = {number: signal.signal(number, stop._handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def keep_memory() -> None:
    """Tells glibc to keep freed memory for the next step instead of giving it back to the kernel.

    XLA's CPU backend allocates and frees hundreds of megabytes a step. By default each of those pages is faulted in and
    zeroed again every step: a quarter of the time of a small model. To be called before the process starts threads, since
    it also keeps them to two heaps. By default every thread has its own, and what one has freed another cannot take; in a single
    one XLA looks for room among all the small things that Python leaves. Elsewhere than on glibc it does nothing.
    """
    trim_threshold, top_pad, mmap_max, arena_max = -1, -2, -4, -8  # names of mallopt(3), from malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in ((trim_threshold, -1), (top_pad, 2**26), (mmap_max, 0), (arena_max, 2)):
            mallopt(option, value)


def compute_in_turn() -> None:
    """Has JAX's CPU backend end one program before it begins the next. To be called before JAX knows its devices.

    By default it dispatches the next step, and sets its memory aside, while this one still runs; steps of DiT-S/2 in a row then take a
    quarter longer. Nothing is lost, for the host's own work would take its time from the same cores.
    """
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)


def keep_compiled() -> None:
    """Has JAX keep compiled programs in the user's cache folder, for the next process. To be called before the first is compiled.

    JAX's own settings win: JAX_COMPILATION_CACHE_DIR names another folder, JAX_ENABLE_COMPILATION_CACHE=false turns this off.
    Where the folder cannot be used, one line on stderr says so, and every process compiles for itself.
    """
    import jax

    settings: Any = jax.config
    if settings.jax_compilation_cache_dir is not None or not settings.jax_enable_compilation_cache:
        return
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tinygen" / "compilation"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # it holds code that will be run
        prune(folder, COMPILED)
        tempfile.TemporaryFile(dir=folder).close()
        if shutil.disk_usage(folder).free < ROOM:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home
        print(f"tinygen: compiled programs are not kept for the next start: {error}", file=sys.stderr)
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # a run compiles few programs, and no small ones
    warnings.filterwarnings("ignore", "Error writing persistent compilation cache")  # a folder that has filled up since: once a program
    warnings.showwarning = functools.partial(forget_torn, folder, warnings.showwarning)


def forget_torn(folder: Path, show: Callable[..., None], message: Warning | str, *where: Any, **more: Any) -> None:
    """Shows a warning, unless it is JAX's of a program that cannot be read, since a process or a disk ended while it was written.

    Such a file JAX would never write anew: it is deleted, and written again after this compilation.
    """
    found = re.match(r"Error reading persistent compilation cache entry for '([^'/]+)'", str(message))
    if found is None:
        show(message, *where, **more)
        return
    for path in folder.glob(f"{glob.escape(found[1])}-*"):
        path.unlink(missing_ok=True)


def prune(folder: Path, limit: int) -> None:
    """Deletes files of a folder until at most `limit` bytes are left: those first that were read or written longest ago.

    JAX has a limit of its own, but it needs another package and locks the folder at every look into it.
    """
    found = []
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # another process prunes as well
            stat = path.stat()
            found.append((max(stat.st_atime, stat.st_mtime), stat.st_size, path))
    excess = sum(size for _, size, _ in found) - limit
    for _, size, path in sorted(found):
        if excess <= 0:
            break
        with contextlib.suppress(OSError):
            path.unlink()
            excess -= size


@contextlib.contextmanager
def own(workdir: epath.Path) -> Iterator[None]:
    """Makes the workdir and keeps other runs out of it while inside. Raises UserError where either fails.

    The lock is the kernel's: it goes with the process, however that ends. Object stores (gs://) have none.
    """
    lock = None
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        if "://" not in str(workdir):
            lock = (workdir / ".lock").open("w")
    except Exception as error:  # stores raise kinds of their own: no bucket, no permission, no network
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:160]
        raise UserError(f"--workdir={workdir} cannot be written: {reason}. Give a folder that can be.") from error
    if lock is None:
        yield
        return
    with lock as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"--workdir={workdir}: another process is training there") from error
        yield


def listen() -> None:
    """Sends our log lines and CLU's to stderr; beside a progress bar only what the bar does not say. Other packages' only as warnings."""
    from tinygen.processes import leads  # brings JAX

    logging.use_absl_handler()
    handler = logging.get_absl_handler()
    handler.setFormatter(std_logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    handler.filters.clear()
    ours = ("tinygen",) if Console(stderr=True).is_terminal else ("tinygen", "clu")
    handler.addFilter(lambda line: line.levelno >= std_logging.WARNING or any(f"/{name}/" in line.pathname for name in ours))
    logging.set_verbosity(logging.INFO if leads() else logging.WARNING)
