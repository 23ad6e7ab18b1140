"""The interface of feature extractors."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
    """A frozen network that extracts features for scores.

    name: "inception", "efflite0", or a run's
    distance: the name of a Fréchet distance over it: "FID" (only with Inception's public weights), "FD-EffLite0", ...
    dim: features per image
    preset: the name of the preprocessing of images
    size: (height, width) of its input
    prepare: uint8 [H, W, 3] -> float32 [height, width, 3], the network's input; runs on the host, in threads
    apply: (variables, float32 [B, height, width, 3]) -> {"features": [B, dim], "logits": [B, K]}; pure, to be jitted; logits only if
        Inception Score can use them
    variables: the weights, a tree of arrays
    sha256: of the weights' file
    """

    name: str
    distance: str
    dim: int
    preset: str
    size: tuple[int, int]
    prepare: Callable[[np.ndarray], np.ndarray]
    apply: Callable[[Any, jax.Array], dict[str, jax.Array]]
    variables: Any
    sha256: str
