"""metrics.jsonl: one line per logged step, and one per event of the training itself.

Whatever happens to a run, the file has exactly one line for each logged step of its current state.
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from absl import logging

from tinygen.distributed.processes import leads
from tinygen.workdir.files import Folder, json_object

FILE = "metrics.jsonl"


class MetricsFile:
    """Appends complete lines, on the coordinator process only. While the disk is full, they are pending in memory.

    Lines after `start`, the step from which a run resumes, are removed, since those steps run again; so are lines of attempts
    (see `tinygen.training.nonfinite`) later than the checkpoint's. Unreadable lines are removed with a warning.

    Non-finite numbers are strings, "nan" and "inf", since JSON has none.
    """

    def __init__(self, workdir: Folder, start: int, attempt: int):
        self.workdir = workdir
        self.waiting: list[dict[str, Any]] = []
        self.cut: int | None = None  # a step after which lines are still to be removed from the file
        if not leads():
            return
        if not self._keep(lambda line: (line.get("attempt", 0), line["step"]) <= (attempt, start), f"after step {start}") and start:
            logging.warning("metrics.jsonl: the lines of the steps up to %d are lost", start)

    def add(self, line: Mapping[str, Any]) -> OSError | None:
        """Appends a line after the pending ones. Returns the error if they remain pending."""
        if leads():
            self.waiting.append(dict(line))
        return self.write()

    def write(self) -> OSError | None:
        """Writes the pending lines. Returns the error if they remain pending."""
        if not self.waiting:
            return None
        text = "".join(map(_text, self.waiting))
        try:
            if self.cut is not None:
                self._keep(_up_to(self.cut), f"after step {self.cut}")
                self.cut = None
            self.workdir.append(FILE, text)
        except OSError as error:
            return error
        self.waiting.clear()
        return None

    def roll_back(self, to: int, event: Mapping[str, Any]) -> OSError | None:
        """Removes the steps after `to`, but not the events in them, and appends the event of the rollback.

        Returns the error like `add` if that is pending.
        """
        self.cut = to if self.cut is None else min(self.cut, to)
        self.waiting = list(filter(_up_to(to), self.waiting))
        return self.add(event)

    def complete(self, step: int, more: Mapping[str, Any]) -> None:
        """Adds values to the last line, that of `step`; if it is lost, appends a new line."""
        if not leads():
            return
        lines = [line for line in self.workdir.lines(FILE) if line is not None]
        last = _read(lines[-1]) if lines else None
        if last is not None and last["step"] == step:
            lines.pop()
        else:
            last = {"step": step}
        self.workdir.write(FILE, [*lines, _text({**last, **more}).encode()])

    def _keep(self, wanted: Callable[[dict[str, Any]], bool], where: str) -> int:
        """Rewrites the file with the wanted lines and returns their number. A torn last line of a killed process does not count."""
        kept, removed, damaged = [], 0, 0
        for line in self.workdir.lines(FILE):
            if line is None or (content := _read(line)) is None:
                damaged += line is None or line.endswith(b"\n")
            elif wanted(content):
                kept.append(line.removesuffix(b"\n") + b"\n")
            else:
                removed += 1
        self.workdir.write(FILE, kept)
        if damaged:
            logging.warning("metrics.jsonl: removed %d unreadable lines", damaged)
        if removed:
            logging.info("metrics.jsonl: removed %d lines %s, whose steps run again", removed, where)
        return len(kept)


def _up_to(step: int) -> Callable[[dict[str, Any]], bool]:
    """Which lines remain after a rollback to `step`."""
    return lambda line: line["step"] <= step or "event" in line


def _text(line: Mapping[str, Any]) -> str:
    sound = {name: str(value) if isinstance(value, float) and not math.isfinite(value) else value for name, value in line.items()}
    return f"{json.dumps(sound, allow_nan=False)}\n"


def _read(line: bytes | None) -> dict[str, Any] | None:
    content = json_object(line)
    sound = content is not None and isinstance(content.get("step"), int) and isinstance(content.get("attempt", 0), int)
    return content if sound else None
