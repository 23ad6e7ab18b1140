"""Logging of a run: metrics.jsonl, samples/, TensorBoard, the log, and a progress bar (Rich)."""

import collections
import contextlib
import functools
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import jax
from absl import logging
from etils import epath
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tinygen.distributed.processes import leads
from tinygen.media.preview import View
from tinygen.workdir.files import folder
from tinygen.workdir.log_line import HELD_OUT, log_line
from tinygen.workdir.manifest import note
from tinygen.workdir.metrics_file import MetricsFile
from tinygen.workdir.watchdog import Watchdog
from tinygen.workdir.writers import make_writers

QUEUE = 32  # maximum pending lines and previews, so that a slow disk or service cannot exhaust memory
TIMINGS = ("steps_per_s", "data_wait", "memory_gib")  # differ between otherwise equal runs


class Background:
    """Calls made in order by a background thread. An error is raised at the end.

    most: maximum pending calls; a further call waits for the oldest
    """

    def __init__(self, most: int):
        self.most = most
        self.thread = ThreadPoolExecutor(1, "record")
        self.calls: collections.deque[Future[None]] = collections.deque()

    def __call__(self, function: Callable[..., None], *arguments: Any) -> None:
        if len(self.calls) > self.most:
            wait([self.calls[0]])
        while self.calls and self.calls[0].done() and not self.calls[0].exception():
            self.calls.popleft()
        self.calls.append(self.thread.submit(function, *arguments))

    def up_to_here(self) -> Callable[[], object]:
        """A function that waits for all calls submitted so far."""
        return functools.partial(wait, list(self.calls))

    def __enter__(self) -> "Background":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        """Waits for all calls and raises their error, unless another error is being raised."""
        self.thread.shutdown()
        while self.calls and kind is None:
            self.calls.popleft().result()


