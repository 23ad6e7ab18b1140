"""metrics.jsonl: a line a logged step, and a line an event that belongs to the training itself.

Whatever befalls a run, the file holds the lines of the steps that its state has taken, each once.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from absl import logging

from tinygen.workdir.files import Folder

FILE = "metrics.jsonl"


class Journal:
    """Adds lines, whole or not at all. Those for which the disk has no room wait for it in memory.

    Lines after `start`, the step from which a run resumes, are removed: those steps run again. So are those of an attempt
    (see `tinygen.training.nonfinite`) after the checkpoint's. Lines that cannot be read are removed with a warning: they are lost.

    Numbers that are not finite stand as words, "nan" and "inf", for JSON has none.
    """

    def __init__(self, workdir: Folder, start: int, attempt: int):
        self.workdir = workdir
        self.waiting: list[dict[str, Any]] = []
        self.cut: int | None = None  # a step after which lines in the file are yet to be taken out
        if not self._keep(lambda line: (line.get("attempt", 0), line["step"]) <= (attempt, start), f"after step {start}") and start:
            logging.warning("metrics.jsonl: no line is left of the steps up to %d, which were taken before: those lines are lost", start)

    def add(self, line: Mapping[str, Any]) -> OSError | None:
        """Adds a line, and those that wait. Returns the error where they have to wait on."""
        self.waiting.append(dict(line))
        return self.write()

    def write(self) -> OSError | None:
        """Writes the lines that wait. Returns the error where they have to wait on."""
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
        """Takes out the steps after `to`, though not what befell the run in them, and adds the event that led to it.

        Returns the error where that has to wait, as `add` does.
        """
        self.cut = to if self.cut is None else min(self.cut, to)
        self.waiting = list(filter(_up_to(to), self.waiting))
        return self.add(event)

    def complete(self, step: int, more: Mapping[str, Any]) -> None:
        """Adds numbers to the last line, which is of `step`; where that one is lost they have a line of their own."""

        def completed() -> Iterator[bytes]:
            before = None
            for line in self.workdir.lines(FILE):
                if before is not None:
                    yield before
                before = line
            last = _read(before)
            if before is not None and (last is None or last["step"] != step):
                yield before
            yield _text({**(last if last and last["step"] == step else {"step": step}), **more}).encode()

        self.workdir.write(FILE, completed())

    def _keep(self, wanted: Callable[[dict[str, Any]], bool], where: str) -> int:
        """Rewrites the file with the wanted lines, and returns how many there are. A last line that a killed process left torn is none."""
        kept = removed = damaged = 0

        def chosen() -> Iterator[bytes]:
            nonlocal kept, removed, damaged
            for line in self.workdir.lines(FILE):
                content = _read(line)
                if content is not None and line is not None and wanted(content):
                    kept += 1
                    yield line if line.endswith(b"\n") else line + b"\n"
                elif content is not None:
                    removed += 1
                elif line is None or line.endswith(b"\n"):
                    damaged += 1

        self.workdir.write(FILE, chosen())
        if damaged:
            logging.warning("metrics.jsonl: %d lines cannot be read: they are lost", damaged)
        if removed:
            logging.info("metrics.jsonl: %d lines %s removed: those steps run again", removed, where)
        return kept


def _up_to(step: int) -> Callable[[dict[str, Any]], bool]:
    """What stays of lines when a run goes back to `step`."""
    return lambda line: line["step"] <= step or "event" in line


def _text(line: Mapping[str, Any]) -> str:
    sound = {name: str(value) if isinstance(value, float) and not math.isfinite(value) else value for name, value in line.items()}
    return f"{json.dumps(sound, allow_nan=False)}\n"


def _read(line: bytes | None) -> dict[str, Any] | None:
    try:
        content = json.loads(line or b"")
    except (ValueError, RecursionError):
        return None
    sound = isinstance(content, dict) and isinstance(content.get("step"), int) and isinstance(content.get("attempt", 0), int)
    return content if sound else None
