"""metrics.jsonl: a line a logged step, and a line an event that belongs to the training itself.

Whatever befalls a run, the file holds the lines of the steps that its state has taken, each once.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from absl import logging
from etils import epath

from tinygen.rundir import write_whole


class Journal:
    """Adds lines, whole or not at all. Those for which the disk has no room wait for it in memory.

    Lines after `start`, the step that a run goes on from, are taken out: those steps are taken again. So are those of an attempt (see
    `tinygen.guard`) after the checkpoint's.
    """

    def __init__(self, path: epath.Path, start: int, attempt: int):
        self.path = path
        self.waiting: list[str] = []
        self._keep(lambda line: (line.get("attempt", 0), line["step"]) <= (attempt, start), f"after step {start}")

    def add(self, line: Mapping[str, Any]) -> OSError | None:
        """Adds a line, and those that wait. Returns the error where they have to wait on."""
        self.waiting.append(f"{json.dumps(line)}\n")
        return self.write()

    def write(self) -> OSError | None:
        """Writes the lines that wait. Returns the error where they have to wait on."""
        if not self.waiting:
            return None
        text = "".join(self.waiting)
        try:
            if "://" in str(self.path):  # object stores know only whole files
                self.path.write_text(f"{self.path.read_text() if self.path.exists() else ''}{text}")
            else:
                self._append(text.encode())
        except OSError as error:
            return error
        self.waiting.clear()
        return None

    def roll_back(self, to: int, event: Mapping[str, Any]) -> OSError | None:
        """Takes out the steps after `to`, though not what befell the run in them, and adds the event that led to it."""
        if error := self.write():
            return error
        self._keep(lambda line: line["step"] <= to or "event" in line, f"after step {to}")
        return self.add(event)

    def complete(self, step: int, more: Mapping[str, Any]) -> None:
        """Adds numbers to the last line, which is of `step`; where that one is lost they have a line of their own."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        last = _read(lines[-1]) if lines else None
        lines, line = (lines[:-1], last) if last and last["step"] == step else (lines, {"step": step})
        write_whole(self.path, "".join(f"{each}\n" for each in [*lines, json.dumps({**line, **more})]))

    def _append(self, text: bytes) -> None:
        with open(self.path, "ab", buffering=0) as file:
            end, left = file.tell(), memoryview(text)
            try:
                while left:
                    left = left[file.write(left) :]
            except OSError:
                file.truncate(end)  # part of a line may have fitted
                raise

    def _keep(self, wanted: Callable[[dict[str, Any]], bool], where: str) -> None:
        """Rewrites the file with the wanted lines. A line that a killed process left torn is none."""
        lines = self.path.read_bytes().decode("utf-8", "replace").splitlines() if self.path.exists() else []
        kept = [line for line in lines if (read := _read(line)) and wanted(read)]
        if len(kept) < len(lines):
            logging.info("metrics.jsonl: %d lines %s taken out: those steps run again", len(lines) - len(kept), where)
        write_whole(self.path, "".join(f"{line}\n" for line in kept))


def _read(line: str) -> dict[str, Any] | None:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    sound = isinstance(content, dict) and isinstance(content.get("step"), int) and isinstance(content.get("attempt", 0), int)
    return content if sound else None
