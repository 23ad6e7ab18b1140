"""What surrounds a run: the signals that end it politely, the lock that keeps a workdir to one process, the C heap's manners."""

import contextlib
import ctypes
import fcntl
import logging as std_logging
import os
import signal
import sys
from collections.abc import Iterator

from absl import logging
from etils import epath
from rich.console import Console

from tinygen.errors import UserError


class StopSignal:
    """Set by the first SIGTERM or Ctrl-C, here or at another process of the run; the loop saves and leaves.

    A Ctrl-C that follows a signal to this process leaves at once.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self.received = False  # by this process

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
    it also keeps to one heap. Elsewhere than on glibc it does nothing.
    """
    trim_threshold, top_pad, mmap_max, arena_max = -1, -2, -4, -8  # names of mallopt(3), from malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in ((trim_threshold, -1), (top_pad, 2**26), (mmap_max, 0), (arena_max, 1)):
            mallopt(option, value)


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
