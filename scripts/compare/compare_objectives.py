"""Compares objectives at few and many network evaluations, after the same training budget: one picture, and scores.

    python scripts/compare/compare_objectives.py --out=runs/objectives --minutes=30 --features=runs/classify_digits
    python scripts/compare/compare_objectives.py --out=runs/objectives --steps=3000 \\
        --arm flow=convnext_mnist_fm --arm improved_meanflow=convnext_mnist_imf \\
        --sampling flow:sampler=euler --sampling flow:sampler=heun,guidance=2

An arm is a recipe, trained once: for the same time (--minutes; a short run first measures the number of steps, so the machine should be
idle), for the same number of steps (--steps), or as its recipe says. With a budget the learning-rate schedule ends with it. Seconds
are training time from metrics.jsonl, without evaluations, previews and compilation.

Each row of the picture is an arm, sampled as its recipe says or with other settings (--sampling, repeatable: each adds a row). Each
column is a number of network evaluations (--nfe). All cells start from the same noise and have the same classes, one row of samples
each. Below each cell, for --samples samples:

    accuracy  share that a classifier reads as the requested digit
    spread    variation within a class, relative to real digits
    distance  to the nearest training image, relative to that of held-out real digits

as defined in scripts/compare/score_digits.py, if the data are digits, and with --features the Fréchet distance of --num samples
(`tinygen eval-fid`). The picture is DIR/objectives.png, all numbers are in DIR/objectives.json, and a table is printed.
Finished work is not repeated: an interrupted call can be resumed.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import score_digits
from comparing import cells, picture, plan, runs

from tinygen.cli.flags import DENOISING
from tinygen.config import Config
from tinygen.errors import UserError

ARMS = (
    "flow=convnext_mnist_fm",
    "improved_meanflow=convnext_mnist_imf",
    "meanflow=convnext_mnist_imf:meanflow",
)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Trains objectives on the same budget and compares their samples at few network evaluations."
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder of the runs, the picture and the numbers")
    parser.add_argument("--arm", action="append", metavar="NAME=RECIPE", help=f"an arm; default: {' '.join(ARMS)}")
    parser.add_argument(
        "--sampling",
        action="append",
        default=[],
        metavar="NAME:KEY=VALUE[,KEY=VALUE]",
        help="a row of that arm with other settings; NAME: alone is the recipe's",
    )
    parser.add_argument("--nfe", default="1,2,4,16,50", help="network evaluations per sample, including guidance (1,2,4,16,50)")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--minutes", type=float, help="training time per arm")
    budget.add_argument("--steps", type=int, help="training steps per arm")
    parser.add_argument("--seed", type=int, default=0, help="training seed (0)")
    parser.add_argument("--samples", type=int, default=500, help="samples per cell, of which the first are shown (500)")
    parser.add_argument(
        "--features", help="features for eval-fid: efflite0, inception or the workdir of a classifier; default: no distance"
    )
    parser.add_argument("--num", type=int, default=1000, help="samples per Fréchet distance (1000)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of all recipes: train.eval_every=0")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    given = parse(argv)
    try:
        nfes = nfes_of(given.nfe)
        arms = plan.arms_of(given.arm or ARMS, [f"--config.{each}" for each in given.set])
        rows = plan.rows_of(arms, given.sampling, nfes)
        check(given)
        judge = judge_of(arms[0].config, given.samples)
        facts = {arm.name: trained(arm, given) for arm in arms}
        results = [[cell(row, nfe, given, judge) for nfe in nfes] for row in rows]
    except (UserError, score_digits.Mistake) as error:
        print(f"compare_objectives: {error}", file=sys.stderr)
        return 2
    show(given, facts, rows, results)
    return 0


def nfes_of(text: str) -> list[int]:
    """Numbers of evaluations, each once. Raises UserError for invalid numbers."""
    try:
        nfes = list(dict.fromkeys(int(word) for word in text.split(",")))
    except ValueError:
        nfes = [0]
    if min(nfes) < 1:
        raise UserError(f"--nfe={text}: give whole numbers from 1, separated by commas")
    return nfes


def check(given: argparse.Namespace) -> None:
    """Raises UserError for invalid numbers, a folder that cannot be created, and missing features."""
    for name, value in {"minutes": given.minutes, "steps": given.steps}.items():
        if value is not None and not 0 < value < 1e9:
            raise UserError(f"--{name}={value} must be positive")
    for name, value in {"samples": given.samples, "num": given.num}.items():
        if value < 2:
            raise UserError(f"--{name}={value}: at least two samples are needed")
    try:
        given.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out={given.out}: {error.strerror}") from error
    runs.check_features(given.features)


def judge_of(config: Config, num: int) -> Any:
    """The classifier of digits; None, with a message, for data without labelled digits."""
    data, classes = config.data.name, score_digits.NUM_CLASSES
    if data not in score_digits.SIZES or not config.data.label:
        runs.say(
            f"{data}{'' if config.data.get('label', True) else ' without labels'}: not labelled digits, so accuracy, "
            "spread and distance are omitted"
        )
        return None
    if num < 2 * classes:
        raise UserError(f"--samples={num}: at least two samples per class are needed, {2 * classes}")
    return score_digits.judge_of(data)


def trained(arm: plan.Arm, given: argparse.Namespace) -> dict[str, Any]:
    """The cost and the losses of an arm's training."""
    folder, settings, steps = given.out / arm.name, [f"--config.{each}" for each in given.set], given.steps
    if given.minutes:
        steps = runs.steps_within(given.minutes, arm.recipe, folder / "rate", given.seed, settings)
        runs.say(f"{arm.name}: {steps:,} steps in {given.minutes:g} minutes")
    if steps:
        settings += [f"--config.train.steps={steps}", "--config.optim.decay_steps=0"]
    run = runs.trained([arm.recipe], folder / f"seed{given.seed}", given.seed, settings)[0]
    losses = runs.held_out(run)
    if arm.config.objective.name == "flow":
        losses["velocity_loss"] = losses["raw_loss"]
    parameters = json.loads((run / "manifest.json").read_text("utf-8"))["parameters"]
    return {"recipe": arm.recipe, "workdir": str(run), **runs.cost([run]), "parameters": parameters, **losses}


