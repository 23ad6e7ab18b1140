"""Scores faces drawn from prompts: do they show the requested background, hair, skin and glasses?

    python scripts/compare/score_avatars.py --prompts-out=FILE --num=200     # prompts, one a line
    tinygen sample --prompts=FILE ... --out=DIR
    python scripts/compare/score_avatars.py --samples=DIR                    # how often each asked value is found
    python scripts/compare/score_avatars.py --real                           # how often the rule is right, on held-out real faces

Faces of the avatars' style "micah" stand in the same place and are painted in few colours, so a fixed rule on pixels reads them;
nothing is learned. Its regions and bounds were chosen on training faces alone, never on what a model drew. Of a palette it takes the
colour that a region's pixels lie nearest to, in RGB: each pixel, d away from a colour, counts for it by exp(-d^2 / 2 SPREAD^2).

background  of 6, in both upper corners, where no hair is
hair        of 9, on the crown, which every cut covers; "none" where that is skin. A turban reads as hair: faces without hair are not judged
skin        of 4, between eyes and mouth, and on the neck
glasses     yes or no, below the eyes: the share of pixels off the line from black to the skin's own colour. Frames are thin, red, blue
            or yellow lines; eyes, noses and outlines lie above, or on that line

The rule reads 1.000 of each on the 1,000 held-out faces, at 64x64 and brought to 32x32. It bears, measured on training faces: a shift by
one pixel in any direction, but for glasses 0.84 at 32x32 where eyes come down to the rims; a tint of 10 levels (a standard deviation),
background 0.95, the rest 0.99; noise of 10 levels a pixel at 64x64, 0.997. At 32x32 such noise reads as glasses: 0.58, the rest 0.999.

What is asked for is read from the prompt: words such as "blue background", "dark brown skin", "short black hair" or "a blond bob".
What a prompt does not name is not judged, but for one: captions never say that there are no glasses, so a prompt that names any of the
four and no glasses asks for none, as does "no glasses". Each attribute has a row: how many were judged, the share that was right, its
95 % interval (Wilson's), the share that always answering with the value asked for most often would get (chance), the worst confusions.

`--prompts-out` writes the captions of faces beyond those of the data set: background, hair colour and skin drawn uniformly, every other
face with glasses, no turbans. Exit status 0 whatever the accuracy. Needs tinygen; --real draws the avatars if they are not there.
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

# Regions, (top, bottom, left, right) in 32nds of the side.
CORNERS = ((0, 8, 0, 5), (0, 8, 27, 32))
CROWN = ((4, 7, 13, 17),)
CHEEKS = ((9, 16, 14, 21), (23, 26, 12, 16))
RIMS = ((12, 15, 15, 22),)

# RGB distances, in levels of 0..255
SPREAD = 20.0
OWN_SPREAD = 10.0  # of the pixels that the skin's own colour is the mean of: edges, which are mixtures, count less
TINT = {32: 20.0, 64: 26.0}  # at 32 a frame's line is thinner than a pixel, and paler by the skin beneath it
FRAMED = 0.1  # share of the pixels; on training faces at most 0.048 without glasses, at least 0.14 with

_NOUNS = {phrase.split()[-1] for part in STYLES[STYLE].parts if part.name == "hair" for phrase in part.words}
_NAMED = {
    "background": re.compile(rf"\b({'|'.join(BACKGROUND)}) background\b"),
    "hair": re.compile(rf"\b({'|'.join(HAIR)}) ({'|'.join(sorted(_NOUNS))})\b"),
    "skin": re.compile(rf"\b({'|'.join(sorted(SKIN, key=len, reverse=True))}) skin\b"),  # "brown" ends "dark brown"
}


class Row(NamedTuple):
    """One attribute: the share of `num` that was right, its interval, the share of the best constant answer, the worst pairs."""

    num: int
    accuracy: float
    interval: tuple[float, float]
    chance: float
    confused: list[tuple[str, str, int]]


def asked(prompt: str) -> dict[str, str]:
    """The requests of a prompt, attribute -> value, by the conventions above; empty if it names none of the four.

    >>> asked("a person with tan skin and short black hair, on a green background")
    {'background': 'green', 'hair': 'black', 'skin': 'tan', 'glasses': 'no'}
    """
    text = " ".join(prompt.lower().split())
    found = {attribute: named[1] for attribute, pattern in _NAMED.items() if (named := pattern.search(text))}
    worn = re.search(r"\bglasses\b", text)
    if found or worn:
        found["glasses"] = (
            "yes" if worn and not re.search(r"\b(no|without|without any|not wearing|not wearing any) glasses\b", text) else "no"
        )
    return found


def read(images: np.ndarray) -> dict[str, list[str]]:
    """The attributes of images [N, S, S, 3] with values 0..255, S 32 or 64: attribute -> N values."""
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
    """A row per attribute that any prompt of the images [N, S, S, 3] names."""
    shown, wanted = read(images), [asked(prompt) for prompt in prompts]
    rows = {}
    for attribute in ATTRIBUTES:
        pairs = Counter((want[attribute], saw) for want, saw in zip(wanted, shown[attribute], strict=True) if attribute in want)
        if not pairs:
            continue
        num, right = pairs.total(), sum(count for (want, saw), count in pairs.items() if want == saw)
        often: Counter[str] = Counter()
        for (want, _), count in pairs.items():
            often[want] += count
        interval = stats.binomtest(right, num).proportion_ci(method="wilson")
        rows[attribute] = Row(
            num=num,
            accuracy=right / num,
            interval=(float(interval.low), float(interval.high)),
            chance=max(often.values()) / num,
            confused=[(want, saw, count) for (want, saw), count in pairs.most_common() if want != saw],
        )
    return rows


def read_samples(folder: Path, size: int) -> tuple[np.ndarray, list[str]]:
    """Images uint8 [N, size, size, 3] and their prompts. Raises UserError for a folder without any."""
    listing = folder / "samples.json"
    if not listing.is_file():
        raise UserError(f"--samples={folder}: no samples.json there; give the folder that `tinygen sample --prompt=... --out=DIR` wrote")
    try:
        rows = [(folder / str(row["file"]), row.get("prompt")) for row in json.loads(listing.read_text("utf-8"))["samples"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{listing}: expected `samples`, a list of {{file, prompt}} ({type(error).__name__}: {error})") from None
    for path, prompt in rows:
        if not isinstance(prompt, str):
            raise UserError(f"{listing}: {path.name} has no prompt: draw with `tinygen sample --prompt=...`")
    if not any(asked(prompt) for _, prompt in rows):
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
    from tinygen.data.tfds import images as tfds  # TensorFlow Datasets takes a second, which samples should not cost

    builder = avatars_builder.builder(STYLE, FACES, data_dir or None)
    held_out = tfds.source(builder, "train", "validation", "", "", (size,), "crop", 3, False).splits["validation"]
    every = np.arange(len(held_out))
    return np.round((held_out.take(every)["x"] + 1) * 127.5).astype(np.uint8), held_out.captions(every)


def write_prompts(path: Path, num: int, seed: int) -> None:
    """Writes `num` captions of faces with hair, every other one with glasses. Deterministic given the seed."""
    if num < 1 or seed < 0:
        raise UserError(f"--num={num} --seed={seed}: at least one prompt, and a seed of 0 or more")
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
    lines = [f"{'':<10}  {'judged':>6}  {'right':>5}  {'95 % interval':>13}  {'chance':>6}  most often confused (asked -> read)"]
    for attribute, row in rows.items():
        worst = ", ".join(f"{want} -> {saw} {count}" for want, saw, count in row.confused[:4]) or "-"
        low, high = row.interval
        lines.append(f"{attribute:<10}  {row.num:>6}  {row.accuracy:>5.3f}  {low:.3f} - {high:.3f}  {row.chance:>6.3f}  {worst}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Do drawn faces show the background, hair, skin and glasses that were asked for?")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--real", action="store_true", help="score held-out real faces, to check the rule itself")
    what.add_argument("--samples", type=Path, metavar="DIR", help="score samples that `tinygen sample` drew from prompts")
    what.add_argument("--prompts-out", type=Path, metavar="FILE", help="write prompts to sample from")
    parser.add_argument("--size", type=int, choices=TINT, default=64, help="pixels per side of the faces (default: %(default)s)")
    parser.add_argument("--num", type=int, default=200, help="prompts to write (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="which prompts (default: %(default)s)")
    parser.add_argument(
        "--data-dir", default="", metavar="DIR", help="folder of the real faces, like config.data.data_dir (default: TFDS's folder)"
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
    """bool [N]: whether an image [N, S, S, 3] shows glasses' frames on skin of a colour [N, 3]."""
    pixels, line = _pixels(images, RIMS), skin / np.maximum(np.linalg.norm(skin, axis=-1, keepdims=True), 1)  # a black face has no hue
    along = (pixels * line[:, None]).sum(-1, keepdims=True) * line[:, None]
    return (np.linalg.norm(pixels - along, axis=-1) > TINT[images.shape[1]]).mean(1) > FRAMED


if __name__ == "__main__":
    sys.exit(main())
