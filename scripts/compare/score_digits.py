"""Scores class-conditional digits: do they match their labels, are they as varied as real digits, and are they new?

    tinygen sample ... --out=DIR
    python scripts/compare/score_digits.py --samples=DIR

DIR contains greyscale PNGs and `samples.json`: {"samples": [{"file": "00000.png", "label": 3}, ...]}. At least 50
samples per class give stable results; it takes about 10 seconds on one core. The exit status is 0 if all three
conditions hold, else 1:

accuracy   >= 0.97  share of samples that a classifier assigns to their label. The classifier is a support vector
                    machine (RBF, C=10) on 40 principal components of the 4,500 real training images and their shifts by
                    one pixel. Its accuracy on the 500 held-out real digits is 0.972; without the shifts 0.966, less
                    than is required here.
spread     >= 0.8   standard deviation of a pixel within a class, averaged over the pixels, relative to real training
                    images; mean over the classes. Since the deviation of few images is biased, it is computed on
                    equally many samples and real images, averaged over 10 draws from the larger set.
distance   >= 0.8   median L2 distance (pixels in [0, 1]) from a sample to the nearest training image, relative to that
                    of held-out real digits. Copies of training images give 0.

Real held-out digits score 0.972, 1.03 and 1. With 50 samples per class, the spread of a single class of real digits
still varies between 0.99 and 1.20, so the minimum is printed but not tested. The conditions do not notice noise that
the classifier tolerates: look at the samples too.

`--data=digits8` scores 8x8 samples in the same way; 0..255 in their PNGs stand for the grey levels 0..16.
Needs tinygen, NumPy, Pillow and scikit-learn.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tinygen.data import builtin
from tinygen.errors import UserError

ACCURACY, SPREAD, DISTANCE = 0.97, 0.8, 0.8
PROVENANCE = ("guidance", "nfe", "seed", "checkpoint_step")
NUM_CLASSES = 10
SIZES = {"digits": 28, "digits8": 8}  # image size in pixels
DRAWS = 10


def read_samples(folder: Path, size: int) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Images [N, size, size] in [0, 1], their labels [N], and the content of samples.json."""
    if not folder.is_dir():
        raise UserError(f"no such folder: {folder}")
    listing = folder / "samples.json"
    if not listing.is_file():
        raise UserError(f"no samples.json in {folder}: was it written by `tinygen sample`?")
    try:
        record = json.loads(listing.read_text("utf-8"))
        rows = [(folder / str(row["file"]), row["label"]) for row in record["samples"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{listing}: expected an object with `samples`, a list of {{file, label}} ({type(error).__name__}: {error})"
        ) from None
    images = []
    for path, label in rows:
        if type(label) is not int or not 0 <= label < NUM_CLASSES:
            raise UserError(
                f"{listing}: label {label!r} of {path.name} is not a class 0..{NUM_CLASSES - 1}: are the samples class-conditional?"
            )
        try:
            with Image.open(path) as image:
                images.append(np.asarray(image.convert("L"), np.float32) / 255)
        except OSError as error:
            raise UserError(f"cannot read {path}: {error}") from None
        if images[-1].shape != (size, size):
            height, width = images[-1].shape
            raise UserError(f"{path} is {width}x{height}, expected {size}x{size}: is --data correct?")
    labels = np.array([label for _, label in rows], np.int64)
    few = [str(c) for c in range(NUM_CLASSES) if np.sum(labels == c) < 2]
    if few:
        raise UserError(f"{listing}: each class needs at least 2 samples; too few of {', '.join(few)}")
    return np.stack(images), labels, record


def train_judge(x: np.ndarray, labels: np.ndarray):
    """A classifier of images [N, H, W]; its `predict` takes flattened ones."""
    try:
        from sklearn.decomposition import PCA
        from sklearn.pipeline import make_pipeline
        from sklearn.svm import SVC
    except ImportError:
        raise UserError("scikit-learn is missing: pip install scikit-learn") from None
    height, width = x.shape[1:]
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    moves = ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2))
    shifted = np.concatenate([padded[:, top : top + height, left : left + width] for top, left in moves])
    return make_pipeline(PCA(40, random_state=0), SVC(C=10)).fit(_flat(shifted), np.tile(labels, len(moves)))


def spread_ratio(samples: np.ndarray, real: np.ndarray) -> float:
    """Pixel variation of images of one class relative to real ones: 1 = as much, 0 = none."""
    num = min(len(samples), len(real))
    rng = np.random.default_rng(0)

    def spread(images: np.ndarray) -> float:
        draws = (images[rng.permutation(len(images))[:num]] for _ in range(DRAWS))
        return float(np.mean([draw.std(axis=0).mean() for draw in draws]))

    return spread(samples) / spread(real)


def nearest_distance(images: np.ndarray, others: np.ndarray) -> float:
    """Median over `images` of the L2 distance to the nearest of `others`."""
    a, b = _flat(images).astype(np.float64), _flat(others).astype(np.float64)
    squared = (a**2).sum(1)[:, None] - 2 * a @ b.T + (b**2).sum(1)
    return float(np.median(np.sqrt(np.maximum(squared.min(1), 0))))


