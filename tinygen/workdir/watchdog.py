"""A watchdog over the training loop: reports when there has been no progress for long, and what the loop is waiting for.

It only reports: a stalled run may continue when a disk or a network comes back. faulthandler's timer would print a stack to stderr,
but neither say what the run is waiting for nor write to the log.
"""

import contextlib
import itertools
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NamedTuple, Self

from tinygen.errors import duration
from tinygen.system.faults import PACKAGE

DEVICE = "the device"
HINTS = {
    "data": "Is the folder's disk or network slow?",
    DEVICE: "Is another job on it?",
    "saving": "Is the disk full or slow?",
    "compiling": "Large models take long.",
    "evaluating": "Is the held-out split large? config.train.eval_num limits it.",
    "drawing samples": "Fewer samples, or fewer network evaluations, take less time.",
    "the other processes": "Has one died?",
}
FRAMES = 3  # frames of tinygen named in a message, innermost first


class Mark(NamedTuple):
    """The state of the loop. Times are of the monotonic clock.

    step: the last finished step; None before the first
    stepped: when it finished
    doing: what the loop is waiting for
    moved: when either changed last
    """

    step: int | None
    stepped: float
    doing: str
    moved: float


class Watchdog:
    """Inside the block, a thread calls `tell(message)` after `minutes` without progress, again after twice as long, and so on, and once
    more when a step finishes after all. `minutes` 0: no thread.

    Enter it and call `step` in the thread that it watches: each call sets a few attributes and takes no lock.
    """

    def __init__(self, minutes: float, tell: Callable[[str], None]) -> None:
        self.limit = 60 * minutes
        self._tell = tell
        self._woken = threading.Event()  # a step finished after a stall, or the run ended
        self._ended = False
        self._stalled: Mark | None = None  # the state of the loop when it stalled
        self._resumed = ""
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        now = time.monotonic()
        self._mark = Mark(None, now, DEVICE, now)
        self._watched = threading.get_ident()
        if self.limit:
            self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended = True
        self._woken.set()
        if self._thread is not None:
            self._thread.join(timeout=5)  # seconds; `tell` may hang on the disk that the run hangs on

    def step(self, number: int) -> None:
        """Records that step `number` has finished."""
        now = time.monotonic()
        self._mark = Mark(number, now, self._mark.doing, now)
        if (stalled := self._stalled) is not None:
            self._resumed = f"step {number} after a stall of {duration(now - stalled.moved)}"
            self._stalled = None
            self._woken.set()

    @contextlib.contextmanager
    def waiting_for(self, what: str) -> Iterator[None]:
        """Names what the loop is doing inside the block; by default it waits for the device."""
        outer = self._mark.doing
        self._mark = self._mark._replace(doing=what, moved=time.monotonic())
        try:
            yield
        finally:
            self._mark = self._mark._replace(doing=outer, moved=time.monotonic())

    def _watch(self) -> None:
        mark, patience = self._mark, self.limit
        while True:
            woken = self._woken.wait(max(0.0, mark.moved + patience - time.monotonic()))
            if self._ended:
                return
            if woken:
                self._woken.clear()
                self._tell(self._resumed)
            elif self._mark is mark:
                fresh = self._stalled is None
                self._stalled = self._stalled or mark
                if self._mark is mark:  # checked again, now that `step` would notice the stall
                    self._tell(self._described(mark))
                    patience *= 2
                elif fresh:
                    self._stalled = None
            if self._mark is not mark:
                mark, patience = self._mark, self.limit

    def _described(self, mark: Mark) -> str:
        now = time.monotonic()
        after = "since the start" if mark.step is None else f"after step {mark.step}"
        since = time.strftime("%H:%M", time.localtime(time.time() - (now - mark.moved)))
        where = place(sys._current_frames().get(self._watched))
        doing = mark.doing if mark.doing.partition(" ")[0].endswith("ing") else f"waiting for {mark.doing}"
        said = f"no step for {duration(now - mark.stepped)} {after}: {doing} since {since}{where and f', in {where}'}"
        return " ".join(filter(None, [f"{said}.", HINTS.get(mark.doing)]))


def place(frame: FrameType | None) -> str:
    """The innermost frames of a stack in this package, as "tinygen/training/batches.py:118, tinygen/train.py:103"; "" without any."""
    stack = ((each.f_code.co_filename, line) for each, line in traceback.walk_stack(frame)) if frame else ()
    ours = (f"tinygen/{path.removeprefix(PACKAGE)}:{line}" for path, line in stack if path.startswith(PACKAGE))
    return ", ".join(itertools.islice(ours, FRAMES))
