"""The process around a run: graceful stop on signals, JAX settings, and logging."""

import contextlib
import logging as std_logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator

from absl import logging

from tinygen.errors import printable
from tinygen.system.faults import PACKAGE


class StopSignal:
    """Set by the first SIGTERM or Ctrl-C, in this or another process of the run; the loop then saves and stops.

    A Ctrl-C after a signal to this process exits at once, and so does any signal while the run is `idle`.
    """

    def __init__(self) -> None:
        self.number = 0  # of the signal; 0: none
        self.received = False  # by this process
        self.early = False  # whether the run stopped before it was finished
        self.idle = False  # whether there is nothing to save

    def __bool__(self) -> bool:
        return self.number > 0

    @property
    def name(self) -> str:
        return signal.Signals(self.number).name

    @property
    def status(self) -> int:
        """The exit status after this signal, so that a scheduler does not take the run for finished."""
        return 128 + self.number

    def _handle(self, number: int, frame: object) -> None:
        self.leave_if_idle(number)
        if self.received and number == signal.SIGINT:
            os._exit(128 + number)
        self.number, self.received = number, True
        # Not print: the signal may have interrupted one.
        os.write(sys.stderr.fileno(), f"\n{signal.Signals(number).name}: saving after this step; Ctrl-C again quits at once.\n".encode())

    def leave_if_idle(self, number: int) -> None:
        if self.idle:
            os.write(sys.stderr.fileno(), f"\n{signal.Signals(number).name}: nothing new to save; stopping.\n".encode())
            os._exit(128 + number)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopSignal]:
    """Turns SIGTERM and SIGINT into a flag inside the block.

    A thread receives them too: Python runs signal handlers between two of its instructions, so not while XLA compiles.
    """
    stop = StopSignal()
    receiver, sender = socket.socketpair()
    sender.setblocking(False)

    def listen_for_signals() -> None:
        while number := receiver.recv(1):
            stop.leave_if_idle(number[0])

    thread = threading.Thread(target=listen_for_signals, name="signals", daemon=True)
    thread.start()
    before = {number: signal.signal(number, stop._handle) for number in (signal.SIGTERM, signal.SIGINT)}
    previous = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    try:
        yield stop
    finally:
        signal.set_wakeup_fd(previous)
        for number, handler in before.items():
            signal.signal(number, handler)
        sender.close()
        thread.join()
        receiver.close()


def disable_async_dispatch() -> None:
    """Makes JAX's CPU backend run one program at a time. Call this before JAX initializes its devices.

    By default it dispatches the next step, and allocates its memory, while the current one still runs, which makes consecutive steps of
    DiT-S/2 a quarter slower. Nothing is lost, since the host's work would share the same cores.
    """
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)


def use_deterministic_ops() -> None:
    """Restricts XLA to deterministic operations on a GPU. Call this before JAX initializes its devices.

    By default it autotunes operations, and sums with atomic operations, whose order varies.
    """
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_deterministic_ops=true".lstrip()


class Printable(std_logging.Formatter):
    """Log lines that are safe to print, whatever names and captions they quote."""

    def format(self, record: std_logging.LogRecord) -> str:
        return printable(super().format(record))


def is_shown(line: std_logging.LogRecord) -> bool:
    """Whether a log line is tinygen's, or a warning of another package."""
    return line.levelno >= std_logging.WARNING or line.pathname.startswith(PACKAGE)


def listen(*, quiet: bool) -> None:
    """Sends tinygen's log lines to stderr, and other packages' warnings. quiet: only warnings, as of processes that do not lead"""
    logging.use_absl_handler()
    handler = logging.get_absl_handler()
    handler.setFormatter(Printable("%(asctime)s %(message)s", "%H:%M:%S"))
    handler.filters.clear()
    # Without Orbax's tracebacks of errors that it raises too: `checkpoints.saver` reports those in one line.
    handler.addFilter(lambda line: not ("/orbax/" in line.pathname and (line.exc_info or line.levelno >= std_logging.ERROR)))
    handler.addFilter(is_shown)
    logging.set_verbosity(logging.WARNING if quiet else logging.INFO)
