"""Reads a workdir for the report, in whatever state it is: unreadable parts are listed in `problems`."""

import collections
import contextlib
import dataclasses
import functools
import json
import math
import re
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from etils import epath

from tinygen.config import flatten
from tinygen.errors import UserError
from tinygen.media import element_of
from tinygen.workdir.disk import Entry
from tinygen.workdir.files import MIB, File, Folder, folder, json_object

MARKS = ("config.json", "metrics.jsonl", "manifest.json", "events.jsonl", "eval.jsonl", "samples", "checkpoints")
SHOWN = re.compile(r"([0-9]{1,10})(?:-(.+))?\.[a-z0-9]+")
DOCUMENT = MIB  # size limit of config.json and similar files, which have a few thousand bytes
SHOWN_BYTES = 32 * MIB  # read from the end of each JSON lines file
MOST_LINES, MOST_SERIES = 2000, 500  # maximum on a page
LISTED = 12  # names in one notice
QUIET = 15 * 60  # seconds without a new line after which a run is no longer called running


@dataclasses.dataclass
class Series:
    """A metric of a run by step, ascending. `values` has NaN for non-finite values."""

    steps: np.ndarray  # int64 [N]
    values: np.ndarray  # float64 [N]


@dataclasses.dataclass
class Run:
    """The contents of a workdir. Any part may be empty, for a run that has just started, an older one, or a damaged one.

    grids: {name: {step: PNG file, or text}}; the objective's samples are named "samples"
    prompts: the prompts of the samples of every grid, in order
    examples: the labels and captions of data.png, in order
    """

    folder: Folder
    name: str
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)  # config.json, by dotted names
    manifest: dict[str, Any] = dataclasses.field(default_factory=dict)
    series: dict[str, Series] = dataclasses.field(default_factory=dict)
    events: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    evaluations: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    grids: dict[str, dict[int, File]] = dataclasses.field(default_factory=dict)
    prompts: list[str] = dataclasses.field(default_factory=list)
    examples: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    checkpoints: list[int] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)
    last_written: float | None = None

    @property
    def start(self) -> dict[str, Any]:
        """The newest start event: the recipe and this run's changes."""
        return next((event for event in reversed(self.events) if event.get("event") == "start"), {})

    @functools.cached_property
    def changed(self) -> dict[str, Any]:
        """{dotted key: the recipe's value} of keys changed on the command line."""
        changed = self.start.get("changed")
        pairs = changed.items() if isinstance(changed, dict) else ()
        return {key: pair[0] if isinstance(pair, list) and pair else pair for key, pair in pairs}

    @property
    def step(self) -> int:
        """The last known step."""
        steps = [int(series.steps[-1]) for series in self.series.values()] + [max(grids) for grids in self.grids.values()]
        return max([*steps, *self.checkpoints, 0])

    def last(self, name: str) -> float | None:
        """The newest finite value of a series."""
        finite = self.series[name].values[np.isfinite(self.series[name].values)] if name in self.series else np.empty(0)
        return float(finite[-1]) if finite.size else None

    def recent(self, name: str) -> float | None:
        """The mean of a series over the last 5 % of its steps, less noisy than the last value."""
        if self.last(name) is None:
            return None
        series = self.series[name]
        late = series.values[series.steps >= 0.95 * series.steps[-1]]
        return float(np.nanmean(late)) if np.isfinite(late).any() else self.last(name)

    def status(self, now: float) -> str:
        """finished | stopped | running | unfinished, and where."""
        total = self.settings.get("train.steps")
        where = f"at step {self.step:,}" + (f" of {total:,}" if isinstance(total, int) else "")
        newest = next((event["event"] for event in reversed(self.events) if event.get("event") in ("start", "stopped", "finished")), None)
        if (isinstance(total, int) and self.step >= total) or newest == "finished":
            return f"finished {where}"
        if newest == "stopped":
            return f"stopped {where}"
        return f"{'running' if self.last_written and now - self.last_written < QUIET else 'unfinished'} {where}"


def read(path: str, name: str) -> Run:
    """The run in a folder. Raises UserError if there is none."""
    place = epath.Path(path)
    if not place.exists():
        raise UserError(f"--workdir={path}: there is no such folder (several are separated by commas)")
    if not place.is_dir():
        raise UserError(f"--workdir={path} is a file: give the folder of a run")
    run = Run(folder(path), name)
    found = {entry.name: entry for entry in run.folder.entries()}
    if not found.keys() & {*MARKS}:
        raise UserError(f"--workdir={path} holds no run: it has none of {', '.join(MARKS)}")
    run.settings = flatten(_object(run, "config.json"))
    run.manifest = _object(run, "manifest.json")
    if "metrics.jsonl" in found:
        run.last_written = found["metrics.jsonl"].modified
        run.series = _series(run)
    else:
        run.problems.append("metrics.jsonl is missing: no curves")
    run.evaluations = _lines(run, "eval.jsonl", MOST_LINES)
    run.events = _events(run) + run.events
    run.grids = _grids(run)
    run.prompts = _prompts(run)
    run.examples = _examples(run)
    names = [entry.name for entry in _entries(run, "checkpoints") if entry.type == "folder"]
    run.checkpoints = sorted(int(name) for name in names if re.fullmatch("[0-9]{1,10}", name))
    return run


