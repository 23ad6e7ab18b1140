"""A cell of a comparison: samples of a run with given network evaluations and sampler settings, shown and scored."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import score_digits
from PIL import Image

from comparing import runs
from tinygen.errors import UserError

SCORES = ("accuracy", "spread", "distance")  # of `score_digits.score`
ROWS, COLUMNS = 10, 6  # samples shown per cell; one row per class, if there are at most ROWS


def draw_samples(run: Path, folder: Path, num: int, settings: Sequence[str]) -> dict[str, Any]:
    """Draws `num` samples into `folder`, unless already done, and returns its samples.json.

    settings: flags of `tinygen sample`
    """
    command = [f"--ckpt={run}", f"--num={num}", *settings]
    marker = folder / "command.json"
    if not (marker.exists() and json.loads(marker.read_text("utf-8")) == command):
        runs.say(f"drawing {num} samples of {run}: {' '.join(settings)}")
        runs.call("sample", *command, f"--out={folder}")
        marker.write_text(json.dumps(command))  # last, once the samples are complete
    return record_of(folder)


def record_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "samples.json").read_text("utf-8"))


def score(folder: Path, data: str, judge: Any) -> dict[str, float]:
    """The SCORES of drawn digits. judge: from `score_digits.judge_of(data)`"""
    x, labels, _ = score_digits.read_samples(folder, score_digits.SIZES[data])
    result = score_digits.score(x, labels, data, judge)
    return {name: result[name] for name in SCORES}


def pictures(folder: Path) -> np.ndarray:
    """The pictures [N, H, W, C] that a cell shows, COLUMNS per row: the first of each label, or the first of all."""
    rows = [row for row in record_of(folder)["samples"] if row["file"].endswith(".png")]
    if not rows:
        raise UserError(f"{folder} has no pictures: only pictures can be compared")
    labels = sorted({row["label"] for row in rows if "label" in row})
    if 1 < len(labels) <= ROWS:
        rows = [each for label in labels for each in [row for row in rows if row["label"] == label][:COLUMNS]]
    found = []
    for row in rows[: ROWS * COLUMNS]:
        with Image.open(folder / row["file"]) as image:
            pixels = np.asarray(image)
        found.append(pixels[..., None] if pixels.ndim == 2 else pixels)
    return np.stack(found)
