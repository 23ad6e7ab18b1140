"""metrics.jsonl: a line a logged step, and a line an event that belongs to the training itself.

Whatever befalls a run, the file holds the lines of the steps that its state has taken, each once.
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from absl import logging
from etils import epath

from tinygen.rundir import write_whole


class Journal:
    """Adds lines, whole or not at all. Those for which the disk has no room wait for it in memory.

    Lines after `start`, the step that a run goes on from, are taken out: those steps are taken again. So are those of an attempt (see
    `tinygen.guard`) after the checkpoint's. Lines that cannot be read are taken out and told of: they are lost.

    Numbers that are not finite stand as words, "nan" and "inf", for JSON has none.
    """

    def __init__(self, path: epath.Path, start: int, attempt: int):
        self.path = path
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
            if "://" in str(self.path):  # object stores know only whole files
                self.path.write_text(f"{self.path.read_text() if self.path.exists() else ''}{text}")
            else:
                self._append(text.encode())
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
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        last = _read(lines[-1]) if lines else None
        lines, line = (lines[:-1], last) if last and last["step"] == step else (lines, {"step": step})
        write_whole(self.path, "".join(f"{each}\n" for each in [*lines, _text({**line, **more}).rstrip()]))

    def _append(self, text: bytes) -> None:
        with open(self.path, "ab", buffering=0) as file:
            end, left = file.tell(), memoryview(text)
            try:
                while left:
                    left = left[file.write(left) :]
            except OSError:
                file.truncate(end)  # part of a line may have fitted
                raise

    def _keep(self, wanted: Callable[[dict[str, Any]], bool], where: str) -> int:
        """Rewrites the file with the wanted lines, and says how many these are. A last line that a killed process left torn is none."""
        text = self.path.read_bytes().decode("utf-8", "replace") if self.path.exists() else ""
        lines = text.splitlines()
        read = [_read(line) for line in lines]
        if read and read[-1] is None and not text.endswith("\n"):
            lines, read = lines[:-1], read[:-1]
        if damaged := read.count(None):
            logging.warning("metrics.jsonl: %d lines cannot be read: they are lost", damaged)
        kept = [line for line, content in zip(lines, read, strict=True) if content is not None and wanted(content)]
        if again := len(lines) - damaged - len(kept):
            logging.info("metrics.jsonl: %d lines %s taken out: those steps run again", again, where)
        write_whole(self.path, "".join(f"{line}\n" for line in kept))
        return len(kept)


def _up_to(step: int) -> Callable[[dict[str, Any]], bool]:
    """What stays of lines when a run goes back to `step`."""
    return lambda line: line["step"] <= step or "event" in line


def _text(line: Mapping[str, Any]) -> str:
    sound = {name: str(value) if isinstance(value, float) and not math.isfinite(value) else value for name, value in line.items()}
    return f"{json.dumps(sound, allow_nan=False)}\n"


def _read(line: str) -> dict[str, Any] | None:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    sound = isinstance(content, dict) and isinstance(content.get("step"), int) and isinstance(content.get("attempt", 0), int)
    return content if sound else None
