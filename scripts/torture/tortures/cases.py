"""The cases of `faults`: the runs that they share, and `Case`, which trains, checks and keeps the output."""

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
from tortures.kills import first_step
from tortures.runs import LIMIT, POLL, Broken, Run, Setup, finish, torn, whole

SHOWN = 240  # characters of a process's last output in a table


class Skipped(Exception):
    """The machine lacks something that the fault needs."""


class Scene(NamedTuple):
    """reference: an uninterrupted run; stopped: a killed run with two complete checkpoints and no incomplete one"""

    setup: Setup
    reference: Path
    stopped: Path


class Case:
    """One fault, in its own workdir.

    output: the last lines of each process
    checked: the checks that passed
    failures: the checks that failed
    """

    def __init__(self, scene: Scene, workdir: Path):
        self.setup, self.reference, self.stopped = scene
        self.workdir = workdir
        self.output: list[str] = []
        self.checked: list[str] = []
        self.failures: list[str] = []

    def check(self, what: str, holds: bool, found: str = "") -> None:
        if holds:
            self.checked.append(what)
        else:
            self.failures.append(f"expected {what}" + (f", found {found}" if found else ""))

    def copy_stopped(self) -> None:
        """Starts from a copy of the workdir of the killed run."""
        shutil.copytree(self.stopped, self.workdir)

    def folder(self, step: int) -> Path:
        return self.workdir / "checkpoints" / str(step)

    def start(self, environment: Mapping[str, str] | None = None) -> Run:
        return Run(self.setup, self.workdir, environment)

    def end(self, run: Run, status: int = 0, limit: float = LIMIT) -> str:
        """Waits for a run, checks its exit status and returns its output. Kills it after `limit` seconds."""
        found = run.wait(limit)
        self.record(run)
        self.check(f"exit status {status}", found == [status], str(found[0]))
        return run.output

    def record(self, run: Run) -> None:
        """Keeps the last lines of a run's output, and writes all of it to a log beside the workdir."""
        with self.workdir.with_suffix(".log").open("a") as file:
            file.write(f"{run.output}\n")
        self.output.append(run.last().replace(f"{self.workdir.parent}/", ""))

    def train(self, status: int = 0, environment: Mapping[str, str] | None = None) -> str:
        """Runs the same command to its end and returns its output."""
        with self.start(environment) as run:
            return self.end(run, status)

    def check_error(self, output: str, name: str) -> None:
        """The run ended with an error of one or two lines that mentions `name`, without a traceback."""
        error = output.rstrip().rpartition("\ntinygen: ")[2]
        short = len(error.splitlines()) <= 2 and "Traceback" not in output
        self.check(f"an error of one or two lines that mentions {name}", short and name in error)

    def check_resumed(self, output: str, step: int) -> None:
        self.check(f"a resume from step {step}", first_step(output) == step, f"step {first_step(output)}")

    def check_intact(self, steps: list[int]) -> None:
        """These checkpoints exist and match their checksums."""
        names = {f"checkpoints/{step}" for step in steps}
        wrong = [problem for problem in wrong_sums(self.workdir) if re.split("[ :]", problem)[0] in names]
        missing = [step for step in steps if step not in whole(self.workdir)]
        self.check(f"intact checkpoints {steps}", not missing and not wrong, f"{missing} missing, {wrong}")

    def check_equal(self, all_pictures: bool = True, reference: Path | None = None) -> None:
        """The finished run equals an uninterrupted one, and its checkpoints match their checksums."""
        found = differences(reference or self.reference, self.workdir, all_pictures) + wrong_sums(self.workdir)
        self.failures += found
        if not found:
            self.checked.append(
                "equal to an uninterrupted run" + ("" if all_pictures else ", except for pictures that could not be written")
            )

    def events(self, kind: str) -> list[dict[str, Any]]:
        path = self.workdir / "events.jsonl"
        events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [event for event in events if event.get("event") == kind]


def make_scene(setup: Setup, folder: Path) -> Scene:
    reference = folder / "uninterrupted"
    seconds = finish(setup, reference).seconds
    show(f"uninterrupted: {seconds:.1f} s")
    return Scene(setup, reference, stop(setup, folder / "stopped", setup.steps * 4 // 5))


def stop(setup: Setup, workdir: Path, step: int) -> Path:
    """A run killed soon after `step`, not during a save, with two complete checkpoints. Raises Broken if that fails."""
    for _ in range(5):
        with Run(setup, workdir) as run:
            run.until(step)
            while (torn(workdir) or len(whole(workdir)) < 2) and run.processes[0].running:
                time.sleep(POLL)
            run.signal(signal.SIGKILL)
            killed = run.wait() == [-signal.SIGKILL]
        if killed and not torn(workdir) and len(whole(workdir)) > 1 and lines(workdir)[-1].get("step", 0) > whole(workdir)[-1]:
            return workdir
        shutil.rmtree(workdir)
    raise Broken(f"could not kill a run after step {step} and outside a save")


def measure(
    faults: dict[str, Callable[[Case], None]], setup: Setup, jobs: int, folder: Path, scene: Scene | None = None
) -> dict[str, dict[str, Any]]:
    """{name: {"injected", "output", "checked", "failures", "skipped", "workdir"}}"""
    folder.mkdir(parents=True, exist_ok=True)
    scene = scene or make_scene(setup, folder)
    results = {}
    with ThreadPoolExecutor(jobs) as pool:
        workdirs = {name: folder / re.sub(r"\W+", "-", name) for name in faults}
        futures = {pool.submit(attempt, fault, Case(scene, workdirs[name])): name for name, fault in faults.items()}
        for future in as_completed(futures):
            name, result = futures[future], future.result()
            results[name] = result
            show(f"{len(results)} of {len(faults)}: {name}: {verdict(result)}")
    return {name: results[name] for name in faults}


def attempt(fault: Callable[[Case], None], case: Case) -> dict[str, Any]:
    """Injects a fault and returns the outcome; the workdir is kept only if a check failed."""
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
    return dict(
        injected=injected,
        output=case.output,
        checked=case.checked,
        failures=case.failures,
        skipped=skipped,
        workdir=kept,
    )


def verdict(result: dict[str, Any]) -> str:
    if result["skipped"]:
        return f"skipped: {result['skipped']}"
    if result["failures"]:
        return f"FAILED: {'; '.join(result['failures'])} (kept: {result['workdir']})"
    return "passed"


def table(results: dict[str, dict[str, Any]]) -> str:
    """A Markdown table."""
    rows = ["| fault | injected | last output | checked | verdict |", "|---|---|---|---|---|"]
    for name, result in results.items():
        output = "<br>".join(lines[-SHOWN:] for lines in result["output"])
        cells = [name, result["injected"], output, "; ".join(dict.fromkeys(result["checked"])), verdict(result)]
        rows.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(rows)


def passed(results: dict[str, dict[str, Any]]) -> bool:
    return not any(result["failures"] for result in results.values())
