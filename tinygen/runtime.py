"""What surrounds a run: the signals that end it politely, and the lock that keeps a workdir to one process."""

import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Iterator

from etils import epath

from tinygen.errors import UserError


class StopSignal:
    """Set by the first SIGTERM or Ctrl-C; the loop saves and leaves. A second Ctrl-C leaves at once."""

    def __init__(self) -> None:
        self.number: int | None = None

    def __bool__(self) -> bool:
        return self.number is not None

    @property
    def name(self) -> str:
        return signal.Signals(self.number).name if self.number is not None else ""

    @property
    def status(self) -> int:
        """The exit status of a process that this signal ended, so that a scheduler does not take the run for finished."""
        return 128 + self.number if self.number is not None else 0

    def _handle(self, number: int, frame: object) -> None:
        if self.number is not None and number == signal.SIGINT:
            os._exit(128 + number)
        self.number = number
        print(f"\n{signal.Signals(number).name}: saving after this step; Ctrl-C again leaves at once.", file=sys.stderr, flush=True)


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


@contextlib.contextmanager
def own(workdir: epath.Path) -> Iterator[None]:
    """Makes the workdir and keeps other processes out of it while inside. Raises UserError where either fails.

    The lock is the kernel's: it goes with the process, however that ends. Object stores (gs://) have none.
    """
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        if "://" in str(workdir):
            yield
            return
        file = (workdir / ".lock").open("w")
    except OSError as error:
        raise UserError(f"--workdir={workdir} cannot be written: {error.strerror}. Give a folder that can be.") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"--workdir={workdir}: another process is training there") from error
        yield
