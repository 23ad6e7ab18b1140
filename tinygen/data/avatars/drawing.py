"""Faces of 64x64 pixels, drawn by DiceBear in the styles of `avatar_styles`, with labels and a caption of what was drawn.

All labelled attributes are chosen here, one by one; DiceBear chooses only what labels and captions never mention (the nose,
the eyebrows), so they are always right. A face depends only on its style and number.

`python -m tinygen.data.avatars.drawing STYLE START STOP STEP` draws a range of faces and pickles each to standard output:
`draw_all` runs one such process per core. (`multiprocessing` would fork, or import the user's script again.)
"""

import functools
import importlib
import importlib.util
import io
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import zlib
from collections.abc import Generator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tinygen.data.avatars.styles import STYLES, Part, Style
from tinygen.errors import UserError, unknown

SIZE = 64
# Drawn at twice the size, then averaged over 2x2 pixels: outlines are half a pixel to two wide, and show steps along curves
# when drawn at 64. Four times the size looks no better and takes three times as long.
SUPERSAMPLING = 2
NONE = "none"
PACKAGES = {"dicebear": "dicebear-core", "dicebear_styles": "dicebear-styles", "resvg_py": "resvg-py"}  # import name -> project


class Face(NamedTuple):
    """A drawn face.

    png: a PNG file of [64, 64, 3] pixels
    labels: attribute -> index into its names, see `attributes`
    caption: a description in words
    """

    png: bytes
    labels: dict[str, int]
    caption: str


def find_style(name: str) -> Style:
    """The style of that name. Raises UserError for an unknown one."""
    if name not in STYLES:
        raise unknown("style", name, STYLES)
    return STYLES[name]


def attributes(style: str) -> dict[str, tuple[str, ...]]:
    """The names of the labels of each attribute of a style, in order. Label 0 of an attribute that may be absent or hidden is "none"."""
    names: dict[str, tuple[str, ...]] = {}
    components = set()
    for part in find_style(style).parts:
        hidden = part.component != "" and part.component in components
        components.add(part.component)
        none = (NONE,) if part.chance < 1 or hidden else ()
        phrases = none + tuple(map(_label, part.words))
        if len(phrases) > 1:
            names[part.name] = phrases
        if part.palette:
            names[f"{part.name}_color"] = none + tuple(part.palette)
    return names


def choose(style: str, number: int) -> tuple[dict[str, Any], dict[str, int], str]:
    """What face `number` of a style shows: DiceBear's options, the labels and the caption."""
    chosen = find_style(style)
    # NumPy guarantees that the stream of a RandomState never changes.
    rng = np.random.RandomState([zlib.crc32(style.encode()), number])
    options: dict[str, Any] = {"seed": f"{style} {number}", "size": SIZE * SUPERSAMPLING, **chosen.options}
    values: dict[str, str] = {}
    said: dict[str, list[str]] = {"is": [], "with": [], "in": [], "on": []}
    limits: dict[str, Sequence[str]] = {}
    for part in chosen.parts:
        hidden = f"{part.component}Variant" in options
        phrase = ""
        if not hidden and rng.random_sample() < part.chance:
            phrase = _pick(rng, limits.get(part.name, tuple(part.words)))
        color = "" if hidden else _dress(part, phrase, options, rng)
        values[part.name] = _label(phrase) or NONE
        values[f"{part.name}_color"] = color or NONE
        said[part.place] += [phrase.format(color)] if phrase else [part.absent] if part.absent and not hidden else []
        limits.update(chosen.limits.get((part.name, phrase), {}))
    labels = {attribute: names.index(values[attribute]) for attribute, names in attributes(style).items()}
    return options, labels, _caption(said)


