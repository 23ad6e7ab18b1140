"""What surrounds a run: the signals that end it politely, how JAX computes, and where log lines go."""

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

# With the separator: in a clone that is called tinygen, .venv and its packages lie below a folder of that name.
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class StopSignal:
    """Set by the first SIGTERM or Ctrl-C, here or at another process of the run; the loop saves and leaves.

    A Ctrl-C that follows a signal to this process leaves at once, and so does any signal while the run is `idle`.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self.received = False  # by this process
        self.early = False  # whether the run left before all was done
        self.idle = False  # whether there is nothing to save yet

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
        self.leave_if_idle(number)
        if self.received and number == signal.SIGINT:
            os._exit(128 + number)
        self.number, self.received = number, True
        # Not print: the signal may have come in the middle of one.
        os.write(sys.stderr.fileno(), f"\n{signal.Signals(number).name}: saving after this step; Ctrl-C again leaves at once.\n".encode())

    def leave_if_idle(self, number: int) -> None:
        if self.idle:
            os.write(sys.stderr.fileno(), f"\n{signal.Signals(number).name}: nothing new to save; leaving.\n".encode())
            os._exit(128 + number)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopSignal]:
    """Turns SIGTERM and SIGINT into a flag while inside.

    A thread hears of them too: Python handles signals between two of its own instructions, and none of those is taken while XLA compiles.
    """
    stop = StopSignal()
    heard, told = socket.socketpair()
    told.setblocking(False)

    def listen_for_signals() -> None:
        while number := heard.recv(1):
            stop.leave_if_idle(number[0])

    thread = threading.Thread(target=listen_for_signals, name="signals", daemon=True)
    thread.start()
    before = {number: signal.signal(number, stop._handle) for number in (signal.SIGTERM, signal.SIGINT)}
    woken_before = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    try:
        yield stop
    finally:
        signal.set_wakeup_fd(woken_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        told.close()
        thread.join()
        heard.close()


def compute_in_turn() -> None:
    """Has JAX's CPU backend end one program before it begins the next. To be called before JAX knows its devices.

    By default it dispatches the next step, and sets its memory aside, while this one still runs; steps of DiT-S/2 in a row then take a
    quarter longer. Nothing is lost, for the host's own work would take its time from the same cores.
    """
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)


def compute_repeatably() -> None:
    """Has XLA take, on a GPU, only operations whose results are the same every time. To be called before JAX knows its devices.

    By default it times several and takes the fastest, and sums with atomic operations, whose order is never the same twice.
    """
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_deterministic_ops=true".lstrip()


class Printable(std_logging.Formatter):
    """Lines for a terminal, whatever names and captions they quote."""

    def format(self, record: std_logging.LogRecord) -> str:
        return printable(super().format(record))


def is_shown(line: std_logging.LogRecord) -> bool:
    """Whether a log line is ours, or another package's warning."""
    return line.levelno >= std_logging.WARNING or line.pathname.startswith(PACKAGE)


def listen(least: int = logging.INFO) -> None:
    """Sends our log lines from the level `least` on to stderr, and other packages' warnings."""
    logging.use_absl_handler()
    handler = logging.get_absl_handler()
    handler.setFormatter(Printable("%(asctime)s %(message)s", "%H:%M:%S"))
    handler.filters.clear()
    # Orbax's tracebacks of what it raises as well: `saves` tells of that in a line.
    handler.addFilter(lambda line: not ("/orbax/" in line.pathname and (line.exc_info or line.levelno >= std_logging.ERROR)))
    handler.addFilter(is_shown)
    logging.set_verbosity(least)
