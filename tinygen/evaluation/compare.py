"""`tinygen eval-fid --compare A B`: shows two scores of the same protocol side by side; reads the record of scores."""

import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from tinygen.errors import UserError, in_line, listed, unknown
from tinygen.evaluation.metrics.protocol import unlike
from tinygen.evaluation.scores import NOTE
from tinygen.system.terminal import say
from tinygen.workdir.files import MIB, folder, json_object

RECORD = "eval.jsonl"
LARGEST = 4 * MIB  # read from the end of a record
NEWEST = 100  # newest scores of a record that are compared
APART = ("_stderr", "_std", "_infinity")  # suffixes of fields that belong to a score


def main(places: Sequence[str], allowed: Sequence[str]) -> int:
    """Prints the newest comparable scores of two runs, folders or eval.jsonl files. Raises UserError, naming the fields, if none are.

    allowed: fields of the protocol that may differ
    """
    if len(places) != 2:
        raise UserError("--compare takes two workdirs or files given to --out: --compare runs/a scores.jsonl")
    records = [lines(place) for place in places]
    fields = {field for line in itertools.chain(*records) for field in line["protocol"]}
    for field in allowed:
        if field not in fields:
            raise unknown("--allow", field, sorted(fields))
    pairs = itertools.product(*records)
    alike = (pair for pair in pairs if not unlike(pair[0]["protocol"], pair[1]["protocol"], allowed) and common(*pair))
    one, other = next(alike, (records[0][0], records[1][0]))
    if differing := unlike(one["protocol"], other["protocol"], allowed):
        names = ",".join(each.partition(":")[0] for each in differing)
        raise UserError(
            f"these scores have different protocols and cannot be compared: {'; '.join(differing)}.\n"
            f"Rescore one with the other's protocol, or allow the difference: --allow={names}"
        )
    shared = common(one, other)
    if not shared:
        first, second = (listed(scores(line)) or "none" for line in (one, other))
        raise UserError(f"{places[0]} and {places[1]} have no score in common: {first}; {second}")
    width = max(map(len, shared))
    say("\n".join([f"  {place}: {in_line(about(line))}" for place, line in zip(places, (one, other), strict=True)]))
    say("\n".join(in_line(row(name, width, one, other)) for name in shared))
    return 0


def common(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The names of the scores that both lines have."""
    return [name for name in scores(one) if name in scores(other)]


def lines(place: str) -> list[dict[str, Any]]:
    """The lines of a record that have a protocol, newest first. Raises UserError if there are none."""
    path = record(place)
    above = folder(path.parent)
    if above.type_of(path.name) is None:
        raise UserError(f"--compare {place}: {path} is not there: give a run's workdir that 'tinygen eval-fid' has scored, or its --out")
    try:
        objects = [json_object(line) for line in above.lines(path.name, last=LARGEST)]
    except OSError as error:
        raise UserError(f"--compare {place}: {path}: {error.strerror}") from error
    if found := [line for line in reversed(objects) if line and isinstance(line.get("protocol"), dict)]:
        return found[:NEWEST]
    raise UserError(f"--compare {place}: {path} holds no score with a protocol; tinygen eval-fid writes them")


def record(place: str) -> epath.Path:
    """The record at a path: the file itself, or eval.jsonl in the folder."""
    path = epath.Path(place)
    return path / RECORD if path.is_dir() else path


def scores(line: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers in a line, except those that identify the samples or belong to another score."""
    named = {name: value for name, value in line.items() if name not in ("step", "seed") and not name.endswith(APART)}
    numbers = {name: value for name, value in named.items() if isinstance(value, int | float) and not isinstance(value, bool)}
    return {name: float(value) for name, value in numbers.items() if abs(value) <= sys.float_info.max}


def about(line: Mapping[str, Any]) -> str:
    subject = ", ".join(f"{name} {line[name]}" for name in ("checkpoint", "step", "samples", "seed") if name in line)
    return ", ".join(filter(None, (subject, str(line.get("time", "")), str(line.get(NOTE, "")))))


def row(name: str, width: int, one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Both values, their difference, and the difference in standard errors, where known."""
    a, b = one[name], other[name]
    errors = [error for line in (one, other) if isinstance(error := line.get(f"{name}_stderr"), float)]
    text = f"  {name:<{width}}  {a:.5g}  {b:.5g}  {b - a:+.3g}"
    if len(errors) == 2 and (error := math.hypot(*errors)):
        text += f"  ({abs(b - a) / error:.1f} standard errors)"
    return text
