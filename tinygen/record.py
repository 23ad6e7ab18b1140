"""What a run says of itself: metrics.jsonl, samples/, TensorBoard and the log (CLU), the progress bar (Rich)."""

import collections
import contextlib
import json
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

from tinygen import media
from tinygen.processes import leads
from tinygen.rundir import append, write_whole
from tinygen.writers import extra_writers


def finalise(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Device metrics as floats: (sum, weight) pairs divided, those of no weight left out."""
    fetched = jax.device_get(dict(metrics))
    pairs = {name: value if isinstance(value, tuple) else (value, 1.0) for name, value in fetched.items()}
    return {name: float(total) / float(weight) for name, (total, weight) in pairs.items() if weight > 0}


QUEUE = 32  # lines and previews that wait to be written, at most: a slow disk or service must not fill the memory
TIMINGS = ("steps_per_s", "data_wait", "memory_gib")  # what differs between equal runs


class Background:
    """Calls made one after another by a thread of its own. The error of one that raised is told by `failure`, and raised at the end.

    most: calls that wait; a further one waits for the oldest
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

    def failure(self) -> BaseException | None:
        """The error of the first call that raised, as soon as it has."""
        return next((error for call in self.calls if call.done() and (error := call.exception())), None)

    def __enter__(self) -> "Background":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        """Waits for all calls. Their errors are told unless another one has come first."""
        self.thread.shutdown()
        while self.calls and kind is None:
            self.calls.popleft().result()


class Record:
    """Writes a run's numbers and pictures. Lines of metrics.jsonl after `start` (of a run that went further) are dropped.

    Those lines are on disk when the call returns; all else is written in the background, in order, and is there when the record
    is closed. Of several processes the leading one writes; the others' records are silent.

    noun: what the examples are ("image"), for the rate
    extra_writers: rows of `tinygen.writers.WRITERS`, by name, which are told the run's `settings`
    """

    def __init__(
        self, workdir: epath.Path, start: int, steps: int, batch_size: int, noun: str, extra_writers: str, settings: Mapping[str, Any]
    ):
        self.workdir = workdir
        self.path = workdir / "metrics.jsonl" if leads() else None
        self.batch_size = batch_size
        self.noun = noun
        self.console = Console(stderr=True, quiet=not leads())
        if self.path is not None:
            cut(self.path, start)
        self.writer = make_writer(workdir, extra_writers, settings)
        self.later = Background(most=QUEUE)
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn(),
            console=self.console, disable=not self.console.is_terminal,
        )  # fmt: skip
        self.task = self.progress.add_task("training", total=steps, completed=start, rate="")
        self.mark, self.marked, self.waited = time.perf_counter(), start, 0.0

    def __enter__(self) -> "Record":
        self.progress.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.progress.stop()
        with contextlib.closing(self.writer):
            self.later.__exit__(*error)

    def scalars(self, lines: Mapping[int, Mapping[str, float]], reached: int) -> None:
        """Lines of metrics.jsonl, {step: values}, with the TIMINGS since the last; the same to TensorBoard and the log.

        reached: the last step that has been taken, which may come after those of the lines
        """
        seconds = max(time.perf_counter() - self.mark, 1e-9)
        rate, wait = (reached - self.marked) / seconds, self.waited / seconds
        self.restart_clock(reached)
        timings = {"steps_per_s": rate, "data_wait": wait, "memory_gib": memory_gib()} if rate > 0 else {}
        for step, values in lines.items():
            if self.path is not None:
                append(self.path, json.dumps({"step": step, **values, **timings}))
            self.later(self.writer.write_scalars, step, {**values, **timings})
            shown = f"{rate:.2f} steps/s  {rate * self.batch_size:.0f} {self.noun}s/s  loss {values['loss']:.4f}"
            self.progress.update(self.task, rate=shown)

    def advance(self, step: int) -> None:
        self.progress.update(self.task, completed=step)

    def pictures(self, step: int, shown: Mapping[str, media.Media], codec: Any) -> None:
        """A preview's `samples/<step>.png`, and `<step>-<name>.png` for what is not called samples; the same to TensorBoard."""
        if self.path is not None:
            self.later(self._draw, step, shown, codec)

    def _draw(self, step: int, shown: Mapping[str, media.Media], codec: Any) -> None:
        folder = self.workdir / "samples"
        folder.mkdir(exist_ok=True)
        for name, item in shown.items():
            picture = media.picture(item, codec)
            media.save_png(folder / (f"{step:06d}.png" if name == "samples" else f"{step:06d}-{name}.png"), picture)
            self.writer.write_images(step, {name: picture[None]})

    @contextlib.contextmanager
    def aside(self, what: str, state: Any) -> Iterator[None]:
        """Work on `state` that is not a training step: named on the bar, and kept out of the rate, unlike the step that it waits for."""
        jax.block_until_ready(state)
        began = time.perf_counter()
        self.progress.update(self.task, description=what)
        yield
        self.progress.update(self.task, description="training")
        self.mark += time.perf_counter() - began

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """A wait for data, whose share of the time is logged."""
        began = time.perf_counter()
        yield
        self.waited += time.perf_counter() - began

    def restart_clock(self, step: int) -> None:
        """Leaves what came before (compilation) out of the rate."""
        self.mark, self.marked, self.waited = time.perf_counter(), step, 0.0


def cut(path: epath.Path, start: int) -> None:
    """Takes out of metrics.jsonl what was written after step `start`, since those steps run again."""
    lines = path.read_text().splitlines() if path.exists() else []
    kept = [line for line in lines if _step_of(line) <= start]
    if len(kept) < len(lines):
        logging.info("metrics.jsonl: %d lines after step %d taken out: those steps run again", len(lines) - len(kept), start)
    write_whole(path, "".join(f"{line}\n" for line in kept))


def memory_gib() -> float:
    """The most memory in use so far, in GiB: of the fullest local device, or of this process where devices do not tell (CPU)."""
    told = [stats["peak_bytes_in_use"] for device in jax.local_devices() if (stats := device.memory_stats())]
    unit = 1 if sys.platform == "darwin" else 1024  # of getrusage's answer
    return max(told, default=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit) / 2**30


def _step_of(line: str) -> float:
    """The step of a line of metrics.jsonl; infinite for one that a killed process left torn."""
    try:
        return json.loads(line)["step"]
    except ValueError:
        return float("inf")


def make_writer(workdir: epath.Path, extra: str, settings: Mapping[str, Any]) -> Any:
    """CLU's writer to TensorBoard, the log and the `extra` ones; to nothing on a process that does not lead.

    TensorFlow is imported only here: it takes seconds, for which no mistake should wait.
    """
    import tensorflow as tf
    from clu import metric_writers

    if not leads():
        return metric_writers.MultiWriter([])
    tf.config.set_visible_devices([], "GPU")  # it only writes summaries: the accelerator is JAX's
    default = metric_writers.create_default_writer(str(workdir), asynchronous=False)  # `Record` calls it in the background
    return metric_writers.MultiWriter([default, *extra_writers(extra, workdir, settings)])