def judge_of(data: str):
    """The classifier of a data set's digits, trained on its training images."""
    real, labels, held_out = _real(data)
    return train_judge(real[:-held_out], labels[:-held_out])


def score(x: np.ndarray, labels: np.ndarray, data: str, judge: Any = None) -> dict[str, Any]:
    """All numbers of the report, for samples `x` [N, H, W] in [0, 1] with the requested `labels` [N].

    judge: `judge_of(data)`, if already trained
    """
    real, real_labels, held_out = _real(data)
    train, train_labels, test, test_labels = real[:-held_out], real_labels[:-held_out], real[-held_out:], real_labels[-held_out:]
    judge = judge_of(data) if judge is None else judge
    right = judge.predict(_flat(x)) == labels
    classes = range(NUM_CLASSES)
    spreads = [spread_ratio(x[labels == c], train[train_labels == c]) for c in classes]
    near, near_real = nearest_distance(x, train), nearest_distance(test, train)
    return {
        "data": data,
        "samples": [int(np.sum(labels == c)) for c in classes],
        "held_out": held_out,
        "held_out_accuracy": float(np.mean(judge.predict(_flat(test)) == test_labels)),
        "accuracy": float(right.mean()),
        "class_accuracy": [float(right[labels == c].mean()) for c in classes],
        "class_spread": spreads,
        "spread": float(np.mean(spreads)),
        "min_spread": min(spreads),
        "nearest": near,
        "held_out_nearest": near_real,
        "distance": near / near_real,
    }


def verdicts(result: dict[str, Any]) -> dict[str, bool]:
    return {key: result[key] >= bound for key, bound in (("accuracy", ACCURACY), ("spread", SPREAD), ("distance", DISTANCE))}


def report(result: dict[str, Any], provenance: dict[str, Any]) -> str:
    lines = [f"{sum(result['samples'])} samples of {result['data']}"]
    lines += [f"  {key}: {value}" for key, value in provenance.items()]
    lines += [
        f"accuracy of the classifier on {result['held_out']} held-out real digits: {result['held_out_accuracy']:.3f}",
        "",
    ]
    lines += ["class  samples  accuracy  spread"]
    rows = zip(result["samples"], result["class_accuracy"], result["class_spread"], strict=True)
    lines += [f"{c:>5}  {num:>7}  {accuracy:>8.3f}  {spread:>6.3f}" for c, (num, accuracy, spread) in enumerate(rows)]
    lines += [f"{'min':>5}  {min(result['samples']):>7}  {min(result['class_accuracy']):>8.3f}  {result['min_spread']:>6.3f}", ""]
    lines += [
        f"median distance to the nearest training image: {result['nearest']:.2f}, of held-out real digits {result['held_out_nearest']:.2f}"
    ]
    bounds = {"accuracy": ACCURACY, "spread": SPREAD, "distance": DISTANCE}
    lines += [f"{'PASS' if ok else 'FAIL'}  {key:<8}  {result[key]:.3f} >= {bounds[key]}" for key, ok in verdicts(result).items()]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Score class-conditional digits: accuracy, variation and novelty.")
    parser.add_argument("--samples", type=Path, required=True, metavar="DIR", help="folder written by `tinygen sample --out=DIR`")
    parser.add_argument("--data", choices=SIZES, default="digits", help="data set of the samples (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all numbers to this file")
    args = parser.parse_args(argv)
    try:
        if args.json and not args.json.absolute().parent.is_dir():
            raise UserError(f"no such folder: {args.json.absolute().parent}")
        x, labels, record = read_samples(args.samples, size=SIZES[args.data])
        result = score(x, labels, args.data)
    except UserError as error:
        print(f"score_digits: {error}", file=sys.stderr)
        return 2
    provenance = _provenance(record)
    print(report(result, provenance))
    passed = verdicts(result)
    if args.json:
        args.json.write_text(json.dumps({**result, "passed": passed, "provenance": provenance}, indent=2) + "\n", "utf-8")
    return 0 if all(passed.values()) else 1


def _real(data: str) -> tuple[np.ndarray, np.ndarray, int]:
    """Real images [N, H, W] in [0, 1], their labels, and the number of held-out images at the end."""
    arrays, meta = builtin.load(data)
    return arrays["x"][..., 0].astype(np.float32) / meta["max_value"], arrays["label"].astype(np.int64), meta["validation"]


def _provenance(record: dict[str, Any]) -> dict[str, Any]:
    """How the samples were drawn, from the fields of samples.json or of its samples."""
    found = {}
    for key in PROVENANCE:
        values = [record[key]] if key in record else [row[key] for row in record["samples"] if key in row]
        distinct = list(dict.fromkeys(map(str, values)))
        if distinct:
            found[key] = ", ".join(distinct) if len(distinct) <= 4 else f"{len(distinct)} different"
    return found


def _flat(images: np.ndarray) -> np.ndarray:
    return images.reshape(len(images), -1)


if __name__ == "__main__":
    sys.exit(main())
