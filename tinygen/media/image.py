"""Images: decoding, grids, and PNG files."""

import dataclasses
import io
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from tinygen.errors import UserError
from tinygen.media.base import Field, Medium, Spec

FRAME_MS = 100  # milliseconds per frame of an animation
BORDER = 2  # pixels between the images of a grid, before enlarging


@dataclasses.dataclass(frozen=True)
class Picture(Medium):
    """A medium whose overviews, and items if it saves any, are uint8 pictures [H, W, C]."""

    suffix: ClassVar[str] = "png"
    sheet_suffix: ClassVar[str] = "png"
    element: ClassVar[str] = "img"
    animates: ClassVar[bool] = True

    def encode(self, item: np.ndarray) -> bytes:
        return png(item)

    def log(self, writer: Any, step: int, name: str, items: Any, overview: np.ndarray) -> None:
        writer.write_images(step, {name: overview[None]})

    def animate(self, frames: Sequence[np.ndarray]) -> bytes:
        """An animated GIF, which dwells on the last frame."""
        from PIL import Image

        buffer = io.BytesIO()
        first, *rest = (Image.fromarray(frame[..., 0] if frame.shape[-1] == 1 else frame) for frame in frames)
        first.save(buffer, "GIF", save_all=True, append_images=rest, duration=[FRAME_MS] * len(rest) + [20 * FRAME_MS], loop=0)
        return buffer.getvalue()


@dataclasses.dataclass(frozen=True)
class Image(Picture):
    """Images [H, W, C] in [-1, 1]; their items are uint8."""

    name: ClassVar[str] = "image"

    sheet: ClassVar[str] = "grid.png"
    comparable: ClassVar[bool] = True

    def augment(self, batch: dict[str, np.ndarray], draws: np.ndarray) -> dict[str, np.ndarray]:
        """Mirrors the images [B, H, W, C] whose draw is below one half."""
        mirrored = (draws < 0.5)[:, None, None, None]
        return {**batch, "x": np.where(mirrored, batch["x"][:, :, ::-1], batch["x"])}

    def decode(self, x: np.ndarray) -> np.ndarray:
        """Values in [-1, 1] as uint8, rounded to the nearest level: the inverse of `tinygen.data.codec.encode_pixels`."""
        return np.clip(np.floor(127.5 * np.asarray(x, np.float32) + 128.0), 0, 255).astype(np.uint8)

    def overview(self, items: np.ndarray, columns: int | None = None) -> np.ndarray:
        return grid(items, columns)

    def read_given(self, value: str, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """An image file whose transparent pixels are unknown: (float32 [H, W, C] in [-1, 1], bool [H, W])."""
        from PIL import Image

        height, width, channels = shape
        try:
            with Image.open(value) as picture:
                if picture.size != (width, height):
                    has = f"{picture.width}x{picture.height}"
                    raise UserError(f"--given={value} has {has} pixels, and this model draws {width}x{height}: give an image of that size")
                known = np.asarray(picture.convert("RGBA"))[..., 3] >= 128
                pixels = np.asarray(picture.convert("L" if channels == 1 else "RGB")).reshape(shape)
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            raise UserError(f"--given={value} is not an image that can be read: {getattr(error, 'strerror', None) or error}") from error
        if known.all():
            raise UserError(f"--given={value} has no transparent pixels: make those transparent that are to be drawn")
        return pixels.astype(np.float32) / 127.5 - 1.0, known

    def seen_by_weights(self, name: str, field: Field, *, rotary: bool) -> dict[str, Any]:
        """The channels of the images, since models accept any height and width; of tokens, with rotary positions only."""
        seen = super().seen_by_weights(name, field, rotary=rotary)
        return seen | {"shape": field.shape[2:]} if name == "x" or (name == "tokens" and rotary) else seen

    def positions(self, spec: Spec) -> tuple[int, int] | None:
        height, width = spec["x" if "x" in spec else "tokens"].shape[:2]
        return height, width


def grid(images: np.ndarray, columns: int | None = None) -> np.ndarray:
    """uint8 images [N, H, W, C] (C = 1 or 3) as one picture [H', W', C], row by row; nearly square by default.

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
    """Columns of a grid whose samples cycle through `classes` labels: a row is one or more whole cycles."""
    return classes * math.ceil(8 / classes) if 1 < classes <= 24 else None


def png(image: np.ndarray) -> bytes:
    """A uint8 image [H, W, C] as the bytes of a PNG file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(buffer, "PNG")
    return buffer.getvalue()
