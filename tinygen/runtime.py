"""What surrounds a run: the signals that end it politely, the C heap's manners, and where log lines go."""

import contextlib
import ctypes
import logging as std_logging
import os
import signal
import sys
from collections.abc import Iterator

from absl import logging
from rich.console import Console


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
