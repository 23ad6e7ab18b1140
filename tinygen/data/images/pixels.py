"""Converts any picture to a frame of uint8 pixels, for every source that reads image files.

The steps, in order:
- JPEGs are decoded at 1/2, 1/4 or 1/8 if that leaves at least twice the pixels needed.
- The first frame of an animation, or page of several, is taken.
- The EXIF orientation is applied; damaged EXIF data are ignored. Colour profiles are ignored: values are taken as sRGB.
- 16-bit and 32-bit whole-number grey is scaled from 0..65535 to 0..255 (x / 257, rounded), values outside clipped. PIL itself
  reduces 16-bit colour to its high bytes. Float pixels (mode F) have no agreed range: they are refused.
- Transparency, in any mode, is composited onto the background.
- Palettes, 1-bit, CMYK, YCbCr, LAB and HSV become RGB; for one channel, luma (0.299 R + 0.587 G + 0.114 B).
- crop: the picture is scaled to cover the frame, and its middle is kept. pad: it is scaled to fit inside, on a background. squeeze: the
  sides are scaled independently, which changes the proportions. All are antialiased (Lanczos, after a box filter for large reductions);
  smaller pictures are enlarged; a picture of the frame's size keeps its pixels exactly.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from PIL import Image, ImageColor, features

from tinygen.config.data import FITS
from tinygen.errors import UserError, unknown

OPTIONAL = {  # formats that Pillow can be built without: {format: (Pillow's name of the feature, extensions)}
    "AVIF": ("avif", ("avif", "avifs")),
    "JPEG2000": ("jpg_2000", ("jp2", "j2k", "j2c", "jpc", "jpf", "jpx")),
}
MISSING = [kind for kind, (feature, _) in OPTIONAL.items() if not features.check(feature)]
UNREADABLE = {extension: f"this Pillow does not read {kind}" for kind in MISSING for extension in OPTIONAL[kind][1]}
"""{extension: reason} of image files that are skipped."""

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM", *(kind for kind in OPTIONAL if kind not in MISSING))
"""The only formats that `PIL.Image.open` may try: some of its others start programs."""

MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV", "I", "I;16", "I;16L", "I;16B")
GAP = 2  # cheap reduction stops at this multiple of the size; the antialiasing filter does the rest
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


def frame_of(size: Sequence[int]) -> tuple[int, int]:
    """(height, width) from config.data.size; one number is both. Raises UserError for any other length."""
    if len(size) not in (1, 2):
        raise UserError(f"config.data.size={shown(size)} must be one number of pixels per side, or two: height,width")
    return size[0], size[-1]


def shown(size: Sequence[int]) -> str:
    """A size as written on the command line.

    >>> shown((37, 53)), shown((64, 64))
    ('37,53', '64')
    """
    return str(size[0]) if len(set(size)) == 1 else ",".join(map(str, size))


def recorded(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `fitted` for fingerprints: a square size is one number, as in the first runs."""
    height, width = options["size"]
    return {**options, "size": height if height == width else (height, width)}


def check_options(*, size: Sequence[int], fit: str, channels: int, background: str) -> None:
    """Raises UserError for invalid options of `fitted`."""
    if min(size) < 1:
        raise UserError(f"config.data.size={shown(size)} must be at least 1 (pixels: a side, or height,width)")
    if fit not in FITS:
        raise unknown("config.data.fit", fit, FITS)
    if channels not in (1, 3):
        raise UserError(f"config.data.channels={channels} must be 1 (grey) or 3 (RGB)")
    _colour(background)


def fitted(image: Image.Image, *, size: tuple[int, int], fit: str, channels: int, background: str) -> np.ndarray:
    """The picture as uint8 [height, width, channels], by the rules above.

    Args:
      size: (height, width) of the frame, in pixels.
      fit: "crop", "pad" or "squeeze".
      channels: 1 (grey) or 3 (RGB).
      background: colour behind transparency and padding, as a name or #rrggbb.

    Raises:
      UserError: an option is invalid.
      ValueError: the pixels have no agreed range. PIL raises other errors for files that it cannot decode.
    """
    check_options(size=size, fit=fit, channels=channels, background=background)
    frame = (size[1], size[0])  # in PIL's order
    # EXIF may rotate the picture by 90 degrees: enough is decoded for both orientations.
    scale = max(_scale(image.size, each, fit) for each in (frame, size))
    width, height = (math.ceil(length * GAP * scale) for length in image.size)
    image.draft(None, (width, height))
    mode, colour = "L" if channels == 1 else "RGB", _colour(background)
    image = _opaque(upright(image), colour).convert(mode)
    scale = _scale(image.size, frame, fit)
    if fit == "pad":
        width, height = (max(1, round(length * scale)) for length in image.size)
        canvas = Image.new("RGB", frame, colour).convert(mode)
        place = ((frame[0] - width) // 2, (frame[1] - height) // 2)
        canvas.paste(image.resize((width, height), Image.Resampling.LANCZOS, reducing_gap=GAP), place)
        image = canvas
    else:
        kept = [side / scale for side in frame] if fit == "crop" else image.size
        left, top = ((length - side) // 2 for length, side in zip(image.size, kept, strict=True))  # whole pixels: a half would blur
        box = (left, top, float(left + kept[0]), float(top + kept[1]))
        image = image.resize(frame, Image.Resampling.LANCZOS, box, reducing_gap=GAP)
    return np.array(image).reshape(*size, channels)


def _scale(size: tuple[int, int], frame: tuple[int, int], fit: str) -> Fraction:
    """The scale at which a picture fits into the frame (pad) or covers it; exact, so that no size is off by a pixel."""
    scales = (Fraction(target, length) for target, length in zip(frame, size, strict=True))
    return min(scales) if fit == "pad" else max(scales)


def check_size(width: int, height: int) -> None:
    """Raises ValueError for more pixels than PIL considers safe; PIL itself only warns at first."""
    if Image.MAX_IMAGE_PIXELS is not None and width * height > Image.MAX_IMAGE_PIXELS:
        raise ValueError(f"more than {Image.MAX_IMAGE_PIXELS:,} pixels, which PIL takes for an attack")


def upright(image: Image.Image) -> Image.Image:
    """The decoded picture with its EXIF orientation applied. Raises the errors of `fitted` for unusable files."""
    check_size(*image.size)
    if image.mode not in MODES:
        kind = "float pixels, whose range is unknown" if image.mode == "F" else "pixels of an unknown kind"
        raise ValueError(f"{kind} (PIL's mode {image.mode})")
    image.load()
    try:
        turn = TURNS.get(image.getexif().get(ORIENTATION, 1))
    except SyntaxError:  # malformed EXIF data
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
        raise UserError(f"config.data.background={name!r} is not a colour: give a name such as white, or #rrggbb") from error
    return red, green, blue
