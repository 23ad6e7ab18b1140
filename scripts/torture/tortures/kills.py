"""SIGKILL at any moment: the same command, repeated, must end like an uninterrupted run."""

import collections
import dataclasses
import random
import re
import shutil
import signal
import statistics
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from tortures import show
from tortures.compare import differences, wrong_sums
from tortures.runs import Broken, Run, Setup, await_save, finish, savings, torn, whole

PLACES = ("save", "start-up", "before the first checkpoint", "training")
PATIENCE = 30  # seconds beyond setup.timeout until another process must have ended: it may just have begun to wait
TRIES = 12  # to kill inside a save; each waits half as long as the one before, at most


@dataclasses.dataclass(frozen=True)
class Reference:
    """An uninterrupted run. seconds: duration beside `jobs` - 1 others, including start-up; saving: median duration of a save"""

    workdir: Path
    seconds: float
    saving: float


def reference(setup: Setup, jobs: int, folder: Path) -> Reference:
    """Trains once, which also fills the compilation cache, then `jobs` times in parallel, to measure durations.

    Raises Broken unless all are equal.
    """
    first = folder / "uninterrupted"
    finish(setup, first)

    def again(number: int) -> tuple[float, list[float]]:
        workdir = folder / f"uninterrupted-{number}"
        with Run(setup, workdir) as run:
            saving = savings(run, workdir)
            seconds = run.seconds
            if any(run.wait()):
                raise Broken(f"an uninterrupted run fails: {run.last()}")
        if found := differences(first, workdir):
            raise Broken(f"uninterrupted runs differ ({first}, {workdir}): {'; '.join(found)}")
        shutil.rmtree(workdir)
        return seconds, saving

    with ThreadPoolExecutor(jobs) as pool:
        measured = list(pool.map(again, range(jobs)))
    saves = [each for _, saving in measured for each in saving]
    if not saves:
        raise Broken("no checkpoint was seen while it was written")
    return Reference(first, statistics.mean(seconds for seconds, _ in measured), statistics.median(saves))


def measure(setup: Setup, num: int, in_saves: int, jobs: int, seed: int, folder: Path) -> dict[str, Any]:
    """{"cases": [...], "seconds", "saving"}: `num` killed runs, of which the first `in_saves` are killed inside a save.

    Of the others every second one is killed after a random step, and the rest at an instant of the whole run: start-up may be most of it.
    """
    folder.mkdir(parents=True)
    known = reference(setup, jobs, folder)
    show(f"uninterrupted: {known.seconds:.1f} s a run, {1000 * known.saving:.0f} ms a save; {jobs + 1} of them are equal")
    pool, cases = ThreadPoolExecutor(jobs), []
    try:
        moments = ["save" if index < in_saves else ("step", "instant")[index % 2] for index in range(num)]
        for each in as_completed([pool.submit(case, setup, known, folder, seed, *chosen) for chosen in enumerate(moments)]):
            cases.append(each.result())
            show(line(cases[-1], len(cases), num))
    finally:
        pool.shutdown(cancel_futures=True)
    return {"cases": sorted(cases, key=lambda each: each["case"]), "seconds": known.seconds, "saving": known.saving}


def case(setup: Setup, known: Reference, folder: Path, seed: int, index: int, moment: str) -> dict[str, Any]:
    """One run, killed once, in a "save", after a "step" or at an "instant", and resumed."""
    chance, workdir, tries, killed = random.Random(f"{seed} {index}"), folder / f"killed-{index}", 0, None
    while killed is None or (moment == "save" and killed["where"] != "save" and tries < TRIES):
        shutil.rmtree(workdir, ignore_errors=True)  # it came too late
        tries += 1
        killed = kill(setup, known, workdir, chance, moment, tries)
    told = go_on(setup, known, workdir, killed["newest"], killed["torn"]) + killed.pop("told")
    if not told:
        shutil.rmtree(workdir)
    return {"case": index, **killed, "tries": tries, "equal": not told, "told": told, "workdir": str(workdir) if told else ""}


