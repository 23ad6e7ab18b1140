"""Compares recipes over several seeds: their cost and their quality, with the spread between seeds.

    python scripts/compare/compare_recipes.py --out=runs/masking --features=runs/classify_digits \\
        --arm masked=microdit_digits,microdit_digits:unmasked --arm dense=microdit_digits:dense
    python scripts/compare/compare_recipes.py --out=runs/masking \
        --arm moe=microdit_digits:dense+moe --arm dense=microdit_digits:dense
    python scripts/compare/compare_recipes.py --out=runs/questions --sweep=convnext_mnist_imf --only=lr,batch --seeds=0

An arm is a recipe, or several separated by commas: each stage starts from the averaged weights of the previous one. For each seed
all arms are trained in turn, in an order that is reversed every seed; then the held-out loss of the last stage is computed (`tinygen
eval`) and, with --features, the Fréchet distance of its samples (`tinygen eval-fid`). The resulting table has

    steps          optimizer steps of all stages
    seconds        training time, without evaluations and previews: the sum of steps / rate over the lines of metrics.jsonl. Mean over
                   the seeds
    loss           held-out loss of the averaged weights: mean ± standard deviation over the seeds, and each value
    raw_loss       likewise, if the objective has it: the loss without weights of examples. Weights change the scale of `loss`: MeanFlow's
                   is about 1 whatever the model does, so compare raw losses or scores
    velocity_loss  likewise: flow matching's loss of MeanFlow's u(z, t, t), for comparison with flow matching
    fd_...         likewise, with --features

`--sweep` takes the arms from a recipe's function sweep(): the recipe itself ("recipe") and one arm per entry, which changes a key or two.
`--only=lr,batch` selects the entries whose names start with these.

Finished runs are not repeated: an interrupted call can be resumed, and more seeds or arms can be added later.
`--set KEY=VALUE` overrides a key of all recipes; entries of a sweep take precedence.
"""

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from comparing import runs

from tinygen import config as config_lib
from tinygen.cli import main as cli
from tinygen.errors import UserError, unknown


class Arm(NamedTuple):
    """Recipes that are trained one after another, and overrides for all of them."""

    stages: list[str]
    settings: list[str]


def asked(recipe: str, only: str) -> dict[str, Arm]:
    """The arms of a recipe and its sweep(). only: prefixes of the entries to use, separated by commas; "" = all"""
    own, entries, starts = config_lib.load(recipe), config_lib.sweep(recipe), only.strip(",").split(",")
    for start in starts:
        if entries and not any(name.startswith(start) for name in entries):
            raise unknown("entry of the sweep in --only:", start, entries)
    arms = {"recipe": Arm([recipe], [])}
    for name, config in entries.items():
        if not name.startswith(tuple(starts)):
            continue
        changes = config_lib.difference(own, config)
        arms[name] = Arm([recipe], [f"--config.{key}={new}" for key, (_, new) in changes.items() if new is not None])
    return arms


def named(words: Sequence[str]) -> dict[str, Arm]:
    """The arms of NAME=RECIPE[,RECIPE ...]."""
    arms = {}
    for word in words:
        name, _, stages = word.partition("=")
        if not name or not stages or name in arms:
            raise UserError(f"--arm={word}: write NAME=RECIPE[,RECIPE ...], each with its own name")
        arms[name] = Arm(stages.split(","), [])
    if len(arms) < 2:
        raise UserError("give --arm twice or more, or --sweep")
    return arms


def summary(measured: dict[str, list[dict[str, float]]]) -> str:
    """The table. measured: arm -> the numbers of each seed"""
    return runs.table([(arm, {name: _shown(name, [each[name] for each in seeds]) for name in seeds[0]}) for arm, seeds in measured.items()])


def _shown(name: str, values: Sequence[float]) -> str:
    mean = statistics.fmean(values)
    if name in ("steps", "seconds"):
        return f"{mean:.0f}"
    if len(values) == 1:
        return f"{mean:.4g}"
    return f"{mean:.4g} ± {statistics.stdev(values):.2g} ({', '.join(f'{value:.4g}' for value in values)})"


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains and compares recipes over several seeds.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--arm", action="append", metavar="NAME=RECIPE[,RECIPE ...]", help="an arm; give two or more")
    what.add_argument("--sweep", metavar="RECIPE", help="compare a recipe with the entries of its function sweep()")
    parser.add_argument("--only", default="", metavar="NAME[,NAME ...]", help="entries of the sweep whose names start with these (all)")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder of the runs")
    parser.add_argument("--seeds", default="0,1,2", help="seeds, separated by commas (0,1,2)")
    parser.add_argument(
        "--features", help="features for eval-fid: efflite0, inception or the workdir of a classifier; default: no distance"
    )
    parser.add_argument("--num", type=int, default=4500, help="samples per distance (4500)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of all recipes: train.steps=100")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    given = parse(argv)
    settings = [f"--config.{each}" for each in given.set]
    try:
        if given.only and not given.sweep:
            raise UserError("--only selects entries of a --sweep")
        arms = asked(given.sweep, given.only) if given.sweep else named(given.arm)
        seeds = seeds_of(given.seeds)
        measured: dict[str, list[dict[str, float]]] = {name: [] for name in arms}
        check(arms, settings, given)
        for turn, seed in enumerate(seeds):
            for name in list(arms)[:: -1 if turn % 2 else 1]:
                arm = arms[name]
                workdirs = runs.trained(arm.stages, given.out / name / f"seed{seed}", seed, [*settings, *arm.settings])
                distances = runs.distances(workdirs[-1], given.features, given.num) if given.features else {}
                measured[name].append({**runs.cost(workdirs), **runs.held_out(workdirs[-1]), **distances})
    except UserError as error:
        print(f"compare_recipes: {error}", file=sys.stderr)
        return 2
    print(summary(measured))
    return 0


def check(arms: Mapping[str, Arm], settings: Sequence[str], given: argparse.Namespace) -> None:
    """Raises UserError, before any training, for invalid recipes, features and numbers."""
    for arm in arms.values():
        for recipe in arm.stages:
            config_lib.check(cli.configured(recipe, [*settings, *arm.settings])[0])
    runs.check_features(given.features)
    if given.num < 2:
        raise UserError(f"--num={given.num}: a distance needs at least two samples")


def seeds_of(text: str) -> list[int]:
    """Raises UserError for invalid seeds and for a seed given twice, which would be one run counted twice."""
    try:
        seeds = [int(seed) for seed in text.split(",")]
    except ValueError as error:
        raise UserError(f"--seeds={text}: give whole numbers, separated by commas") from error
    if len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise UserError(f"--seeds={text}: give each seed once; seeds are 0 or larger")
    return seeds


if __name__ == "__main__":
    sys.exit(main())
