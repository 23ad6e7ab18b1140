"""What people look at: grids of images, plots of curves, texts; PNG files that a viewer shows large enough to judge."""

import dataclasses
import io
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

BORDER = 2  # pixels between the images of a grid, before enlarging
PROMPT_ENDS = -1  # in the place of a token: where what was given ends and what was written begins
MARK = "⟩"  # what people see there
FEW = 3  # curves; also how many names are side by side in a legend
MARKED = 32  # points of a curve at most that are drawn as such: between them nothing was measured


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Media:
    """One thing that a preview shows: an array and how to look at it.

    kind: "codec": examples in the model's own domain, decoded by the run's codec
          "image": pictures [N, H, W, C] in [-1, 1], whatever the data are
          "text": tokens [N, T] of the run's vocabulary, with PROMPT_ENDS once a row where a prompt came before
          "curve": a plot [N, 1 + K]: x, then a column of values for each of the K named `curves`
    """

    value: jax.Array | np.ndarray
    kind: str = dataclasses.field(default="codec", metadata=dict(static=True))
    curves: tuple[str, ...] = dataclasses.field(default=(), metadata=dict(static=True))


def grid(images: np.ndarray, columns: int | None = None) -> np.ndarray:
    """uint8 images [N, H, W, C] (C = 1 or 3) as one picture [H', W', C], row by row; near square unless told otherwise.

    Small images are enlarged by whole pixels, so that each is at least 64 pixels high.
    """
    num, height, width, channels = images.shape
    across = min(num, columns or math.ceil(math.sqrt(num)))
    down = math.ceil(num / across)
    sheet = np.full((down * (height + BORDER) + BORDER, across * (width + BORDER) + BORDER, channels), 128, np.uint8)
    for index, image in enumerate(images):
        top, left = (BORDER + (height + BORDER) * (index // across), BORDER + (width + BORDER) * (index % across))
        sheet[top : top + height, left : left + width] = image
    scale = math.ceil(64 / height)
    return sheet.repeat(scale, axis=0).repeat(scale, axis=1)


def columns_for(classes: int) -> int | None:
    """Columns of a grid whose samples cycle through `classes` labels: one a class, or several whole cycles a row."""
    if not 1 < classes <= 24:
        return None
    return classes * math.ceil(8 / classes)


def plot(points: np.ndarray, names: Sequence[str], x_label: str = "", y_label: str = "", *, log_x: bool = False) -> np.ndarray:
    """Curves as a picture [400, 600, 3], higher where the legend is: points [N, 1 + K] are x and, for each of the K names, y.

    They are joined in their order. log_x: the x axis is logarithmic, with a tick a point
    """
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    few, columns = len(names) <= FEW, min(len(names), FEW)
    rows = math.ceil(len(names) / columns) if names else 0
    figure = Figure(figsize=(6, 4 + 0.2 * max(0, rows - 1)), dpi=100, layout="constrained")
    canvas, axes = FigureCanvasAgg(figure), figure.subplots()
    x, *curves = np.asarray(points, np.float64).T
    for index, (name, y) in enumerate(zip(names, curves, strict=True)):
        # Of a few each is thinner than the one before: where they coincide, all can be seen. Many are in order, and so are their colours.
        colour = f"C{index}" if few else colormaps["viridis"](0.9 * index / (len(names) - 1))
        width = 2 * (len(names) - index) if few else 1.5
        axes.plot(x, y, label=name, color=colour, linewidth=width, marker="o" if len(x) <= MARKED else None)
    axes.set(xlabel=x_label, ylabel=y_label)
    if log_x:
        axes.set_xscale("log")
        axes.set_xticks(x, [f"{each:g}" for each in x])
        axes.set_xticks([], minor=True)
    figure.legend(loc="outside upper center", ncols=columns)  # above, where it hides no curve
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def png(image: np.ndarray) -> bytes:
    """A uint8 image [H, W, C] as the bytes of a PNG file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(buffer, "PNG")
    return buffer.getvalue()


def picture(media: Media, codec: Any) -> np.ndarray:
    """The uint8 picture [H, W, C] of a preview's media."""
    if media.kind == "curve":
        return plot(np.asarray(media.value), media.curves)
    if media.kind == "image" or codec.kind == "image":
        return grid(codec.decode(np.asarray(media.value)), columns_for(len(codec.labels)))
    raise ValueError(f"a preview of {codec.kind} data must say how to show it: kind='image' or 'curve'")


def texts(media: Media, codec: Any) -> list[str]:
    """Each row of a preview's tokens as text."""
    rows = np.asarray(media.value)
    parts = [np.split(row, np.flatnonzero(row == PROMPT_ENDS)[:1]) for row in rows]
    return [MARK.join(codec.vocabulary.decode(part[part != PROMPT_ENDS]) for part in row) for row in parts]


def numbered(texts: Sequence[str]) -> str:
    """Texts as one, each under its number."""
    return "\n".join(f"[{number}]\n{text}\n" for number, text in enumerate(texts))
