"""Recipes side by side, over seeds: what each costs and how well it does, with the spread that another seed makes.

    python scripts/compare_recipes.py --out=runs/masking --features=runs/classify_digits \\
        --arm masked=configs/microdit_digits.py,configs/microdit_digits.py:unmasked --arm dense=configs/microdit_digits.py:dense
    python scripts/compare_recipes.py --out=runs/masking \
        --arm moe=configs/microdit_digits.py:dense+moe --arm dense=configs/microdit_digits.py:dense

An arm is one recipe, or several with commas between them: each stage begins with the averaged weights of the one before. For every
seed all arms are trained in turn, the order turning round with each seed, then the last stage's held-out loss is taken
(`tinygen eval`) and, with --features, the Fréchet distance of its samples (`tinygen eval-fid`). It ends with a table:

    steps    optimizer steps of all stages
    seconds  what they took: the sum of steps / rate over the lines of metrics.jsonl, evaluations and pictures apart. Mean over the seeds
    loss     held-out loss of the averaged weights; mean ± standard deviation over the seeds, and each
    FD-...   likewise, where features were given

Runs that are finished are not repeated: an interrupted call goes on, and more seeds or another arm can be added later.
`--set KEY=VALUE` changes a key of all recipes.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
TINYGEN = [sys.executable, "-c", "import sys; from tinygen.cli import main; sys.exit(main())"]


class Mistake(Exception):
    """Something the user can put right; the message is one line."""


def call(command: str, *arguments: str) -> None:
    """A command of tinygen, its words among ours. Raises Mistake where it fails: it has said why."""
    path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    status = subprocess.run([*TINYGEN, command, *arguments], env={**os.environ, "PYTHONPATH": path}).returncode
    if status:
        raise Mistake(f"tinygen {command} {' '.join(arguments)} ended with status {status}")


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def trained(stages: list[str], folder: Path, seed: int, settings: list[str]) -> list[Path]:
    """The workdirs of an arm's stages, each trained to its end."""
    runs: list[Path] = []
    for number, recipe in enumerate(stages):
        workdir = folder / f"{number}"
        begin = [f"--config.init.ckpt={runs[-1]}"] if runs else []
        command = [f"--config={recipe}", f"--workdir={workdir}", f"--config.seed={seed}", *begin, *settings]
        noted = folder / f"{number}.json"
        if noted.exists() and json.loads(noted.read_text("utf-8")) != command:
            raise Mistake(
                f"{workdir} was begun by another command, which {noted} holds: give another --out, or take that arm's folder away"
            )
        folder.mkdir(parents=True, exist_ok=True)
        noted.write_text(json.dumps(command))
        if not any(event.get("event") == "finished" for event in lines_of(workdir / "events.jsonl")):
            call("train", *command)
        runs.append(workdir)
    return runs


def judged(run: Path, features: str | None, num: int) -> dict[str, float]:
    """{"loss": ..., "fd_...": ...} of a finished run, taken now where that has not been done."""
    lines = lines_of(run / "eval.jsonl")
    if not any("loss" in line for line in lines):
        call("eval", f"--ckpt={run}")
    wanted = (Path(features).name, num) if features else None
    if features and wanted not in [(line.get("protocol", {}).get("features"), line.get("protocol", {}).get("num")) for line in lines]:
        call("eval-fid", f"--ckpt={run}", f"--features={features}", f"--num={num}")
    values: dict[str, float] = {}
    for line in lines_of(run / "eval.jsonl"):
        about = line.get("protocol", {})
        if about and (about.get("features"), about.get("num")) != wanted:
            continue
        scores = {name: value for name, value in line.items() if name == "fid" or re.fullmatch("fd_.*(?<!_stderr)(?<!_infinity)", name)}
        values |= {name: line[name] for name in ("loss",) if name in line} | scores
    return values


def cost(runs: list[Path]) -> dict[str, float]:
    """Steps of all stages, and the seconds that they took."""
    steps, seconds = 0, 0.0
    for run in runs:
        before = 0
        for line in lines_of(run / "metrics.jsonl"):
            if "steps_per_s" in line:
                seconds += (line["step"] - before) / line["steps_per_s"]
                before = line["step"]
        steps += before
    return {"steps": float(steps), "seconds": seconds}


def table(measured: dict[str, list[dict[str, float]]]) -> str:
    """measured: arm -> what each seed gave."""
    names = list(dict.fromkeys(name for seeds in measured.values() for values in seeds for name in values))
    rows = [["", *names]]
    for arm, seeds in measured.items():
        cells = [arm]
        for name in names:
            values = [each[name] for each in seeds]
            mean, spread = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
            own = f" ± {spread:.2g} ({', '.join(f'{value:.4g}' for value in values)})"
            cells.append(f"{mean:.0f}" if name in ("steps", "seconds") else f"{mean:.4g}{own if len(values) > 1 else ''}")
        rows.append(cells)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains and judges recipes side by side, over seeds.")
    parser.add_argument("--arm", action="append", required=True, metavar="NAME=RECIPE[,RECIPE ...]", help="what is compared; twice or more")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="where the runs live")
    parser.add_argument("--seeds", default="0,1,2", help="separated by commas (0,1,2)")
    parser.add_argument("--features", help="of eval-fid: efflite0, inception or the workdir of a classifier; without, no distance is taken")
    parser.add_argument("--num", type=int, default=4500, help="samples a distance is taken over (4500)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of all recipes: train.steps=100")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    given = parse(argv)
    try:
        arms = dict(arm.split("=", 1) for arm in given.arm)
        if not len(arms) == len(given.arm) >= 2:
            print("compare_recipes: give --arm twice or more, each with a name of its own", file=sys.stderr)
            return 2
        seeds = [int(seed) for seed in given.seeds.split(",")]
    except ValueError:
        print("compare_recipes: --arm is NAME=RECIPE[,RECIPE ...], --seeds whole numbers with commas between them", file=sys.stderr)
        return 2
    settings = [f"--config.{each}" for each in given.set]
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in arms}
    try:
        for turn, seed in enumerate(seeds):
            for name in list(arms)[:: -1 if turn % 2 else 1]:
                runs = trained(arms[name].split(","), given.out / name / f"seed{seed}", seed, settings)
                measured[name].append({**cost(runs), **judged(runs[-1], given.features, given.num)})
    except Mistake as error:
        print(f"compare_recipes: {error}", file=sys.stderr)
        return 2
    print(table(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
