"""SIGKILL at any instant: after a restart of the same command, the run must end as an uninterrupted run does."""

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
from tortures.runs import Broken, Run, Setup, await_save, finish, save_durations, torn, whole

PLACES = ("save", "start-up", "before the first checkpoint", "training")
PATIENCE = 30  # seconds in addition to setup.timeout in which the other process must exit
TRIES = 12  # attempts to kill during a save; each halves the longest wait


@dataclasses.dataclass(frozen=True)
class Reference:
    """An uninterrupted run.

    seconds: duration of a run, including start-up, with `jobs` - 1 others in parallel
    saving: median duration of a save, in seconds
    """

    workdir: Path
    seconds: float
    saving: float


def measure_reference(setup: Setup, jobs: int, folder: Path) -> Reference:
    """Trains once, which also fills the compilation cache, then `jobs` times in parallel to measure the durations.

    Raises Broken unless all runs are equal: otherwise comparisons would be meaningless.
    """
    first = folder / "uninterrupted"
    finish(setup, first)

    def again(number: int) -> tuple[float, list[float]]:
        workdir = folder / f"uninterrupted-{number}"
        with Run(setup, workdir) as run:
            saving = save_durations(run, workdir)
            seconds = run.seconds
            if any(run.wait()):
                raise Broken(f"an uninterrupted run failed: {run.last()}")
        if found := differences(first, workdir):
            raise Broken(f"uninterrupted runs differ ({first}, {workdir}): {'; '.join(found)}")
        shutil.rmtree(workdir)
        return seconds, saving

    with ThreadPoolExecutor(jobs) as pool:
        measured = list(pool.map(again, range(jobs)))
    saves = [each for _, saving in measured for each in saving]
    if not saves:
        raise Broken("no save was observed")
    return Reference(first, statistics.mean(seconds for seconds, _ in measured), statistics.median(saves))


def measure(setup: Setup, num: int, in_saves: int, jobs: int, seed: int, folder: Path) -> dict[str, Any]:
    """{"cases": [...], "seconds", "saving"}: `num` killed runs, the first `in_saves` of which are killed during a save.

    Half of the others are killed after a random step, half at a random instant of the whole run, most of which may be
    start-up.
    """
    folder.mkdir(parents=True)
    reference = measure_reference(setup, jobs, folder)
    show(f"{jobs + 1} equal uninterrupted runs: {reference.seconds:.1f} s per run, {1000 * reference.saving:.0f} ms per save")
    pool, cases = ThreadPoolExecutor(jobs), []
    try:
        moments = ["save" if index < in_saves else ("step", "instant")[index % 2] for index in range(num)]
        for each in as_completed([pool.submit(case, setup, reference, folder, seed, *chosen) for chosen in enumerate(moments)]):
            cases.append(each.result())
            show(line(cases[-1], len(cases), num))
    finally:
        pool.shutdown(cancel_futures=True)
    return {
        "cases": sorted(cases, key=lambda each: each["case"]),
        "seconds": reference.seconds,
        "saving": reference.saving,
    }


def case(setup: Setup, reference: Reference, folder: Path, seed: int, index: int, moment: str) -> dict[str, Any]:
    """One run, killed once during a "save", after a "step" or at any "instant", and restarted."""
    chance, workdir, tries, killed = random.Random(f"{seed} {index}"), folder / f"killed-{index}", 0, None
    while killed is None or (moment == "save" and killed["where"] != "save" and tries < TRIES):
        shutil.rmtree(workdir, ignore_errors=True)  # the kill came too late
        tries += 1
        killed = kill(setup, reference, workdir, chance, moment, tries)
    problems = restart(setup, reference, workdir, killed["newest"], killed["torn"]) + killed.pop("problems")
    if not problems:
        shutil.rmtree(workdir)
    kept = str(workdir) if problems else ""
    return {"case": index, **killed, "tries": tries, "equal": not problems, "problems": problems, "workdir": kept}