def cell(row: plan.Row, nfe: int, given: argparse.Namespace, judge: Any) -> dict[str, Any]:
    """The numbers of a cell and the folder of its samples; or why it cannot be sampled."""
    if row.faults[nfe]:
        return {"asked": nfe, "impossible": row.faults[nfe]}
    place = given.out / row.arm.name / f"seed{given.seed}"
    settings = [f"--nfe={nfe}", *(f"--{word}" for word in row.words)]
    folder = place / "cells" / "-".join([f"nfe={nfe}", *row.words])
    record = cells.drawn(place / "0", folder, given.samples, settings)
    found: dict[str, Any] = {"asked": nfe, "nfe": record["nfe"], "samples": str(folder)}
    if judge is not None:
        found |= cells.judged(folder, row.arm.config.data.name, judge)
    if given.features:
        protocol = {name: record.get(name) for name in DENOISING}  # an existing score must have been taken with these settings
        found |= runs.distances(place / "0", given.features, given.num, settings, **protocol)
    return found


def show(
    given: argparse.Namespace, facts: dict[str, dict[str, Any]], rows: Sequence[plan.Row], results: Sequence[Sequence[dict[str, Any]]]
) -> None:
    """Prints two tables, writes the numbers and the picture."""
    settings = {name: getattr(given, name) for name in ("seed", "minutes", "steps", "samples", "features", "num")}
    numbers = [{"arm": row.arm.name, "settings": row.settings, "cells": own} for row, own in zip(rows, results, strict=True)]
    (given.out / "objectives.json").write_text(json.dumps({**settings, "arms": facts, "rows": numbers}, indent=1) + "\n", "utf-8")
    taken = [(row.name, each) for row, own in zip(rows, results, strict=True) for each in own]
    print(runs.table([(name, without(each, "recipe", "workdir")) for name, each in facts.items()]), end="\n\n")
    print(runs.table([(name, without(each, "samples", "impossible")) for name, each in taken]), end="\n\n")
    title = [rows[0].arm.config.data.name, f"{given.samples:,} samples per cell"]
    if given.minutes or given.steps:
        title.insert(1, f"{f'{given.minutes:g} minutes' if given.minutes else f'{given.steps:,} steps'} of training each")
    if given.features:
        title.append(f"FD of {given.num:,} samples in the features of {Path(given.features).name}")
    drawn = [picture.Row(row.name, about(facts[row.arm.name]), list(map(shown, own))) for row, own in zip(rows, results, strict=True)]
    picture.draw(given.out / "objectives.png", ", ".join(title), [f"nfe {each['asked']}" for each in results[0]], drawn, cells.COLUMNS)
    print(given.out / "objectives.png")


def without(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def about(facts: dict[str, Any]) -> list[str]:
    """The lines about a training in the picture."""
    seconds = facts["seconds"]
    lines = [f"{facts['steps']:,.0f} steps, {f'{seconds:.0f} s' if seconds < 100 else f'{seconds / 60:.0f} min'}"]
    lines += [f"{facts['parameters'] / 1e6:.2f}M parameters"]
    return lines + ([f"velocity loss {facts['velocity_loss']:.4f}"] if "velocity_loss" in facts else [])


def shown(found: dict[str, Any]) -> picture.Cell:
    """A cell of the picture."""
    if "impossible" in found:
        return picture.Cell(reason=found["impossible"])
    lines = []
    if "accuracy" in found:
        lines += [f"{100 * found['accuracy']:.1f} % right", f"spread {found['spread']:.2f}, distance {found['distance']:.2f}"]
    lines += [f"{'FID' if name == 'fid' else 'FD'} {value:.3g}" for name, value in found.items() if name == "fid" or name.startswith("fd_")]
    lines += [f"{found['nfe']} evaluations taken"] if found["nfe"] != found["asked"] else []
    return picture.Cell(cells.shown(Path(found["samples"])), lines)


if __name__ == "__main__":
    sys.exit(main())