def draw(style: str, number: int) -> Face:
    """Face `number` of a style. Raises UserError if the drawing packages are not installed."""
    from PIL import Image

    require_packages()
    options, labels, caption = choose(style, number)
    svg = importlib.import_module("dicebear").Avatar(_definition(style), options).to_string()
    drawn = importlib.import_module("resvg_py").svg_to_bytes(svg_string=svg, skip_system_fonts=True)
    with Image.open(io.BytesIO(drawn)) as image:
        # The drawing has a background: no pixel is transparent.
        pixels = image.convert("RGB").reduce(SUPERSAMPLING)
    png = io.BytesIO()
    pixels.save(png, "PNG")
    return Face(png.getvalue(), labels, caption)


def draw_all(style: str, num: int, workers: int | None = None) -> Generator[Face]:
    """Faces 0 ... num - 1 of a style, in order, drawn by `workers` processes: one per core by default, fewer for few faces.

    The processes end when the generator is closed or this process ends in any way, which closes their pipes.
    Raises UserError if the drawing packages are not installed.
    """
    require_packages()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = workers or min(cores, 1 + num // 200)
    root = str(Path(__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *filter(None, sys.path)])}
    running: list[subprocess.Popen[bytes]] = []
    try:
        for first in range(workers):
            command = [sys.executable, "-P", "-m", __name__, style, str(first), str(num), str(workers)]
            # In their own process group: Ctrl-C reaches only this process, which then ends them.
            running.append(subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, process_group=0))
        for number in range(num):
            yield _received(running[number % workers])
    finally:
        for process in running:
            process.kill()
            process.communicate()


def require_packages() -> None:
    """Raises UserError if the drawing packages are not installed."""
    missing = [project for module, project in PACKAGES.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise UserError(f"drawing avatars needs {', '.join(missing)}: pip install 'tinygen[avatars]'")


def _pick(rng: np.random.RandomState, choices: Sequence[str]) -> str:
    return choices[rng.randint(len(choices))]


def _dress(part: Part, phrase: str, options: dict[str, Any], rng: np.random.RandomState) -> str:
    """Sets DiceBear's options for a part that shows `phrase` ("" for none); returns the name of its colour."""
    variant, variants = "", part.words[phrase] if phrase else part.bare
    if part.component:
        options[f"{part.component}Probability"] = 100 if variants else 0
    if variants:
        variant = options[f"{part.component}Variant"] = _pick(rng, variants)
    if "{}" not in phrase:
        return ""
    if part.painted is not None and variant not in part.painted:
        return "black"
    color = _pick(rng, tuple(part.palette))
    options[f"{part.paints}Color"] = [part.palette[color]]
    return color


def _label(phrase: str) -> str:
    """The label of a phrase: 'bob' for 'a {} bob'."""
    return re.sub("^an? ", "", phrase.replace("{} ", ""))


def _caption(said: dict[str, list[str]]) -> str:
    caption = " ".join(["a", *said["is"], "person"])
    caption += f" with {_list(said['with'])}" if said["with"] else ""
    caption += f"{',' * bool(said['with'])} in {_list(said['in'])}" if said["in"] else ""
    caption += f", on {_list(said['on'])}" if said["on"] else ""
    return re.sub(r"\ba (?=[aeiou])", "an ", caption)


def _list(phrases: Sequence[str]) -> str:
    return " and ".join([", ".join(phrases[:-1]), phrases[-1]] if len(phrases) > 1 else phrases)


@functools.cache
def _definition(style: str) -> Any:
    text = (resources.files("dicebear_styles") / f"{style}.json").read_text("utf-8")
    return importlib.import_module("dicebear").Style(json.loads(text))


def _received(process: subprocess.Popen[bytes]) -> Face:
    assert process.stdout is not None
    try:
        return Face(*pickle.load(process.stdout))
    except EOFError:
        raise RuntimeError(f"a process that draws faces ended early, with status {process.wait()}: see above for its message") from None


def main(style: str, start: str, stop: str, step: str) -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # exits silently when the pipe is closed
    for number in range(int(start), int(stop), int(step)):
        # A plain tuple: the class would be pickled as __main__.Face.
        pickle.dump(tuple(draw(style, number)), sys.stdout.buffer)


if __name__ == "__main__":
    main(*sys.argv[1:])