def kill(setup: Setup, reference: Reference, workdir: Path, chance: random.Random, moment: str, tries: int) -> dict[str, Any] | None:
    """Kills a run at a random instant, after a random step or during a random save; None if it had already ended."""
    problems = []
    with Run(setup, workdir) as run:
        if moment == "save":
            await_save(run, workdir, chance.randrange(setup.steps // setup.checkpoint_every))
            time.sleep(chance.uniform(0, reference.saving / 2 ** (tries - 1)))
        elif moment == "step":
            run.until(chance.randrange(1, setup.steps))
            time.sleep(chance.uniform(0, reference.saving))  # up to the duration of what may follow a step
        else:
            time.sleep(chance.uniform(0, reference.seconds))
        victim, after = chance.randrange(setup.processes), run.seconds
        run.signal(signal.SIGKILL, victim)
        statuses = run.wait(setup.timeout + PATIENCE if setup.processes > 1 else PATIENCE)
        if statuses[victim] != -signal.SIGKILL or 0 in statuses:
            return None
        waited = run.seconds - after
    if None in statuses:
        problems.append(f"process {statuses.index(None)} did not exit within {waited:.0f} s of the other's death")
    newest, left = max(whole(workdir), default=0), torn(workdir)
    problems += deleted_too_early(setup, workdir)
    found = dict(where=location(workdir), newest=newest, torn=left, problems=problems)
    return dict(after=after, victim=victim, statuses=statuses, waited=waited, **found)


def location(workdir: Path) -> str:
    """The phase of the run in which it was killed, judging by its files."""
    metrics = workdir / "metrics.jsonl"
    if torn(workdir):
        return "save"
    if not metrics.exists() or not metrics.stat().st_size:
        return "start-up"
    return "training" if whole(workdir) else "before the first checkpoint"


def deleted_too_early(setup: Setup, workdir: Path) -> list[str]:
    """Describes a checkpoint that was deleted before the next one was complete."""
    begun = [int(name.partition(".")[0]) for name in torn(workdir)]
    before = max(begun, default=0) - setup.checkpoint_every
    if before <= 0 or before in whole(workdir):
        return []
    return [f"checkpoints/{before} was deleted before the next one was complete"]


def restart(setup: Setup, reference: Reference, workdir: Path, newest: int, left: list[str]) -> list[str]:
    """Runs the same command again to its end and returns the problems found."""
    with Run(setup, workdir) as run:
        statuses = run.wait()
    workdir.with_suffix(".log").write_text(run.output)
    if any(statuses):
        return [f"the restart failed with exit status {statuses}: {run.last()}"]
    problems = []
    if first_step(run.output) != newest:
        problems.append(f"resumed from step {first_step(run.output)} instead of {newest}")
    for name in left:
        step = name.partition(".")[0]
        if name not in run.output:
            problems.append(f"{name} is not in the output")
        if not (workdir / "checkpoints" / "set_aside" / f"{step}-torn").exists():
            problems.append(f"{name} is not in checkpoints/set_aside/{step}-torn")
    return [*problems, *differences(reference.workdir, workdir), *wrong_sums(workdir)]


def first_step(output: str) -> int | None:
    """The step at which a run starts according to its output; None if the output does not say."""
    found = re.search(r"(?:resuming from|this run is at) step (\d+)", output)
    return int(found[1]) if found else 0 if "from the beginning" in output else None


def line(found: dict[str, Any], done: int, num: int) -> str:
    """The progress line of a case."""
    ending = "equal" if found["equal"] else f"FAILED: {'; '.join(found['problems'])} (kept: {found['workdir']})"
    again = f", {found['tries']} attempts" if found["tries"] > 1 else ""
    pair = len(found["statuses"]) > 1
    whose = f" (process {found['victim']}; the other exited {found['waited']:.1f} s later)" if pair else ""
    moment = f"killed after {found['after']:.2f} s ({found['where']}){whose}"
    return f"{done} of {num}: {moment}, newest checkpoint {found['newest']}{again}: {ending}"


def table(result: dict[str, Any]) -> str:
    """A Markdown table."""
    cases, equal = result["cases"], sum(each["equal"] for each in result["cases"])
    counts = collections.Counter(each["where"] for each in cases)
    good = collections.Counter(each["where"] for each in cases if each["equal"])
    rows = [f"| {where} | {counts[where]} | {good[where]} |" for where in PLACES]
    return "\n".join(["| killed during | runs | equal |", "|---|---|---|", *rows, f"| all | {len(cases)} | {equal} |"])


def passed(result: dict[str, Any]) -> bool:
    return all(each["equal"] for each in result["cases"])
