"""The interface of feature extractors, and the folding of batch norms that they share."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

BATCH_NORM = ("weight", "bias", "running_mean", "running_var")  # PyTorch's names of scale, shift, mean and variance
EPSILON = 1e-3  # of batch norm, in all networks here


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
    """A frozen network that extracts features for scores.

    prepare: uint8 [H, W, 3] -> float32 [height, width, 3], the network's input; runs on the host, in threads
    apply: (variables, float32 [B, height, width, 3]) -> {"features": [B, dim], "logits": [B, K]}; pure, to be jitted; logits only if
        Inception Score can use them
    """

    name: str  # "inception", "efflite0", or a run's
    distance: str  # of a Fréchet distance over it: "FID" (only with Inception's public weights), "FD-EffLite0", ...
    dim: int  # features per image
    preset: str  # of the preprocessing of images
    size: tuple[int, int]  # height and width of its input
    prepare: Callable[[np.ndarray], np.ndarray]
    apply: Callable[[Any, jax.Array], dict[str, jax.Array]]
    variables: Any  # the weights, a tree of arrays
    sha256: str  # of the weights' file


def folded(
    kernel: np.ndarray, scale: np.ndarray, shift: np.ndarray, mean: np.ndarray, variance: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """A convolution with the following batch norm folded in, computed in float64.

    kernel: PyTorch's, [C', C, height, width]
    Returns the kernel [height, width, C, C'] and the bias [C'] in float32.
    """
    gain = scale.astype(np.float64) / np.sqrt(variance.astype(np.float64) + EPSILON)
    kernel = kernel.astype(np.float64).transpose(2, 3, 1, 0)
    return (kernel * gain).astype(np.float32), (shift.astype(np.float64) - mean * gain).astype(np.float32)
