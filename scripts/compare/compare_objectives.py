"""Compares objectives at few and many network evaluations under the same training budget, with a figure and scores.

    python scripts/compare/compare_objectives.py --out=runs/objectives --minutes=30 --features=runs/classify_digits
    python scripts/compare/compare_objectives.py --out=runs/objectives --steps=3000 \\
        --arm flow=convnext_mnist_fm --arm improved_meanflow=convnext_mnist_imf \\
        --sampling flow:sampler=euler --sampling flow:sampler=heun,guidance=2

An arm is a recipe that is trained once: for the same time (--minutes; a short run first measures how many steps that
is, so the machine should be idle), for the same number of steps (--steps), or as long as the recipe says. With a
budget, the learning rate schedule ends when the budget does. Seconds are those of training alone, from metrics.jsonl,
without evaluations, pictures and compilation.

A row of the figure is an arm with the sampler settings of its recipe, or with those of --sampling, each of which adds a
row. A column is a number of network evaluations (--nfe). All cells start from the same noise and show the same classes,
one row of samples per class. If the data are digits, the scores of --samples samples by scripts/compare/score_digits.py
are shown below:

    accuracy  share of samples classified as the requested class
    spread    variation within a class, relative to real digits
    distance  distance to the nearest training image, relative to held-out real digits

and with --features the Fréchet distance of --num samples (`tinygen eval-fid`). The figure is DIR/objectives.png, all
numbers are in DIR/objectives.json, and a table is printed. Finished work is not repeated: rerun an interrupted command
to resume it.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import score_digits
from comparing import arguments, cells, picture, plan, runs

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
        description="Train objectives under the same budget and compare their samples at few network evaluations."
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder for the runs, the figure and the numbers")
    parser.add_argument(
        "--arm",
        action="append",
        metavar="NAME=RECIPE",
        help=f"a recipe to train; repeatable (default: {' '.join(ARMS)})",
    )
    parser.add_argument(
        "--sampling",
        action="append",
        default=[],
        metavar="NAME:KEY=VALUE[,KEY=VALUE]",
        help="add a row: arm NAME with these sampler settings; `NAME:` keeps its recipe's; repeatable",
    )
    parser.add_argument(
        "--nfe",
        default="1,2,4,16,50",
        help="network evaluations per sample, including those for guidance (default: %(default)s)",
    )
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--minutes", type=float, help="training time of each arm in minutes")
    budget.add_argument("--steps", type=int, help="training steps of each arm")
    parser.add_argument("--seed", type=int, default=0, help="seed of the training runs (default: %(default)s)")
    parser.add_argument(
        "--samples",
        type=int,
        default=500,
        help="samples per cell; all are scored, the first ones shown (default: %(default)s)",
    )
    arguments.add_scoring(parser, num=1000)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    try:
        nfes = nfes_of(args.nfe)
        arms = plan.arms_of(args.arm or ARMS, [f"--config.{each}" for each in args.set])
        rows = plan.rows_of(arms, args.sampling, nfes)
        check(args)
        judge = judge_of(arms[0].config, args.samples)
        facts = {arm.name: train(arm, args) for arm in arms}
        results = [[cell(row, nfe, args, judge) for nfe in nfes] for row in rows]
    except UserError as error:
        print(f"compare_objectives: {error}", file=sys.stderr)
        return 2
    show(args, facts, rows, results)
    return 0


def nfes_of(text: str) -> list[int]:
    """The distinct numbers of evaluations. Raises UserError for invalid ones."""
    try:
        nfes = list(dict.fromkeys(int(word) for word in text.split(",")))
    except ValueError:
        nfes = [0]
    if min(nfes) < 1:
        raise UserError(f"--nfe={text} is not a comma-separated list of positive integers")
    return nfes


def check(args: argparse.Namespace) -> None:
    """Raises UserError for invalid numbers, for a folder that cannot be created and for unknown features."""
    for name, value in {"minutes": args.minutes, "steps": args.steps}.items():
        if value is not None and not 0 < value < 1e9:
            raise UserError(f"--{name}={value} must be positive")
    for name, value in {"samples": args.samples, "num": args.num}.items():
        if value < 2:
            raise UserError(f"--{name}={value} must be at least 2")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out={args.out}: {error.strerror}") from error
    runs.check_features(args.features)


def judge_of(config: Config, num: int) -> Any:
    """The classifier of digits; None, with a message, if the data are not labelled digits."""
    data, classes = config.data.name, score_digits.NUM_CLASSES
    if data not in score_digits.SIZES or not config.data.label:
        runs.say(
            f"{data}{'' if config.data.get('label', True) else ' without labels'}: accuracy, spread and distance need labelled digits "
            "and are skipped"
        )
        return None
    if num < 2 * classes:
        raise UserError(f"--samples={num} must be at least {2 * classes}: two of each class")
    return score_digits.judge_of(data)


def train(arm: plan.Arm, args: argparse.Namespace) -> dict[str, Any]:
    """Trains an arm and returns its cost and losses."""
    folder, settings, steps = args.out / arm.name, [f"--config.{each}" for each in args.set], args.steps
    if args.minutes:
        steps = runs.steps_within(args.minutes, arm.recipe, folder / "rate", args.seed, settings)
        runs.say(f"{arm.name}: {steps:,} steps in {args.minutes:g} minutes")
    if steps:
        settings += [f"--config.train.steps={steps}", "--config.optim.decay_steps=0"]
    run = runs.train([arm.recipe], folder / f"seed{args.seed}", args.seed, settings)[0]
    losses = runs.held_out(run)
    if arm.config.objective.name == "flow":
        losses["velocity_loss"] = losses["raw_loss"]
    parameters = json.loads((run / "manifest.json").read_text("utf-8"))["parameters"]
    return {"recipe": arm.recipe, "workdir": str(run), **runs.cost([run]), "parameters": parameters, **losses}


def cell(row: plan.Row, nfe: int, args: argparse.Namespace, judge: Any) -> dict[str, Any]:
    """The scores of a cell and the folder of its samples, or the reason why there are none."""
    if row.faults[nfe]:
        return {"requested_nfe": nfe, "impossible": row.faults[nfe]}
    place = args.out / row.arm.name / f"seed{args.seed}"
    settings = [f"--nfe={nfe}", *(f"--{word}" for word in row.words)]
    folder = place / "cells" / "-".join([f"nfe={nfe}", *row.words])
    record = cells.draw_samples(place / "0", folder, args.samples, settings)
    found: dict[str, Any] = {"requested_nfe": nfe, "nfe": record["nfe"], "samples": str(folder)}
    if judge is not None:
        found |= cells.score(folder, row.arm.config.data.name, judge)
    if args.features:
        # An existing score is only reused if it agrees in these fields.
        protocol = {name: record.get(name) for name in DENOISING}
        found |= runs.distances(place / "0", args.features, args.num, settings, **protocol)
    return found


def show(
    args: argparse.Namespace,
    facts: dict[str, dict[str, Any]],
    rows: Sequence[plan.Row],
    results: Sequence[Sequence[dict[str, Any]]],
) -> None:
    """Prints two tables and writes the numbers and the figure."""
    settings = {name: getattr(args, name) for name in ("seed", "minutes", "steps", "samples", "features", "num")}
    numbers = [{"arm": row.arm.name, "settings": row.settings, "cells": own} for row, own in zip(rows, results, strict=True)]
    (args.out / "objectives.json").write_text(json.dumps({**settings, "arms": facts, "rows": numbers}, indent=1) + "\n", "utf-8")
    scores = [(row.name, each) for row, own in zip(rows, results, strict=True) for each in own]
    print(runs.table([(name, without(each, "recipe", "workdir")) for name, each in facts.items()]), end="\n\n")
    print(runs.table([(name, without(each, "samples", "impossible")) for name, each in scores]), end="\n\n")
    title = [rows[0].arm.config.data.name, f"{args.samples:,} samples per cell scored"]
    if args.minutes or args.steps:
        title.insert(1, f"{f'{args.minutes:g} minutes' if args.minutes else f'{args.steps:,} steps'} of training per arm")
    if args.features:
        title.append(f"FD of {args.num:,} samples in the features of {Path(args.features).name}")
    figure_rows = [picture.Row(row.name, about(facts[row.arm.name]), list(map(shown, own))) for row, own in zip(rows, results, strict=True)]
    picture.draw(
        args.out / "objectives.png",
        ", ".join(title),
        [f"nfe {each['requested_nfe']}" for each in results[0]],
        figure_rows,
        cells.COLUMNS,
    )
    print(args.out / "objectives.png")


def without(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def about(facts: dict[str, Any]) -> list[str]:
    """What the figure says about the training of an arm."""
    seconds = facts["seconds"]
    lines = [f"{facts['steps']:,.0f} steps, {f'{seconds:.0f} s' if seconds < 100 else f'{seconds / 60:.0f} min'}"]
    lines += [f"{facts['parameters'] / 1e6:.2f}M parameters"]
    return lines + ([f"velocity loss {facts['velocity_loss']:.4f}"] if "velocity_loss" in facts else [])


def shown(found: dict[str, Any]) -> picture.Cell:
    """A cell of the figure."""
    if "impossible" in found:
        return picture.Cell(reason=found["impossible"])
    lines = []
    if "accuracy" in found:
        lines += [
            f"{100 * found['accuracy']:.1f} % correct",
            f"spread {found['spread']:.2f}, distance {found['distance']:.2f}",
        ]
    lines += [f"{'FID' if name == 'fid' else 'FD'} {value:.3g}" for name, value in found.items() if name == "fid" or name.startswith("fd_")]
    lines += [f"{found['nfe']} evaluations used"] if found["nfe"] != found["requested_nfe"] else []
    return picture.Cell(cells.pictures(Path(found["samples"])), lines)


if __name__ == "__main__":
    sys.exit(main())
