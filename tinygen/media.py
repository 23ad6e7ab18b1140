"""What people look at: grids of images, plots of curves; PNG files that a viewer shows large enough to judge."""

import dataclasses
import io
import math
from typing import Any

import jax
import numpy as np
from etils import epath
from PIL import Image, ImageDraw

BORDER = 2  # pixels between the images of a grid, before enlarging


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Media:
    """One thing that a preview shows: an array and how to look at it.

    kind: "codec": examples in the model's own domain, decoded by the run's codec
          "image": pictures [N, H, W, C] in [-1, 1], whatever the data are
          "curve": points [N, 2] of a plot
    """

    value: jax.Array | np.ndarray
    kind: str = dataclasses.field(default="codec", metadata=dict(static=True))


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


def plot(points: np.ndarray) -> np.ndarray:
    """A curve through [N, 2] points (x, y), in their order, as a picture [256, 256, 3], the axes' extents written on it."""
    size, margin = 256, 16
    points = np.asarray(points, np.float64)
    low, high = points.min(0), points.max(0)
    unit = (points - low) / np.where(high > low, high - low, 1.0)
    at = margin + unit * (size - 2 * margin)
    sheet = Image.new("RGB", (size, size), "white")
    draw = ImageDraw.Draw(sheet)
    draw.line([(x, size - y) for x, y in at], fill=(31, 119, 180), width=2)
    draw.text((2, 2), f"x {low[0]:.3g} .. {high[0]:.3g}   y {low[1]:.3g} .. {high[1]:.3g}", fill="black")
    return np.asarray(sheet)


def png(image: np.ndarray) -> bytes:
    """A uint8 image [H, W, C] as the bytes of a PNG file."""
    buffer = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(buffer, "PNG")
    return buffer.getvalue()


def picture(media: Media, codec: Any) -> np.ndarray:
    """The uint8 picture [H, W, C] of a preview's media."""
    if media.kind == "curve":
        return plot(np.asarray(media.value))
    if media.kind == "image" or codec.kind == "image":
        return grid(codec.decode(np.asarray(media.value)), columns_for(len(codec.labels)))
    raise ValueError(f"a preview of {codec.kind} data must say how to show it: kind='image' or 'curve'")


def save_png(path: epath.PathLike, image: np.ndarray) -> None:
    epath.Path(path).write_bytes(png(image))
