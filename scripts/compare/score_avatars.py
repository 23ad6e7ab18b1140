"""Scores faces drawn from prompts: do they show the requested background, hair, skin and glasses?

    python scripts/compare/score_avatars.py --prompts-out=FILE --num=200     # write prompts, one per line
    tinygen sample --prompts=FILE ... --out=DIR
    python scripts/compare/score_avatars.py --samples=DIR                    # accuracy of the samples
    python scripts/compare/score_avatars.py --real                           # accuracy of the rule on real faces

All faces of the avatars' style "micah" have the same position and few colours, so a fixed rule on pixels recognises
them; nothing is learned. Its regions and thresholds were chosen on training faces only, never on samples. The colour of
a region is the palette's colour with the largest sum over pixels of exp(-d^2 / 2 SPREAD^2), where d is the distance of
a pixel in RGB.

background  6 colours, in both upper corners, where there is no hair
hair        9 colours, on the crown, which all hair styles cover; "none" if it is skin. A turban counts as hair: faces
            without hair are not scored
skin        4 colours, between eyes and mouth, and on the neck
glasses     yes or no, below the eyes: the share of pixels off the line from black to the colour of the skin. Frames are
            thin red, blue or yellow lines; eyes, noses and outlines are above, or on that line

On the 1,000 held-out faces the accuracy of each attribute is 1.000, at 64x64 and resized to 32x32. On perturbed
training faces it stays at 1 for shifts by one pixel (glasses at 32x32: 0.84, where eyes reach the rims); with a tint of
10 levels standard deviation the background has 0.95, the rest 0.99; with noise of 10 levels at 64x64 all have 0.997. At
32x32 such noise is mistaken for glasses: 0.58, the rest 0.999.

The requested values are read from the prompt, from words such as "blue background", "dark brown skin", "short black
hair" or "a blond bob". Attributes that a prompt does not name are not scored. The exception is glasses: captions never
mention their absence, so a prompt that names any of the four attributes but no glasses requests none, as does "no
glasses". The table has a row for each attribute: the number of scored samples, the accuracy with its 95 % interval
(Wilson), the accuracy of always answering with the most frequently requested value (chance), and the most frequent
confusions.

`--prompts-out` writes captions of faces that are not in the data set: background, hair colour and skin are drawn
uniformly, every other face has glasses, none has a turban. The exit status does not depend on the accuracy. Needs
tinygen; --real draws the data set if it does not exist yet.
"""

import argparse
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from scipy import stats

from tinygen.config import schema
from tinygen.data.avatars.drawing import NONE, attributes, choose
from tinygen.data.avatars.styles import BACKGROUND, HAIR, SKIN, STYLES
from tinygen.errors import UserError

STYLE = "micah"
ATTRIBUTES = ("background", "hair", "skin", "glasses")
FACES = schema.DATASETS["avatars"]["num"].default

# Regions: (top, bottom, left, right) in 32nds of the image size.
CORNERS = ((0, 8, 0, 5), (0, 8, 27, 32))
CROWN = ((4, 7, 13, 17),)
CHEEKS = ((9, 16, 14, 21), (23, 26, 12, 16))
RIMS = ((12, 15, 15, 22),)

# Distances in RGB, 0..255
SPREAD = 20.0
OWN_SPREAD = 10.0  # for the mean colour of the skin: pixels at edges, which are mixtures, count less
TINT = {32: 20.0, 64: 26.0}  # at 32 a frame is thinner than a pixel, so it mixes with the skin
FRAMED = 0.1  # share of pixels; on training faces at most 0.048 without glasses and at least 0.14 with them

_NOUNS = {phrase.split()[-1] for part in STYLES[STYLE].parts if part.name == "hair" for phrase in part.words}
_NAMED = {
    "background": re.compile(rf"\b({'|'.join(BACKGROUND)}) background\b"),
    "hair": re.compile(rf"\b({'|'.join(HAIR)}) ({'|'.join(sorted(_NOUNS))})\b"),
    # The longest first: "dark brown" ends in "brown".
    "skin": re.compile(rf"\b({'|'.join(sorted(SKIN, key=len, reverse=True))}) skin\b"),
}


class Row(NamedTuple):
    """The result of one attribute.

    num: number of scored samples
    interval: 95 % confidence interval of the accuracy
    chance: accuracy of the best constant answer
    confused: (requested, found, count), most frequent first
    """

    num: int
    accuracy: float
    interval: tuple[float, float]
    chance: float
    confused: list[tuple[str, str, int]]