def kill(setup: Setup, known: Reference, workdir: Path, chance: random.Random, moment: str, tries: int) -> dict[str, Any] | None:
    """Kills a run at a random instant, after a random step, or inside a random one of its saves; None if it had already ended."""
    told = []
    with Run(setup, workdir) as run:
        if moment == "save":
            await_save(run, workdir, chance.randrange(setup.steps // setup.checkpoint_every))
            time.sleep(chance.uniform(0, known.saving / 2 ** (tries - 1)))
        elif moment == "step":
            run.until(chance.randrange(1, setup.steps))
            time.sleep(chance.uniform(0, known.saving))  # as long as the work beside a step may take
        else:
            time.sleep(chance.uniform(0, known.seconds))
        victim, after = chance.randrange(setup.processes), run.seconds
        run.signal(signal.SIGKILL, victim)
        statuses = run.wait(setup.timeout + PATIENCE if setup.processes > 1 else PATIENCE)
        if statuses[victim] != -signal.SIGKILL or 0 in statuses:
            return None
        waited = run.seconds - after
    if None in statuses:
        told.append(f"process {statuses.index(None)} did not end within {waited:.0f} s of the other's death")
    newest, left = max(whole(workdir), default=0), torn(workdir)
    told += lost(setup, workdir)
    return dict(where=place(workdir), after=after, victim=victim, statuses=statuses, waited=waited, newest=newest, torn=left, told=told)


def place(workdir: Path) -> str:
    """Where in the run the kill happened, judged by the files left."""
    metrics = workdir / "metrics.jsonl"
    if torn(workdir):
        return "save"
    if not metrics.exists() or not metrics.stat().st_size:
        return "start-up"
    return "training" if whole(workdir) else "before the first checkpoint"


def lost(setup: Setup, workdir: Path) -> list[str]:
    """Whether a checkpoint was deleted before the next one was complete."""
    begun = [int(name.partition(".")[0]) for name in torn(workdir)]
    before = max(begun, default=0) - setup.checkpoint_every
    return [f"checkpoints/{before} is not there, and the next one is not complete"] if before > 0 and before not in whole(workdir) else []


def go_on(setup: Setup, known: Reference, workdir: Path, newest: int, left: list[str]) -> list[str]:
    """Repeats the command to its end; returns the failures."""
    with Run(setup, workdir) as run:
        statuses = run.wait()
    workdir.with_suffix(".log").write_text(run.said)
    if any(statuses):
        return [f"started again: exit status {statuses}: {run.last()}"]
    told = []
    if begun(run.said) != newest:
        told.append(f"it should have gone on from {newest}, and said it began at {begun(run.said)}")
    for name in left:
        step = name.partition(".")[0]
        if name not in run.said:
            told.append(f"{name} was not named")
        if not (workdir / "checkpoints" / "set_aside" / f"{step}-torn").exists():
            told.append(f"{name} is not in checkpoints/set_aside/{step}-torn")
    return [*told, *differences(known.workdir, workdir), *wrong_sums(workdir)]


def begun(said: str) -> int | None:
    """The step from which a run resumed, according to its output; 0 for the beginning, None if it does not say."""
    found = re.search(r"(?:resuming from|this run is at) step (\d+)", said)
    return int(found[1]) if found else 0 if "from the beginning" in said else None


def line(found: dict[str, Any], done: int, num: int) -> str:
    """The progress line of a case."""
    ending = "equal" if found["equal"] else f"NOT AS PROMISED: {'; '.join(found['told'])} (kept: {found['workdir']})"
    again = f", drawn {found['tries']} times" if found["tries"] > 1 else ""
    whose = f" (process {found['victim']}, the other ended {found['waited']:.1f} s later)" if len(found["statuses"]) > 1 else ""
    return f"{done} of {num}: killed after {found['after']:.2f} s in {found['where']}{whose}, newest {found['newest']}{again}: {ending}"


def table(result: dict[str, Any]) -> str:
    """The result as a Markdown table."""
    cases, equal = result["cases"], sum(each["equal"] for each in result["cases"])
    counts = collections.Counter(each["where"] for each in cases)
    good = collections.Counter(each["where"] for each in cases if each["equal"])
    rows = [f"| {where} | {counts[where]} | {good[where]} |" for where in PLACES]
    return "\n".join(["| the kill fell in | runs | equal |", "|---|---|---|", *rows, f"| all | {len(cases)} | {equal} |"])


def good(result: dict[str, Any]) -> bool:
    return all(each["equal"] for each in result["cases"])
