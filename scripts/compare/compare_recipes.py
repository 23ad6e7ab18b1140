"""Compares recipes over several seeds: cost, loss and Fréchet distance, with their spread over the seeds.

    python scripts/compare/compare_recipes.py --out=runs/masking --features=runs/classify_digits \\
        --arm masked=microdit_digits,microdit_digits:unmasked --arm dense=microdit_digits:dense
    python scripts/compare/compare_recipes.py --out=runs/masking \
        --arm moe=microdit_digits:dense+moe --arm dense=microdit_digits:dense
    python scripts/compare/compare_recipes.py --out=runs/questions --sweep=convnext_mnist_imf --only=lr,batch --seeds=0

An arm is a recipe, or several stages separated by commas, each of which starts from the averaged weights of the one
before. For each seed all arms are trained in turn, in an order that is reversed with every seed. Then the held-out loss
of the last stage is measured (`tinygen eval`) and, with --features, the Fréchet distance of its samples (`tinygen
eval-fid`). The result is a table:

    steps          optimizer steps of all stages
    seconds        training time of all stages, from the rates in metrics.jsonl, without evaluations and pictures; mean
                   over the seeds
    loss           held-out loss of the averaged weights: mean ± standard deviation over the seeds, and each value
    raw_loss       the same without the weights of examples, if the objective has any. Weights change the scale of
                   `loss`: for MeanFlow it is about 1 whatever the model predicts, so compare `raw_loss` or scores
                   instead
    velocity_loss  the same for flow matching's loss of MeanFlow's velocity u(z, t, t), which is comparable with flow
                   matching
    fd_...         the same for the Fréchet distance

`--sweep` takes the arms from a recipe's sweep(): the recipe itself ("recipe"), and one arm for each entry, which
changes one or two keys; `--only=lr,batch` selects the entries whose names start with one of these.

Finished runs are not repeated: rerun an interrupted command to resume it, or add seeds and arms later. `--set
KEY=VALUE` overrides a config key of all recipes; the entries of a sweep take precedence.
"""

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from comparing import arguments, runs

from tinygen import config as config_lib
from tinygen.cli import main as cli
from tinygen.errors import UserError, unknown


class Arm(NamedTuple):
    """Recipes that are trained one after another, and overrides of all of them."""

    stages: list[str]
    settings: list[str]


def sweep_arms(recipe: str, only: str) -> dict[str, Arm]:
    """The arms of a recipe's sweep. only: prefixes of the names to select, separated by commas; "" = all"""
    base, entries, prefixes = config_lib.load(recipe), config_lib.sweep(recipe), only.strip(",").split(",")
    for prefix in prefixes:
        if entries and not any(name.startswith(prefix) for name in entries):
            raise unknown("sweep entry in --only:", prefix, entries)
    arms = {"recipe": Arm([recipe], [])}
    for name, config in entries.items():
        if not name.startswith(tuple(prefixes)):
            continue
        changes = config_lib.difference(base, config)
        arms[name] = Arm([recipe], [f"--config.{key}={new}" for key, (_, new) in changes.items() if new is not None])
    return arms


def parse_arms(words: Sequence[str]) -> dict[str, Arm]:
    """The arms of NAME=RECIPE[,RECIPE ...]."""
    arms = {}
    for word in words:
        name, _, stages = word.partition("=")
        if not name or not stages or name in arms:
            raise UserError(f"--arm={word}: expected NAME=RECIPE[,RECIPE ...] with a unique name")
        arms[name] = Arm(stages.split(","), [])
    if len(arms) < 2:
        raise UserError("pass --arm at least twice, or --sweep")
    return arms


def summary(measured: dict[str, list[dict[str, float]]]) -> str:
    """The table. measured: arm -> results of each seed"""
    rows = [(arm, {name: _cell(name, [each[name] for each in seeds]) for name in seeds[0]}) for arm, seeds in measured.items()]
    return runs.table(rows)


def _cell(name: str, values: Sequence[float]) -> str:
    mean = statistics.fmean(values)
    if name in ("steps", "seconds"):
        return f"{mean:.0f}"
    if len(values) == 1:
        return f"{mean:.4g}"
    return f"{mean:.4g} ± {statistics.stdev(values):.2g} ({', '.join(f'{value:.4g}' for value in values)})"


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train recipes with several seeds and compare their cost, loss and samples.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--arm",
        action="append",
        metavar="NAME=RECIPE[,RECIPE ...]",
        help="recipes to train one after another; pass at least twice",
    )
    what.add_argument("--sweep", metavar="RECIPE", help="compare a recipe with the entries of its sweep()")
    parser.add_argument("--only", default="", metavar="NAME[,NAME ...]", help="prefixes of the sweep entries to run (default: all)")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder for the runs")
    parser.add_argument("--seeds", default="0,1,2", help="seeds, separated by commas (default: %(default)s)")
    arguments.add_scoring(parser, num=4500)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    settings = [f"--config.{each}" for each in args.set]
    try:
        if args.only and not args.sweep:
            raise UserError("--only needs --sweep")
        arms = sweep_arms(args.sweep, args.only) if args.sweep else parse_arms(args.arm)
        seeds = seeds_of(args.seeds)
        measured: dict[str, list[dict[str, float]]] = {name: [] for name in arms}
        check(arms, settings, args)
        for turn, seed in enumerate(seeds):
            for name in list(arms)[:: -1 if turn % 2 else 1]:
                arm = arms[name]
                workdirs = runs.train(arm.stages, args.out / name / f"seed{seed}", seed, [*settings, *arm.settings])
                distances = runs.distances(workdirs[-1], args.features, args.num) if args.features else {}
                measured[name].append({**runs.cost(workdirs), **runs.held_out(workdirs[-1]), **distances})
    except UserError as error:
        print(f"compare_recipes: {error}", file=sys.stderr)
        return 2
    print(summary(measured))
    return 0


def check(arms: Mapping[str, Arm], settings: Sequence[str], args: argparse.Namespace) -> None:
    """Raises UserError for invalid recipes, features and numbers, before anything is trained."""
    for arm in arms.values():
        for recipe in arm.stages:
            config_lib.check(cli.configured(recipe, [*settings, *arm.settings])[0])
    runs.check_features(args.features)
    if args.num < 2:
        raise UserError(f"--num={args.num} must be at least 2")


def seeds_of(text: str) -> list[int]:
    """The seeds. Raises UserError for invalid and for repeated ones."""
    try:
        seeds = [int(seed) for seed in text.split(",")]
    except ValueError as error:
        raise UserError(f"--seeds={text} is not a comma-separated list of integers") from error
    if len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise UserError(f"--seeds={text} must be distinct and not negative")
    return seeds


if __name__ == "__main__":
    sys.exit(main())
