"""What a run says of itself: metrics.jsonl, TensorBoard and the log (CLU), the progress bar (Rich)."""

import contextlib
import json
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from absl import logging
from etils import epath
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tinygen.checkpoint import append, write_whole
from tinygen.processes import leads
from tinygen.writers import extra_writers


def finalise(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Device metrics as floats: (sum, weight) pairs divided, those of no weight left out."""
    fetched = jax.device_get(dict(metrics))
    pairs = {name: value if isinstance(value, tuple) else (value, 1.0) for name, value in fetched.items()}
    return {name: float(total) / float(weight) for name, (total, weight) in pairs.items() if weight > 0}


TIMINGS = ("steps_per_s", "data_wait", "memory_gib")  # what differs between equal runs


class Record:
    """Writes a run's numbers and pictures. Lines of metrics.jsonl after `start` (of a run that went further) are dropped.

    Of several processes the leading one writes; the others' records are silent.

    noun: what the examples are ("image"), for the rate
    extra_writers: rows of `tinygen.writers.WRITERS`, by name, which are told the run's `settings`
    """

    def __init__(
        self, workdir: epath.Path, start: int, steps: int, batch_size: int, noun: str, extra_writers: str, settings: Mapping[str, Any]
    ):
        self.path = workdir / "metrics.jsonl" if leads() else None
        self.batch_size = batch_size
        self.noun = noun
        self.console = Console(stderr=True, quiet=not leads())
        if self.path is not None:
            cut(self.path, start)
        self.writer = make_writer(workdir, extra_writers, settings)
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn(),
            console=self.console, disable=not self.console.is_terminal,
        )  # fmt: skip
        self.task = self.progress.add_task("training", total=steps, completed=start, rate="")
        self.mark, self.marked, self.waited = time.perf_counter(), start, 0.0

    def __enter__(self) -> "Record":
        self.progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.progress.stop()
        self.writer.close()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """One line of metrics.jsonl, with the TIMINGS since the last; the same to TensorBoard and the log."""
        seconds = max(time.perf_counter() - self.mark, 1e-9)
        rate, wait = (step - self.marked) / seconds, self.waited / seconds
        self.restart_clock(step)
        if rate > 0:
            values = {**values, "steps_per_s": rate, "data_wait": wait, "memory_gib": memory_gib()}
        if self.path is not None:
            append(self.path, json.dumps({"step": step, **values}))
        self.writer.write_scalars(step, values)
        shown = f"{rate:.2f} steps/s  {rate * self.batch_size:.0f} {self.noun}s/s  loss {values['loss']:.4f}"
        self.progress.update(self.task, rate=shown)

    def advance(self, step: int) -> None:
        self.progress.update(self.task, completed=step)

    def image(self, step: int, name: str, picture: np.ndarray) -> None:
        """A uint8 picture [H, W, C] to TensorBoard."""
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
    default = metric_writers.create_default_writer(str(workdir), asynchronous=True)
    return metric_writers.MultiWriter([default, *extra_writers(extra, workdir, settings)])
