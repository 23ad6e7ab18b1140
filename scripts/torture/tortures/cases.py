"""Shared by the cases of `faults`: runs that are trained once, and a case that trains, checks and keeps the output."""

import json
import re
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from tortures import show
from tortures.compare import differences, lines, wrong_sums
from tortures.kills import begun
from tortures.runs import LIMIT, LOOKS, Broken, Run, Setup, finish, torn, whole

SHOWN = 240  # characters of what a process said last, in a table


class Skipped(Exception):
    """The machine lacks a feature that an injection needs."""


class Scene(NamedTuple):
    """reference: an uninterrupted run; stopped: one that was killed, with two complete checkpoints and none begun"""

    setup: Setup
    reference: Path
    stopped: Path


class Case:
    """One fault, in a workdir of its own.

    said: the last lines of each process; checked: what held; failures: what did not
    """

    def __init__(self, scene: Scene, workdir: Path):
        self.setup, self.reference, self.stopped = scene
        self.workdir = workdir
        self.said: list[str] = []
        self.checked: list[str] = []
        self.failures: list[str] = []

    def check(self, what: str, holds: bool, found: str = "") -> None:
        if holds:
            self.checked.append(what)
        else:
            self.failures.append(f"not {what}" + (f" but {found}" if found else ""))

    def begin_stopped(self) -> None:
        """Replaces the workdir by that of the killed run."""
        shutil.copytree(self.stopped, self.workdir)

    def folder(self, step: int) -> Path:
        return self.workdir / "checkpoints" / str(step)

    def start(self, environment: Mapping[str, str] | None = None) -> Run:
        return Run(self.setup, self.workdir, environment)

    def end(self, run: Run, status: int = 0, limit: float = LIMIT) -> str:
        """Waits for a run, checks its exit status, and returns its output. After `limit` seconds it is killed."""
        found = run.wait(limit)
        self.heard(run)
        self.check(f"exit status {status}", found == [status], str(found[0]))
        return run.said

    def heard(self, run: Run) -> None:
        """Keeps the last lines of a run's output, and stores all of it beside the workdir."""
        with self.workdir.with_suffix(".log").open("a") as file:
            file.write(f"{run.said}\n")
        self.said.append(run.last().replace(f"{self.workdir.parent}/", ""))

    def train(self, status: int = 0, environment: Mapping[str, str] | None = None) -> str:
        """Runs the same command again to its end; returns its output."""
        with self.start(environment) as run:
            return self.end(run, status)

    def refused(self, said: str, name: str) -> None:
        """Checks that the run ended with one or two lines that name something, and no traceback."""
        words = said.rstrip().rpartition("\ntinygen: ")[2]
        self.check(f"one or two lines that name {name}", len(words.splitlines()) <= 2 and name in words and "Traceback" not in said)

    def goes_on_from(self, said: str, step: int) -> None:
        self.check(f"going on from {step}", begun(said) == step, f"from {begun(said)}")

    def intact(self, steps: list[int]) -> None:
        """Checks that these checkpoints exist, each with the checksums of its files."""
        wrong = [
            word for word in wrong_sums(self.workdir) if word.partition(" ")[0].partition(":")[0] in {f"checkpoints/{n}" for n in steps}
        ]
        missing = [step for step in steps if step not in whole(self.workdir)]
        self.check(f"checkpoints {steps} intact", not missing and not wrong, f"{missing} missing, {wrong}")

    def equals(self, all_pictures: bool = True, reference: Path | None = None) -> None:
        """Checks that the finished run equals an uninterrupted one, its checksums are right, and each step is logged once."""
        found = differences(reference or self.reference, self.workdir, all_pictures) + wrong_sums(self.workdir)
        self.failures += found
        if not found:
            self.checked.append("equal to an uninterrupted run" + ("" if all_pictures else ", but for pictures that could not be written"))

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in _events(self.workdir) if each.get("event") == kind]


def _events(workdir: Path) -> list[dict[str, Any]]:
    path = workdir / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def make_scene(setup: Setup, folder: Path) -> Scene:
    reference = folder / "uninterrupted"
    seconds = finish(setup, reference).seconds
    show(f"uninterrupted: {seconds:.1f} s")
    return Scene(setup, reference, stop(setup, folder / "stopped", setup.steps * 4 // 5))


def stop(setup: Setup, workdir: Path, step: int) -> Path:
    """A run killed outside a save, some steps after `step`, with two complete checkpoints. Raises Broken if there is no such run."""
    for _ in range(5):
        with Run(setup, workdir) as run:
            run.until(step)
            while (torn(workdir) or len(whole(workdir)) < 2) and run.processes[0].running:
                time.sleep(LOOKS)
            run.signal(signal.SIGKILL)
            killed = run.wait() == [-signal.SIGKILL]
        if killed and not torn(workdir) and len(whole(workdir)) > 1 and lines(workdir)[-1].get("step", 0) > whole(workdir)[-1]:
            return workdir
        shutil.rmtree(workdir)
    raise Broken(f"no run could be killed between step {step} and its end, and outside a save")


def measure(
    faults: dict[str, Callable[[Case], None]], setup: Setup, jobs: int, folder: Path, scene: Scene | None = None
) -> dict[str, dict[str, Any]]:
    """{name: {"injected", "said", "checked", "failures", "skipped", "workdir"}}"""
    folder.mkdir(parents=True, exist_ok=True)
    scene = scene or make_scene(setup, folder)
    results = {}
    with ThreadPoolExecutor(jobs) as pool:
        coming = {pool.submit(attempt, fault, Case(scene, folder / re.sub(r"\W+", "-", name))): name for name, fault in faults.items()}
        for each in as_completed(coming):
            results[coming[each]] = each.result()
            show(f"{len(results)} of {len(faults)}: {coming[each]}: {verdict(each.result())}")
    return {name: results[name] for name in faults}


def attempt(fault: Callable[[Case], None], case: Case) -> dict[str, Any]:
    """Injects a fault and returns the outcome; the workdir is kept if the case fails."""
    skipped = ""
    try:
        fault(case)
    except Skipped as error:
        skipped = str(error)
    except (Broken, OSError) as error:
        case.failures.append(str(error))
    if not case.failures:
        shutil.rmtree(case.workdir, ignore_errors=True)
    kept = str(case.workdir) if case.failures else ""
    injected = " ".join((fault.__doc__ or "").split())
    return dict(injected=injected, said=case.said, checked=case.checked, failures=case.failures, skipped=skipped, workdir=kept)


def verdict(result: dict[str, Any]) -> str:
    if result["skipped"]:
        return f"skipped: {result['skipped']}"
    if result["failures"]:
        return f"NOT AS PROMISED: {'; '.join(result['failures'])} (kept: {result['workdir']})"
    return "nothing that was saved is lost"


def table(results: dict[str, dict[str, Any]]) -> str:
    """The result as a Markdown table."""
    rows = ["| fault | injected | the program's last words | checked | verdict |", "|---|---|---|---|---|"]
    for name, result in results.items():
        said = "<br>".join(words[-SHOWN:] for words in result["said"])
        cells = [name, result["injected"], said, "; ".join(dict.fromkeys(result["checked"])), verdict(result)]
        rows.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(rows)


def good(results: dict[str, dict[str, Any]]) -> bool:
    return not any(result["failures"] for result in results.values())
