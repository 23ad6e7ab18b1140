"""How a picture of any kind becomes a square of uint8 pixels, for every source that reads image files.

In this order:
- JPEGs are decoded at 1/2, 1/4 or 1/8 where that still leaves twice the pixels that are needed.
- Of an animation, or of several pages, the first is taken.
- The EXIF orientation is applied; damaged EXIF data count as none. Colour profiles are not: values are taken as sRGB.
- 16-bit and 32-bit whole-number grey is scaled from 0..65535 to 0..255 (x / 257, rounded), values outside clipped. PIL itself
  reduces 16-bit colour to its high bytes. Float pixels (mode F) have no agreed range: they are refused.
- Transparency, of whatever mode, is composited onto the background.
- Palettes, 1-bit, CMYK, YCbCr, LAB and HSV become RGB; for one channel, luma (0.299 R + 0.587 G + 0.114 B).
- crop: the shorter side is brought to `size`, the middle of the longer one kept. pad: the longer side is brought to `size`, the
  rest is background. Both antialiased (Lanczos, after a box filter where there is much to reduce); smaller pictures are
  enlarged; a picture that has the size already keeps its pixels exactly.
"""

import functools
import math

import numpy as np
from PIL import Image, ImageColor

from tinygen.errors import UserError, unknown

FITS = ("crop", "pad")
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
"""What `PIL.Image.open` is to try, and nothing else: among its other formats are some that start programs."""

MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV", "I", "I;16", "I;16L", "I;16B")
GAP = 2.0  # cheap reduction stops at this multiple of the size; the antialiasing filter does the rest
ORIENTATION = 0x0112  # EXIF's tag
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def check_options(*, size: int, fit: str, channels: int, background: str) -> None:
    """Raises UserError for options of `fitted` that it could not follow."""
    if size < 1:
        raise UserError(f"config.data.size={size} must be at least 1 (pixels a side)")
    if fit not in FITS:
        raise unknown("config.data.fit", fit, FITS)
    if channels not in (1, 3):
        raise UserError(f"config.data.channels={channels} must be 1 (grey) or 3 (RGB)")
    _colour(background)


def fitted(image: Image.Image, *, size: int, fit: str, channels: int, background: str) -> np.ndarray:
    """The picture as uint8 [size, size, channels], by the rules above.

    Args:
      size: pixels a side.
      fit: "crop" or "pad".
      channels: 1 (grey) or 3 (RGB).
      background: what transparency and padding show, as a name or #rrggbb.

    Raises:
      UserError: an option is wrong.
      ValueError: the pixels have no agreed range; and whatever PIL raises for a file that it cannot decode.
    """
    check_options(size=size, fit=fit, channels=channels, background=background)
    side = min(image.size) if fit == "crop" else max(image.size)
    width, height = (math.ceil(length * GAP * size / side) for length in image.size)
    image.draft(None, (width, height))
    mode, colour = "L" if channels == 1 else "RGB", _colour(background)
    image = _opaque(upright(image), colour).convert(mode)
    if fit == "crop":
        side = min(image.size)
        left, top = ((length - side) // 2 for length in image.size)  # whole pixels: half of one would blur
        image = image.resize((size, size), Image.Resampling.LANCZOS, (left, top, left + side, top + side), reducing_gap=GAP)
    else:
        width, height = (max(1, round(length * size / max(image.size))) for length in image.size)
        canvas = Image.new("RGB", (size, size), colour).convert(mode)
        canvas.paste(image.resize((width, height), Image.Resampling.LANCZOS, reducing_gap=GAP), ((size - width) // 2, (size - height) // 2))
        image = canvas
    return np.array(image).reshape(size, size, channels)


def check_pixels(image: Image.Image) -> None:
    """Raises ValueError for a picture whose header promises more than PIL thinks safe, before it is decoded; PIL itself warns first."""
    check_size(image.height, image.width)


def check_size(height: int, width: int) -> None:
    """Raises ValueError for a picture of more pixels than PIL thinks safe."""
    if Image.MAX_IMAGE_PIXELS is not None and width * height > Image.MAX_IMAGE_PIXELS:
        raise ValueError(f"more than {Image.MAX_IMAGE_PIXELS:,} pixels, which PIL takes for an attack")


def upright(image: Image.Image) -> Image.Image:
    """The decoded picture with its EXIF orientation applied. Raises what `fitted` raises for a file that cannot be used."""
    check_pixels(image)
    if image.mode not in MODES:
        kind = "float pixels, whose range is unknown" if image.mode == "F" else "pixels of an unknown kind"
        raise ValueError(f"{kind} (PIL's mode {image.mode})")
    image.load()
    try:
        turn = TURNS.get(image.getexif().get(ORIENTATION, 1))
    except SyntaxError:  # EXIF data that are none
        return image
    return image if turn is None else image.transpose(turn)


def _opaque(image: Image.Image, colour: tuple[int, int, int]) -> Image.Image:
    if image.mode.startswith("I"):
        image = _grey8(image)
    if not image.has_transparency_data:
        return image
    image = image.convert("RGBA")
    canvas = Image.new("RGB", image.size, colour)
    canvas.paste(image, mask=image.getchannel("A"))
    return canvas


def _grey8(image: Image.Image) -> Image.Image:
    """16-bit or 32-bit grey as 8-bit grey, with an alpha channel where one value is marked as transparent."""
    values = np.asarray(image).astype(np.int64)
    grey = Image.fromarray(np.clip((values + 128) // 257, 0, 255).astype(np.uint8))
    if isinstance(clear := image.info.get("transparency"), int):
        grey.putalpha(Image.fromarray(np.where(values == clear, 0, 255).astype(np.uint8)))
    return grey


@functools.cache
def _colour(name: str) -> tuple[int, int, int]:
    try:
        red, green, blue = ImageColor.getrgb(name)[:3]
    except ValueError as error:
        raise UserError(f"config.data.background={name!r} is no colour: give a name such as white, or #rrggbb") from error
    return red, green, blue
