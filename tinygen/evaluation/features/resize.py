"""Resizing and preprocessing: for Inception-v3 in three ways, which give three different distances for the same images.

All run on the host, one image at a time. An image of the network's size keeps its pixels and is only rescaled in value. Other aspect
ratios are squeezed into it without cropping, as in the programs behind published scores.
"""

from collections.abc import Callable

import numpy as np
from PIL import Image

SIZE = 299  # pixels per side of Inception's input


def rgb(image: Image.Image) -> np.ndarray:
    """The picture as uint8 [H, W, 3], by PIL's `convert("RGB")` like FID's programs, except for 16-bit grey.

    Grey is repeated, palettes are expanded, CMYK, YCbCr and 1-bit pictures converted. Transparency is dropped, which exposes the hidden
    colours. 16-bit and 32-bit integer grey is scaled from 0..65535 to 0..255 (x / 257, rounded), where PIL would clip at 255. The EXIF
    orientation is ignored.

    Raises ValueError for float pixels (mode F), whose range is unknown, and PIL's errors for a damaged file.
    """
    if image.mode == "F":
        raise ValueError("float pixels, whose range is unknown (PIL's mode F)")
    if image.mode.startswith("I"):
        grey = np.clip((np.asarray(image).astype(np.int64) + 128) // 257, 0, 255).astype(np.uint8)
        return np.repeat(grey[..., None], 3, -1)
    if image.mode in ("La", "RGBa"):  # premultiplied alpha
        image = image.convert({"La": "LA", "RGBa": "RGBA"}[image.mode])
    return np.array(image.convert("RGB"))


def bicubic(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """uint8 [H, W, C] -> float32 [height, width, C] in [0, 255], like clean-fid (Parmar et al. 2022).

    size: (height, width)

    Pillow's bicubic filter on each channel in float, which averages when downscaling; clipped, not rounded.
    """
    height, width = size
    planes = image.astype(np.float32).transpose(2, 0, 1)
    channels = [Image.fromarray(plane).resize((width, height), Image.Resampling.BICUBIC) for plane in planes]
    return np.stack([np.asarray(channel) for channel in channels], -1).clip(0, 255)


def adm(image: np.ndarray) -> np.ndarray:
    """uint8 [H, W, 3] -> float32 [299, 299, 3] in ±1, bitwise equal to TensorFlow 1's FID, ADM's evaluator and torch-fidelity.

    Bilinear, output pixel i at i · H/299 of the input: aligned by the pixels' corners, without antialiasing.
    """
    return (_bilinear(image.astype(np.float32), _corners) - 128) / np.float32(128)


def pytorch_fid(image: np.ndarray) -> np.ndarray:
    """uint8 [H, W, 3] -> float32 [299, 299, 3] in ±1, like pytorch-fid up to 1e-6, since PyTorch sums in another order.

    Bilinear, output pixel i at (i + 1/2) · H/299 - 1/2 of the input: aligned by the pixels' centres, without antialiasing.
    """
    return 2 * _bilinear(image.astype(np.float32) / 255, _centres) - 1


def clean(image: np.ndarray) -> np.ndarray:
    """uint8 [H, W, 3] -> float32 [299, 299, 3] in ±1, bitwise equal to clean-fid."""
    return (bicubic(image, (SIZE, SIZE)) - 128) / np.float32(128)


PRESETS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"adm": adm, "pytorch-fid": pytorch_fid, "clean": clean}


def _corners(length: int) -> np.ndarray:
    """The positions of the output's pixels [299] along an axis of `length` pixels, as in TensorFlow 1."""
    return np.arange(SIZE, dtype=np.float32) * np.float32(length / SIZE)


def _centres(length: int) -> np.ndarray:
    """The same as in PyTorch."""
    scale = np.float64(np.float32(length) / np.float32(SIZE))
    return np.maximum(scale * (np.arange(SIZE) + 0.5) - 0.5, 0).astype(np.float32)  # rounded once, like its fused instruction


def _bilinear(image: np.ndarray, grid: Callable[[int], np.ndarray]) -> np.ndarray:
    """float32 [H, W, C] -> [299, 299, C]: interpolates columns first, then rows, only for the rows needed."""
    if image.shape[:2] == (SIZE, SIZE):
        return image
    (top, bottom, down), (left, right, across) = (_between(grid(length), length) for length in image.shape[:2])
    rows, places = np.unique(np.concatenate([top, bottom]), return_inverse=True)
    image = image[rows]
    from_left = image[:, left]
    lines = from_left + (image[:, right] - from_left) * across[:, None]
    above, below = lines[places[:SIZE]], lines[places[SIZE:]]
    return above + (below - above) * down[:, None, None]


def _between(position: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(index of the pixel before, index of the pixel after, weight of the latter in [0, 1)) of positions along an axis."""
    before = np.minimum(position.astype(np.int64), length - 1)
    return before, np.minimum(before + 1, length - 1), position - before.astype(np.float32)