def requested(prompt: str) -> dict[str, str]:
    """The values that a prompt requests, attribute -> value, by the conventions above; {} if it names no attribute.

    >>> requested("a person with tan skin and short black hair, on a green background")
    {'background': 'green', 'hair': 'black', 'skin': 'tan', 'glasses': 'no'}
    """
    text = " ".join(prompt.lower().split())
    found = {attribute: named[1] for attribute, pattern in _NAMED.items() if (named := pattern.search(text))}
    glasses = re.search(r"\bglasses\b", text)
    if found or glasses:
        found["glasses"] = (
            "yes" if glasses and not re.search(r"\b(no|without|without any|not wearing|not wearing any) glasses\b", text) else "no"
        )
    return found


def read(images: np.ndarray) -> dict[str, list[str]]:
    """The values that images [N, S, S, 3] in 0..255 show, for S = 32 or 64: attribute -> N values."""
    corners = _closeness(_pixels(images, CORNERS), BACKGROUND)
    crown = _closeness(_pixels(images, CROWN), {**HAIR, **{f"{tone} skin": color for tone, color in SKIN.items()}})
    cheeks = _pixels(images, CHEEKS)
    tone = _closeness(cheeks, SKIN).sum(1).argmax(1)
    own = np.take_along_axis(_closeness(cheeks, SKIN, OWN_SPREAD), tone[:, None, None], axis=2)
    framed = _framed(images, (cheeks * own).sum(1) / own.sum(1))
    crown_names = [*HAIR, *[NONE] * len(SKIN)]
    return {
        "background": [list(BACKGROUND)[index] for index in corners.sum(1).argmax(1)],
        "hair": [crown_names[index] for index in crown.sum(1).argmax(1)],
        "skin": [list(SKIN)[index] for index in tone],
        "glasses": ["yes" if each else "no" for each in framed],
    }


def score(images: np.ndarray, prompts: list[str]) -> dict[str, Row]:
    """A row for each attribute that any prompt of the images [N, S, S, 3] names."""
    shown, wanted = read(images), [requested(prompt) for prompt in prompts]
    rows = {}
    for attribute in ATTRIBUTES:
        pairs = Counter((want[attribute], saw) for want, saw in zip(wanted, shown[attribute], strict=True) if attribute in want)
        if not pairs:
            continue
        num, right = pairs.total(), sum(count for (want, saw), count in pairs.items() if want == saw)
        frequency: Counter[str] = Counter()
        for (want, _), count in pairs.items():
            frequency[want] += count
        interval = stats.binomtest(right, num).proportion_ci(method="wilson")
        rows[attribute] = Row(
            num=num,
            accuracy=right / num,
            interval=(float(interval.low), float(interval.high)),
            chance=max(frequency.values()) / num,
            confused=[(want, saw, count) for (want, saw), count in pairs.most_common() if want != saw],
        )
    return rows


