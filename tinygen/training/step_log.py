"""Writes the steps' lines of metrics.jsonl, and handles skipped updates and spikes of the loss."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging

from tinygen.config import Config
from tinygen.errors import UserError
from tinygen.objectives.metrics import finalise
from tinygen.training.cadence import due
from tinygen.training.nonfinite import Guard, Spikes
from tinygen.workdir.logger import RunLogger
from tinygen.workdir.manifest import note


class Taken(NamedTuple):
    """The steps of a call, whose metrics are still on the device.

    metrics: of each step [K], or of the only one
    extra: measurements after the last step, for its line; None if none were due
    """

    steps: range
    metrics: Any
    extra: Mapping[str, float] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepLog:
    """Writes the lines that are due, and watches all steps for non-finite updates and spikes of the loss."""

    config: Config
    objective: Any
    record: RunLogger
    guard: Guard
    spikes: Spikes

    def write(self, taken: Taken | None) -> None:
        """Waits for the metrics and writes what is due. Raises RollBack or UserError if the run cannot continue from its state."""
        if taken is None:
            return
        steps, guard = taken.steps, self.guard
        left_out, failed = self._watch(taken)
        sound = steps[: steps.index(failed) + 1] if guard.spent else steps
        shown = {step for step in sound if self._is_due(step, taken)} | left_out.keys() | ({failed} if guard.spent else set())
        if not shown:
            return
        fetched = jax.device_get(taken.metrics)
        lines = {step: self._line(step, fetched, taken, left_out) for step in sorted(shown)}
        self.record.lines(lines, steps[-1])
        if guard.spent:
            end = guard.end(failed, lines[failed])
            if isinstance(end, UserError):
                note(self.record.workdir, failed, "stopped", reason=str(end))
            raise end

    def _watch(self, taken: Taken) -> tuple[dict[int, int], int]:
        """({step: consecutive skips so far}, the step that failed last)."""
        steps, metrics = taken.steps, taken.metrics
        counts, ratios, (total, weight) = jax.device_get((metrics["skipped"], metrics["update_ratio"], metrics["loss"]))
        left_out = self.guard.watch(steps, np.ravel(counts)[: len(steps)].tolist(), np.ravel(ratios)[: len(steps)].tolist())
        failed = self.guard.spoilt or max(left_out, default=0)
        sound = steps[: steps.index(failed) + 1] if self.guard.spent else steps
        losses = dict(zip(steps, (np.ravel(total) / np.maximum(np.ravel(weight), 1e-12)).tolist(), strict=False))
        for step, (loss, median) in self.spikes({step: losses[step] for step in sound if step not in left_out}).items():
            logging.warning("step %d: the loss is %.4g, where it was about %.4g: a spike", step, loss, median)
            note(self.record.workdir, step, "spike", loss=loss, median=median)
        return left_out, failed

    def _is_due(self, step: int, taken: Taken) -> bool:
        train = self.config.train
        measured = taken.extra is not None and step == taken.steps[-1]
        return measured or step in (1, train.steps) or due(step, train.log_every)

    def _line(self, step: int, fetched: Any, taken: Taken, left_out: Mapping[int, int]) -> dict[str, Any]:
        """One line of metrics.jsonl."""
        own = jax.tree.map(lambda values: np.ravel(values)[step - taken.steps[0]], fetched)
        line: dict[str, Any] = finalise(own, self.objective)
        if step in left_out:  # JSON has no such numbers
            bad = {name: str(line.get(name, "nan")) for name in ("loss", "grad_norm")}
            line = {"event": "skipped", "in_a_row": left_out[step], **bad}
        elif step == self.guard.spoilt:
            line = {"event": "spoilt", "update_ratio": str(line["update_ratio"])}
        line |= (taken.extra or {}) if step == taken.steps[-1] else {}
        return line | ({"attempt": self.guard.attempt} if self.guard.attempt else {})
