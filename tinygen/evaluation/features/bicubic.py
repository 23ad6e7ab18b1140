"""Antialiased bicubic resizing (Parmar et al. 2022)."""

import numpy as np
from PIL import Image


def bicubic(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """uint8 [H, W, C] -> float32 [height, width, C] in [0, 255], like clean-fid, ignoring the aspect ratio.

    size: (height, width)

    Pillow's bicubic filter on each channel in float, which averages when downscaling; clipped, not rounded. An image of this size is
    unchanged.
    """
    height, width = size
    planes = image.astype(np.float32).transpose(2, 0, 1)
    channels = [Image.fromarray(plane).resize((width, height), Image.Resampling.BICUBIC) for plane in planes]
    return np.stack([np.asarray(channel) for channel in channels], -1).clip(0, 255)
