"""Pictures as Inception-v3 gets them: three ways of resizing, which give one set of images three different distances.

All run on the host, an image at a time. A picture of 299x299 keeps its pixels; then only its scale changes. One that is not square is
squeezed into the square: nothing is cut off, as in the programs that published scores come from.
"""

from collections.abc import Callable

import numpy as np
from PIL import Image

from tinygen.evaluation.features.bicubic import bicubic

SIZE = 299  # pixels a side


def rgb(image: Image.Image) -> np.ndarray:
    """The picture as uint8 [H, W, 3], by PIL's `convert("RGB")`, as FID's programs do, but for 16-bit grey.

    Grey is repeated, a palette expanded, CMYK, YCbCr and 1-bit pictures converted. Transparency is dropped: the colours behind it
    count, whatever they are. 16-bit and 32-bit whole-number grey is scaled from 0..65535 to 0..255 (x / 257, rounded), where PIL
    would clip it at 255. The EXIF orientation is left alone.

    Raises ValueError for float pixels (mode F), whose range is unknown, and what PIL raises for a damaged file.
    """
    if image.mode == "F":
        raise ValueError("float pixels, whose range is unknown (PIL's mode F)")
    if image.mode.startswith("I"):
        grey = np.clip((np.asarray(image).astype(np.int64) + 128) // 257, 0, 255).astype(np.uint8)
        return np.repeat(grey[..., None], 3, -1)
    if image.mode in ("La", "RGBa"):  # colours multiplied by their opacity
        image = image.convert({"La": "LA", "RGBa": "RGBA"}[image.mode])
    return np.array(image.convert("RGB"))


def adm(image: np.ndarray) -> np.ndarray:
    """uint8 [H, W, 3] -> float32 [299, 299, 3] in ±1, bit for bit as TensorFlow 1's FID, ADM's evaluator and torch-fidelity.

    Bilinear, output pixel i at i · H/299 of the input: the grid is that of the pixels' corners, and nothing is averaged.
    """
    return (_bilinear(image.astype(np.float32), _corners) - 128) / np.float32(128)


def pytorch_fid(image: np.ndarray) -> np.ndarray:
    """uint8 [H, W, 3] -> float32 [299, 299, 3] in ±1 as pytorch-fid, within 1e-6: PyTorch sums in another order.

    Bilinear, output pixel i at (i + 1/2) · H/299 - 1/2 of the input: the grid is that of the pixels' centres; nothing is averaged.
    """
    return 2 * _bilinear(image.astype(np.float32) / 255, _centres) - 1


def clean(image: np.ndarray) -> np.ndarray:
    """uint8 [H, W, 3] -> float32 [299, 299, 3] in ±1, bit for bit as clean-fid (Parmar et al. 2022).

    PIL's bicubic filter over a channel's floats, which averages where it reduces; clipped, not rounded.
    """
    return (bicubic(image, (SIZE, SIZE)) - 128) / np.float32(128)


PRESETS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"adm": adm, "pytorch-fid": pytorch_fid, "clean": clean}


def _corners(length: int) -> np.ndarray:
    """Where in an axis of `length` pixels the output's pixels [299] lie, by TensorFlow 1."""
    return np.arange(SIZE, dtype=np.float32) * np.float32(length / SIZE)


def _centres(length: int) -> np.ndarray:
    """The same, by PyTorch."""
    scale = np.float64(np.float32(length) / np.float32(SIZE))
    return np.maximum(scale * (np.arange(SIZE) + 0.5) - 0.5, 0).astype(np.float32)  # rounded once, as its fused instruction does


def _bilinear(image: np.ndarray, grid: Callable[[int], np.ndarray]) -> np.ndarray:
    """float32 [H, W, C] -> [299, 299, C]: between columns first, then between rows, of the rows that are needed."""
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
    """(index of the pixel before, of the one behind, the way from the former to the latter in [0, 1)) of positions in an axis."""
    before = np.minimum(position.astype(np.int64), length - 1)
    return before, np.minimum(before + 1, length - 1), position - before.astype(np.float32)
