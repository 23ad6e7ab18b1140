"""The runs of a comparison: training, held-out losses, Fréchet distances and costs. Finished work is not repeated."""

import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine

from comparing import REPOSITORY
from tinygen.checkpoints import store
from tinygen.errors import UserError
from tinygen.evaluation.features import load

TINYGEN = [sys.executable, "-m", "tinygen"]
# loss: the training loss, whose scale depends on the weights of examples | raw_loss: without these weights |
# velocity_loss: flow matching's loss, for objectives that learn something else
HELD_OUT = ("loss", "raw_loss", "velocity_loss")
RATE_STEPS = 100  # steps to measure the training speed; it is logged five times, and the first one is ignored


def call(command: str, *arguments: str) -> None:
    """Runs a tinygen command, whose output is shown. Raises UserError if it fails."""
    path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    status = subprocess.run([*TINYGEN, command, *arguments], env={**os.environ, "PYTHONPATH": path}).returncode
    if status:
        raise UserError(f"tinygen {command} {' '.join(arguments)} failed with status {status}")


def say(line: str) -> None:
    """Prints a line of progress."""
    print(line, file=sys.stderr, flush=True)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def train(stages: Sequence[str], folder: Path, seed: int, settings: Sequence[str]) -> list[Path]:
    """Trains an arm's stages, each from the averaged weights of the one before, and returns their workdirs.

    settings: overrides for all stages, --config.KEY=VALUE
    Raises UserError if a stage is stopped before its end, and if a workdir was created by a different command.
    """
    runs: list[Path] = []
    for number, recipe in enumerate(stages):
        workdir = folder / f"{number}"
        init = [f"--config.init.ckpt={runs[-1]}"] if runs else []
        command = [f"--config={recipe}", f"--workdir={workdir}", f"--config.seed={seed}", *init, *settings]
        record = folder / f"{number}.json"
        if record.exists() and json.loads(record.read_text("utf-8")) != command:
            raise UserError(f"{workdir} was created by a different command ({record}): choose another --out, or remove it")
        folder.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps(command))
        if not finished(workdir):
            say(f"training {recipe} in {workdir}")
            call("train", *command)
            if not finished(workdir):
                raise UserError(f"{workdir} was stopped before its end: rerun the same command to resume it")
        runs.append(workdir)
    return runs


def check_features(features: str | None) -> None:
    """Raises UserError unless the features are those of a public network or of a run."""
    if features and features not in load.NAMES:
        store.find(features, option="--features")


def finished(workdir: Path) -> bool:
    return any(event.get("event") == "finished" for event in lines_of(workdir / "events.jsonl"))


def steps_within(minutes: float, recipe: str, folder: Path, seed: int, settings: Sequence[str]) -> int:
    """The number of training steps a recipe takes in this time on this machine, measured by a short run in `folder`.

    A line warns if the machine is busy. Evaluations, pictures and checkpoints are not included, as in `cost`.
    """
    every = {"log_every": RATE_STEPS // 5, "steps": RATE_STEPS, "eval_every": 0, "preview_every": 0, "checkpoint_every": 0}
    if not finished(folder / "0"):
        say("\n".join([f"measuring the training speed of {recipe}", *machine.caution(machine.busy_share())]))
    run = train([recipe], folder, seed, [*settings, *(f"--config.train.{key}={value}" for key, value in every.items())])[0]
    rates = [line["steps_per_s"] for line in lines_of(run / "metrics.jsonl") if "steps_per_s" in line]
    return max(1, int(60 * minutes * statistics.median(rates[1:])))


def held_out(run: Path) -> dict[str, float]:
    """The HELD_OUT losses that the objective has, for the averaged weights; measured now unless already done."""
    if not any("loss" in line for line in lines_of(run / "eval.jsonl")):
        say(f"measuring held-out losses of {run}")
        call("eval", f"--ckpt={run}")
    line = [line for line in lines_of(run / "eval.jsonl") if "loss" in line][-1]
    return {name: line[name] for name in HELD_OUT if name in line}


def distances(run: Path, features: str, num: int, flags: Sequence[str] = (), **sampling: Any) -> dict[str, float]:
    """{"fd_...": ...}: the Fréchet distance of `num` samples to the data, measured now unless already done.

    flags: sampling flags of `tinygen eval-fid`
    sampling: the corresponding fields of the protocol; an existing score is reused if it agrees in them
    """
    wanted = {"features": Path(features).name, "num": num, **sampling}

    def matching(line: dict[str, Any]) -> bool:
        about = line.get("protocol", {})
        return all(about.get(key) == value for key, value in wanted.items())

    found = [line for line in lines_of(run / "eval.jsonl") if matching(line)]
    if not found:
        say(f"measuring the Fréchet distance of {num} samples of {run} {' '.join(flags)}")
        call("eval-fid", f"--ckpt={run}", f"--features={features}", f"--num={num}", *flags)
        found = lines_of(run / "eval.jsonl")
    return {name: value for name, value in found[-1].items() if name == "fid" or re.fullmatch("fd_.*(?<!_stderr)(?<!_infinity)", name)}


def cost(runs: Sequence[Path]) -> dict[str, float]:
    """Steps and training seconds of all stages."""
    steps, seconds = 0, 0.0
    for run in runs:
        before = 0
        for line in lines_of(run / "metrics.jsonl"):
            if "steps_per_s" in line:
                seconds += (line["step"] - before) / line["steps_per_s"]
                before = line["step"]
        steps += before
    return {"steps": float(steps), "seconds": seconds}


def table(rows: Sequence[tuple[str, Mapping[str, float | str]]]) -> str:
    """A line per row and a column for each value that any row has; "-" for missing values."""
    names = list(dict.fromkeys(name for _, values in rows for name in values))
    cells = [["", *names], *([row, *(_cell(values.get(name, "-")) for name in names)] for row, values in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells)


def _cell(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.0f}" if value >= 1000 else f"{value:.4g}"
