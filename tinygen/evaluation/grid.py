"""Scores over a grid of sampler settings: parsing, combinations, a table, a plot."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from tinygen.errors import UserError
from tinygen.media import curve, image
from tinygen.workdir.files import folder

TYPES: dict[str, type] = {"nfe": int, "guidance": float, "sampler": str, "time_grid": str, "shift": float, "tolerance": float}
TYPES |= {"temperature": float, "temperature_decay": float, "top_k": int, "top_p": float}
TYPES |= {"schedule": str, "choice_temperature": float, "remask": float, "proportion": float, "proportion_decay": float, "min_steps": int}
WIDE = 8  # ratio of greatest to least value from which an axis is logarithmic
MOST = 100  # combinations; more is a typing error


def parse(words: Sequence[str]) -> dict[str, list[Any]]:
    """Parses words such as "guidance=1,1.5,2" to {setting: values}. Raises UserError for malformed ones.

    >>> parse(["guidance=1,1.5", "nfe=4,25"])
    {'guidance': [1.0, 1.5], 'nfe': [4, 25]}
    """
    points: dict[str, list[Any]] = {}
    for word in words:
        name, _, values = word.partition("=")
        if name not in TYPES or not values:
            raise UserError(
                f"--grid {word}: write SETTING=VALUE,VALUE with {', '.join(TYPES)}, for example --grid guidance=1,1.5,2 nfe=4,25"
            )
        if name in points:
            raise UserError(f"--grid {word}: {name} is given twice: write all its values in one word")
        try:
            points[name] = list(dict.fromkeys(TYPES[name](value) for value in values.split(",")))
        except ValueError as error:
            raise UserError(f"--grid {word}: {name} takes {'whole numbers' if TYPES[name] is int else 'numbers'}") from error
    if (num := math.prod(map(len, points.values()))) > MOST:
        raise UserError(f"--grid: {num} combinations, at most {MOST} are allowed")
    return points


def combinations(points: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Every combination, the last setting varying fastest; a single {} if there are no points."""
    for values in itertools.product(*points.values()):
        yield dict(zip(points, values, strict=True))


def table(points: Mapping[str, Sequence[Any]], values: Sequence[float], name: str) -> str:
    """One line per combination: settings and score. values: in the order of `combinations`"""
    lines = [[*points, name]] + [
        [*map(str, point.values()), f"{value:.5g}"] for point, value in zip(combinations(points), values, strict=True)
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  " + "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def plot(points: Mapping[str, Sequence[Any]], values: Sequence[float], name: str, path: epath.Path) -> bool:
    """Plots the score against the numeric setting with the most values, a curve per combination of the rest. False if there is none."""
    numeric = [setting for setting in points if TYPES[setting] is not str and len(points[setting]) > 1]
    if not numeric:
        return False
    across = max(numeric, key=lambda setting: len(points[setting]))
    axis = list(points).index(across)
    scores = np.moveaxis(np.reshape(values, [len(each) for each in points.values()]), axis, 0).reshape(len(points[across]), -1)
    order = np.argsort(points[across])
    others = combinations({setting: each for setting, each in points.items() if setting != across})
    names = [", ".join(f"{setting} {value}" for setting, value in other.items()) or name for other in others]
    curves = np.column_stack([np.asarray(points[across], float)[order], scores[order]])
    ends = min(points[across]), max(points[across])
    picture = curve.plot(curves, names, across, name, log_x=ends[0] > 0 and WIDE * ends[0] <= ends[1])
    folder(path.parent).write(path.name, image.png(picture))
    return True