class RunLogger:
    """Writes a run's metrics and previews. Lines of metrics.jsonl after `start`, from a run that had got further, are dropped.

    Lines are on disk when the call returns; everything else is written in the background, in order, before the logger is closed. A
    failed write is reported once and does not end the run. Only the coordinator process writes.

    attempt: number of rollbacks so far
    stall: minutes without a step before the log and events.jsonl say what the run is waiting for; 0 = never
    bar: show a progress bar on a terminal
    noun: what the examples are ("image"), for the rate
    extra_writers: names of rows of `tinygen.workdir.writers.WRITERS`, which receive the run's `settings`
    """

    def __init__(
        self,
        workdir: epath.Path,
        start: int,
        steps: int,
        batch_size: int,
        noun: str,
        extra_writers: str,
        settings: Mapping[str, Any],
        attempt: int = 0,
        stall: float = 0,
        bar: bool = True,
    ):
        self.workdir = folder(workdir, held=True)
        self.journal = MetricsFile(self.workdir, start, attempt)
        self.batch_size = batch_size
        self.noun = noun
        self.console = Console(stderr=True, quiet=not leads())
        self.writers = make_writers(self.workdir, extra_writers, settings, self._warn)
        self.later = Background(most=QUEUE)
        self.reported: set[str] = set()  # failing outputs that have been reported
        self.watchdog = Watchdog(stall, self._stalled)
        self.reached = start
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn(),
            console=self.console, disable=not (bar and self.console.is_terminal),
        )  # fmt: skip
        self.task = self.progress.add_task("training", total=steps, completed=start, rate="")
        self.steps = steps
        self.mark, self.marked, self.waited = time.perf_counter(), start, 0.0
        self.begun: tuple[float, int] | None = None  # (time, step) of the first step, after compilation

    def __enter__(self) -> "RunLogger":
        self.watchdog.__enter__().step(self.reached)
        self.progress.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.watchdog.__exit__(*error)
        self.progress.stop()
        try:
            self.later.__exit__(*error)
        finally:
            for writer in self.writers:
                writer.close()
        self._warn("metrics.jsonl", self.journal.write())

    def lines(self, lines: Mapping[int, Mapping[str, Any]], reached: int) -> None:
        """Writes lines {step: values}, with the TIMINGS since the last call, to metrics.jsonl, TensorBoard and the log.

        A line with an "event" is logged as a warning.

        reached: the last step taken, which may be later than those of the lines
        """
        seconds = max(time.perf_counter() - self.mark, 1e-9)
        rate, wait = (reached - self.marked) / seconds, self.waited / seconds
        measured = any("event" not in values for values in lines.values())
        timings = {"steps_per_s": rate, "data_wait": wait, "memory_gib": memory_gib()} if rate > 0 else {}
        if measured:
            self.restart_clock(reached)
        for step, values in lines.items():
            if "event" in values:
                self._warn("metrics.jsonl", self.journal.add({"step": step, **values}))
                facts = ", ".join(f"{name} {value}" for name, value in values.items() if name != "event")
                logging.warning("step %d: %s (%s)", step, values["event"], facts)
                continue
            self._warn("metrics.jsonl", self.journal.add({"step": step, **values, **timings}))
            self._write_scalars(step, {**values, **timings})
            speed = f"{rate:.3g} steps/s, {rate * self.batch_size:,.0f} {self.noun}s/s" if timings else ""
            if not self.console.is_terminal or any(name.startswith(HELD_OUT) for name in values):  # the bar shows the rest
                logging.info("%s", log_line(step, self.steps, values, speed, self.seconds_left(reached)))
            self.progress.update(self.task, rate=f"{speed}  loss {values['loss']:.4f}")

    def complete(self, step: int, values: Mapping[str, float]) -> None:
        """Adds values to the last line, that of `step`, which an interrupted run did not measure."""
        self.journal.complete(step, values)
        self._write_scalars(step, values)

    def roll_back(self, step: int, to: int, attempt: int) -> None:
        """Rolls metrics.jsonl and the bar back from a step to an earlier one. attempt: the failed attempt, counted from 0"""
        event = {"step": step, "event": "rollback", "to": to} | ({"attempt": attempt} if attempt else {})
        self._warn("metrics.jsonl", self.journal.roll_back(to, event))
        logging.warning("step %d: rolled back to step %d; continuing with another data order and other noise", step, to)
        self.begun = None
        self.restart_clock(to)
        self.advance(to)

    def advance(self, step: int) -> None:
        self.reached = step
        self.watchdog.step(step)
        self.progress.update(self.task, completed=step)

    def preview(self, step: int, shown: Mapping[str, View]) -> None:
        """Writes a preview to `samples/<step>.<suffix>`, or `<step>-<name>.<suffix>` unless it is called samples, and to all writers."""
        if leads():
            self.later(self._draw, step, shown)

    def _draw(self, step: int, shown: Mapping[str, View]) -> None:
        for name, (medium, items, columns) in shown.items():
            stem = f"{step:06d}" if name == "samples" else f"{step:06d}-{name}"
            overview = medium.overview(items, columns)
            content = medium.encode(overview)
            try:
                self.workdir.make("samples")
                self.workdir.write(f"samples/{stem}.{medium.sheet_suffix}", content)
            except OSError as error:
                self._warn("samples/", error)
            if glimpse := medium.glimpse(items):
                logging.info("step %s: %s: %s", f"{step:,}", name, glimpse)
            for writer in self.writers:
                medium.log(writer, step, name, items, overview)

    def _write_scalars(self, step: int, values: Mapping[str, float]) -> None:
        for writer in self.writers:
            self.later(writer.write_scalars, step, dict(values))

    def _stalled(self, message: str) -> None:
        logging.warning("%s", message)
        note(self.workdir, self.reached, "stall", told=message)

    def _warn(self, what: str, error: Exception | None) -> None:
        """Reports the first error of an output since it last succeeded."""
        if error is None:
            self.reported.discard(what)
        elif what not in self.reported:
            self.reported.add(what)
            reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
            logging.warning("%s cannot be written: %s. The run continues.", what, reason)

    @contextlib.contextmanager
    def aside(self, what: str, state: Any) -> Iterator[None]:
        """Work other than a training step: shown on the bar and excluded from the rate. Waits for `state` first, which counts."""
        jax.block_until_ready(state)
        began = time.perf_counter()
        self.progress.update(self.task, description=what)
        with self.watchdog.waiting_for(what):
            yield
        self.progress.update(self.task, description="training")
        self.mark += time.perf_counter() - began

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Measures a wait for data, whose share of the time is logged."""
        began = time.perf_counter()
        with self.watchdog.waiting_for("data"):
            yield
        self.waited += time.perf_counter() - began

    def restart_clock(self, step: int) -> None:
        """Excludes the time so far (compilation) from the rate."""
        self.mark, self.marked, self.waited = time.perf_counter(), step, 0.0
        self.begun = self.begun or (self.mark, step)

    def seconds_left(self, step: int) -> float | None:
        """The estimated time until the last step, by the pace so far, including previews and evaluations."""
        if self.begun is None or step <= self.begun[1]:
            return None
        began, first = self.begun
        return (time.perf_counter() - began) / (step - first) * (self.steps - step)


def memory_gib() -> float:
    """Peak memory in GiB: of the fullest local device, or of this process if devices do not report it (CPU)."""
    peaks = [stats["peak_bytes_in_use"] for device in jax.local_devices() if (stats := device.memory_stats())]
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
    return max(peaks, default=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit) / 2**30
