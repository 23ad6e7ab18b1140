"""A cell of a comparison: the samples of a run with some number of network evaluations and some settings, shown and scored."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import score_digits
from PIL import Image

from comparing import runs
from tinygen.errors import UserError

JUDGED = ("accuracy", "spread", "distance")  # of `score_digits.score`
ROWS, COLUMNS = 10, 6  # samples that a cell shows: a row a class, where there are so few


def drawn(run: Path, folder: Path, num: int, settings: Sequence[str]) -> dict[str, Any]:
    """samples.json of `num` samples in `folder`, drawn now where that was not done. settings: flags of `tinygen sample`"""
    command = [f"--ckpt={run}", f"--num={num}", *settings]
    noted = folder / "command.json"
    if not (noted.exists() and json.loads(noted.read_text("utf-8")) == command):
        runs.say(f"{num} samples of {run}: {' '.join(settings)}")
        runs.call("sample", *command, f"--out={folder}")
        noted.write_text(json.dumps(command))  # last: what is noted is there
    return record_of(folder)


def record_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "samples.json").read_text("utf-8"))


def judged(folder: Path, data: str, judge: Any) -> dict[str, float]:
    """The JUDGED numbers of digits. judge: the result of `score_digits.judge_of(data)`"""
    x, labels, _ = score_digits.read_samples(folder, score_digits.SIZES[data])
    result = score_digits.score(x, labels, data, judge)
    return {name: result[name] for name in JUDGED}


def shown(folder: Path) -> np.ndarray:
    """The images [N, H, W, C] of a cell, COLUMNS per row: the first of each label, or the first of all."""
    rows = [row for row in record_of(folder)["samples"] if row["file"].endswith(".png")]
    if not rows:
        raise UserError(f"{folder} holds no images: only models of images can be compared here")
    labels = sorted({row["label"] for row in rows if "label" in row})
    if 1 < len(labels) <= ROWS:
        rows = [each for label in labels for each in [row for row in rows if row["label"] == label][:COLUMNS]]
    pictures = []
    for row in rows[: ROWS * COLUMNS]:
        with Image.open(folder / row["file"]) as image:
            pixels = np.asarray(image)
        pictures.append(pixels[..., None] if pixels.ndim == 2 else pixels)
    return np.stack(pictures)