@contextlib.contextmanager
def _noting(run: Run, name: str) -> Iterator[None]:
    """Notes an unreadable or damaged file among the run's problems."""
    try:
        yield
    except OSError as error:
        run.problems.append(f"{name} cannot be read: {error.strerror}")
    except (ValueError, RecursionError) as error:
        run.problems.append(f"{name} is damaged: {error}")


def _entries(run: Run, name: str) -> list[Entry]:
    with _noting(run, name):
        return run.folder.entries(name)
    return []


def _object(run: Run, name: str) -> dict[str, Any]:
    with _noting(run, name):
        content = run.folder.read(name, DOCUMENT)
        if content is None:
            run.problems.append(f"{name} is missing")
        elif isinstance(tree := json.loads(content), dict):
            return tree
        else:
            raise ValueError("it holds no object")
    return {}


def _lines(run: Run, name: str, most: int | None = None) -> list[dict[str, Any]]:
    """The objects of a JSON lines file. A torn last line is skipped silently, since the run may still be writing it.

    most: maximum number, from the end
    """
    found: collections.deque[dict[str, Any]] = collections.deque(maxlen=most)
    torn, count = [], 0
    with _noting(run, name):
        for number, line in enumerate(run.folder.lines(name, last=SHOWN_BYTES), 1):
            if (content := json_object(line)) is not None:
                found.append(content)
                count += 1
            elif line is None or (line.strip() and line.endswith(b"\n")):
                torn.append(number)
    if torn:
        run.problems.append(f"{name}: {len(torn)} damaged line(s) left out, the first is line {torn[0]}")
    if count > len(found):
        run.problems.append(f"{name}: only the last {len(found):,} of {count:,} lines are shown")
    return list(found)


def _series(run: Run) -> dict[str, Series]:
    """The columns of metrics.jsonl. The last of several lines with the same step counts: it was written after a restart."""
    lines, strange = {}, set()
    for line in _lines(run, "metrics.jsonl"):
        step = line.pop("step", None)
        if event := line.pop("event", None):
            words = {name: line.pop(name) for name in list(line) if not isinstance(line[name], float)}
            if event != "rollback":  # also in events.jsonl
                run.events.append({"step": step, "event": event, **words})
        if isinstance(step, int) and not isinstance(step, bool) and 0 <= step < 2**53:
            lines[step] = line
        else:
            strange.add("step")
    columns: dict[str, tuple[list[int], list[float]]] = {}
    for step in sorted(lines):
        for name, value in lines[step].items():
            if name not in columns and len(columns) == MOST_SERIES:
                strange.add(f"all after the first {MOST_SERIES}")
            elif isinstance(value, int | float):
                steps, values = columns.setdefault(name, ([], []))
                steps.append(step)
                values.append(math.nan if (number := finite(value)) is None else number)
            else:
                strange.add(name)
    if strange:
        run.problems.append(f"metrics.jsonl: not drawn, for want of numbers or of room: {_few(sorted(strange))}")
    if not columns:
        run.problems.append("metrics.jsonl holds no numbers yet: no curves")
    series = {name: Series(np.array(steps, np.int64), np.array(values)) for name, (steps, values) in columns.items()}
    holes = {name: int(np.isnan(each.values).sum()) for name, each in series.items() if np.isnan(each.values).any()}
    if holes:
        run.problems.append(f"metrics.jsonl: not finite {_few([f'{name} ({count}x)' for name, count in holes.items()])}")
    return series


def finite(value: Any) -> float | None:
    """A number as a float; None if it is not a number or not finite as a float."""
    try:
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
    except OverflowError:
        return None


def _events(run: Run) -> list[dict[str, Any]]:
    """events.jsonl, and configuration changes that are only in the older config_changes.jsonl."""
    events, older = _lines(run, "events.jsonl", MOST_LINES), _lines(run, "config_changes.jsonl", MOST_LINES)
    recorded = [event.get("changes") for event in events]
    return [{"event": "config", "changes": changes} for changes in older if changes not in recorded] + events


def _grids(run: Run) -> dict[str, dict[int, File]]:
    grids: dict[str, dict[int, File]] = {}
    others = 0
    for entry in _entries(run, "samples"):
        if (match := SHOWN.fullmatch(entry.name)) and element_of(entry.name):
            grids.setdefault(match[2] or "samples", {})[int(match[1])] = File(run.folder, f"samples/{entry.name}")
        else:
            others += 1
    if not grids:
        run.problems.append("samples/ holds no pictures and no texts")
    if others:
        run.problems.append(f"samples/ holds {others} file(s) not named <step>.png, <step>.txt or the like: not shown here")
    return dict(sorted(grids.items(), key=lambda item: (item[0] != "samples", item[0])))


def _prompts(run: Run) -> list[str]:
    with _noting(run, "prompts.txt"):
        return (run.folder.read("prompts.txt", DOCUMENT) or b"").decode("utf-8", "replace").splitlines()[:MOST_LINES]
    return []


def _examples(run: Run) -> list[dict[str, Any]]:
    with _noting(run, "data.json"):
        examples = json.loads(run.folder.read("data.json", DOCUMENT) or b"[]")
        return [example for example in examples if isinstance(example, dict)][:MOST_LINES] if isinstance(examples, list) else []
    return []


def _few(names: list[str]) -> str:
    return ", ".join(names[:LISTED]) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")


def ago(seconds: float) -> str:
    """How long ago, in the largest suitable unit."""
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1)):
        count = int(seconds // length)
        if count > 0:
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "now"


def clock(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
