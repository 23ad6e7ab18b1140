"""Resizing that no size of image makes look sharper than it is (Parmar et al. 2022)."""

import numpy as np
from PIL import Image


def bicubic(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """uint8 [H, W, C] -> float32 [height, width, C] in [0, 255], as clean-fid does it: whatever the proportions were.

    size: (height, width)

    Pillow's bicubic filter over a channel's floats, which averages where it reduces; clipped, not rounded. At its size an image
    keeps its pixels.
    """
    height, width = size
    planes = image.astype(np.float32).transpose(2, 0, 1)
    channels = [Image.fromarray(plane).resize((width, height), Image.Resampling.BICUBIC) for plane in planes]
    return np.stack([np.asarray(channel) for channel in channels], -1).clip(0, 255)