def read_samples(folder: Path, size: int) -> tuple[np.ndarray, list[str]]:
    """Images uint8 [N, size, size, 3] and their prompts. Raises UserError for a folder without such samples."""
    listing = folder / "samples.json"
    if not listing.is_file():
        raise UserError(f"--samples={folder}: no samples.json: pass the folder that `tinygen sample --prompt=... --out=DIR` wrote")
    try:
        rows = [(folder / str(row["file"]), row.get("prompt")) for row in json.loads(listing.read_text("utf-8"))["samples"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{listing}: expected `samples`, a list of {{file, prompt}} ({type(error).__name__}: {error})") from None
    for path, prompt in rows:
        if not isinstance(prompt, str):
            raise UserError(f"{listing}: {path.name} has no prompt: draw the samples with `tinygen sample --prompt=...`")
    if not any(requested(prompt) for _, prompt in rows):
        raise UserError(f"{listing}: no prompt names a {', '.join(ATTRIBUTES[:-1])} or glasses of the avatars' captions")
    images = []
    for path, _ in rows:
        try:
            with Image.open(path) as image:
                images.append(np.asarray(image.convert("RGB")))
        except (OSError, ValueError) as error:
            raise UserError(f"cannot read {path}: {error}") from None
        if images[-1].shape != (size, size, 3):
            height, width = images[-1].shape[:2]
            raise UserError(f"{path} is {width}x{height}, expected {size}x{size}: --size={'|'.join(map(str, TINT))}?")
    return np.stack(images), [prompt for _, prompt in rows]


def read_real(size: int, data_dir: str) -> tuple[np.ndarray, list[str]]:
    """The held-out faces uint8 [N, size, size, 3], resized as for training, and their captions."""
    from tinygen.data.avatars import builder as avatars_builder
    from tinygen.data.tfds import images as tfds  # slow to import, and only needed here

    builder = avatars_builder.builder(STYLE, FACES, data_dir or None)
    held_out = tfds.source(builder, "train", "validation", "", "", (size,), "crop", 3, False).splits["validation"]
    every = np.arange(len(held_out))
    return np.round((held_out.take(every)["x"] + 1) * 127.5).astype(np.uint8), held_out.captions(every)


def write_prompts(path: Path, num: int, seed: int) -> None:
    """Writes `num` captions of faces with hair, every other one with glasses, determined by the seed."""
    if num < 1 or seed < 0:
        raise UserError(f"--num={num} --seed={seed}: the number must be positive, and the seed not negative")
    names, rng = attributes(STYLE), np.random.default_rng(seed)
    prompts: list[str] = []
    while len(prompts) < num:
        _, labels, caption = choose(STYLE, int(rng.integers(FACES, 2**31)))
        if names["hair_color"][labels["hair_color"]] != NONE and bool(labels["glasses"]) == (len(prompts) % 2 == 0):
            prompts.append(caption)
    try:
        path.write_text("\n".join(prompts) + "\n", "utf-8")
    except OSError as error:
        raise UserError(f"--prompts-out={path}: {error.strerror}") from None


def report(rows: dict[str, Row]) -> str:
    lines = [
        f"{'':<10}  {'scored':>6}  {'accuracy':>8}  {'95 % interval':>13}  {'chance':>6}  most frequent confusions (requested -> found)"
    ]
    for attribute, row in rows.items():
        worst = ", ".join(f"{want} -> {saw} {count}" for want, saw, count in row.confused[:4]) or "-"
        low, high = row.interval
        lines.append(f"{attribute:<10}  {row.num:>6}  {row.accuracy:>8.3f}  {low:.3f} - {high:.3f}  {row.chance:>6.3f}  {worst}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Score faces drawn from prompts: do they show the requested background, hair, skin and glasses?"
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--real", action="store_true", help="score the rule itself, on held-out real faces")
    what.add_argument("--samples", type=Path, metavar="DIR", help="score samples drawn by `tinygen sample` from prompts")
    what.add_argument("--prompts-out", type=Path, metavar="FILE", help="write prompts for `tinygen sample --prompts`")
    parser.add_argument("--size", type=int, choices=TINT, default=64, help="image size in pixels (default: %(default)s)")
    parser.add_argument("--num", type=int, default=200, help="prompts to write (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the prompts (default: %(default)s)")
    parser.add_argument(
        "--data-dir",
        default="",
        metavar="DIR",
        help="folder of the real faces, like config.data.data_dir (default: that of TFDS)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all numbers to this file")
    args = parser.parse_args(argv)
    try:
        if args.prompts_out:
            write_prompts(args.prompts_out, args.num, args.seed)
            return 0
        if args.json and not args.json.absolute().parent.is_dir():
            raise UserError(f"--json={args.json}: no such folder")
        images, prompts = read_real(args.size, args.data_dir) if args.real else read_samples(args.samples, args.size)
    except UserError as error:
        print(f"score_avatars: {error}", file=sys.stderr)
        return 2
    rows = score(images, prompts)
    print(
        f"{len(images)} {'held-out real faces' if args.real else f'samples in {args.samples}'}, {args.size}x{args.size}",
        report(rows),
        sep="\n",
    )
    if args.json:
        numbers: dict[str, Any] = {attribute: row._asdict() for attribute, row in rows.items()}
        args.json.write_text(json.dumps(numbers, indent=2) + "\n", "utf-8")
    return 0


def _pixels(images: np.ndarray, boxes: tuple[tuple[int, int, int, int], ...]) -> np.ndarray:
    """The pixels [N, P, 3] of images [N, S, S, 3] in some regions."""
    unit = images.shape[1] // 32
    parts = [images[:, unit * top : unit * bottom, unit * left : unit * right] for top, bottom, left, right in boxes]
    return np.concatenate([part.reshape(len(images), -1, 3) for part in parts], axis=1).astype(np.float64)


def _closeness(pixels: np.ndarray, palette: dict[str, str], spread: float = SPREAD) -> np.ndarray:
    """The weight of each pixel [N, P, 3] for each colour of a palette: [N, P, C]."""
    colors = [np.array(list(bytes.fromhex(color.removeprefix("#"))), np.float64) for color in palette.values()]
    return np.stack([np.exp(-((pixels - color) ** 2).sum(-1) / (2 * spread**2)) for color in colors], axis=-1)


def _framed(images: np.ndarray, skin: np.ndarray) -> np.ndarray:
    """Whether images [N, S, S, 3] with skin colours [N, 3] show frames of glasses: bool [N]."""
    pixels, line = (
        _pixels(images, RIMS),
        skin / np.maximum(np.linalg.norm(skin, axis=-1, keepdims=True), 1),
    )  # avoids division by zero for black
    along = (pixels * line[:, None]).sum(-1, keepdims=True) * line[:, None]
    return (np.linalg.norm(pixels - along, axis=-1) > TINT[images.shape[1]]).mean(1) > FRAMED


if __name__ == "__main__":
    sys.exit(main())
