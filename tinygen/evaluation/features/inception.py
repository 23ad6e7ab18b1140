"""Inception-v3 of the Fréchet Inception Distance (Szegedy et al. 2016; Heusel et al. 2017), with its public weights.

It is the network of 2015-12-05, whose 3x3 average pooling excludes padding, and whose last block uses max pooling instead. Attributes
have the names in the weights file: `Mixed_5b.branch5x5_1.conv.weight` is the kernel of `Mixed_5b.branch5x5_1` here, with the batch norm
folded in.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict

from tinygen.errors import UserError, unknown
from tinygen.evaluation.features import resize
from tinygen.evaluation.features.inception_blocks import (
    HIGHEST,
    Convolution,
    MixedA,
    MixedB,
    MixedC,
    MixedD,
    MixedE,
    average,
    chain,
    maximum,
)
from tinygen.evaluation.features.network import Network
from tinygen.nn.layers import Buffer
from tinygen.pretrained.weights import NAMES, PUBLIC, find, read

DIM = 2048
CLASSES = 1008
EPSILON = 1e-3  # of batch norm
BATCH_NORM = ("weight", "bias", "running_mean", "running_var")


class Head(nnx.Module):
    """[B, 2048] -> [B, 1008], without the file's bias, as in the Inception Score."""

    def __init__(self):
        self.kernel = Buffer(jnp.zeros((DIM, CLASSES)))

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.matmul(x, self.kernel[...], precision=HIGHEST)


class Inception(nnx.Module):
    """[B, 299, 299, 3] in about ±1 -> features [B, 2048], the means over the last block's 8x8, and logits [B, 1008] without a bias."""

    def __init__(self):
        self.Conv2d_1a_3x3 = Convolution(3, 32, (3, 3), stride=2, pad=False)
        self.Conv2d_2a_3x3 = Convolution(32, 32, (3, 3), pad=False)
        self.Conv2d_2b_3x3 = Convolution(32, 64, (3, 3))
        self.Conv2d_3b_1x1 = Convolution(64, 80)
        self.Conv2d_4a_3x3 = Convolution(80, 192, (3, 3), pad=False)
        self.Mixed_5b = MixedA(192, 32)
        self.Mixed_5c = MixedA(256, 64)
        self.Mixed_5d = MixedA(288, 64)
        self.Mixed_6a = MixedB(288)
        self.Mixed_6b = MixedC(768, 128)
        self.Mixed_6c = MixedC(768, 160)
        self.Mixed_6d = MixedC(768, 160)
        self.Mixed_6e = MixedC(768, 192)
        self.Mixed_7a = MixedD(768)
        self.Mixed_7b = MixedE(1280, average)
        self.Mixed_7c = MixedE(2048, functools.partial(maximum, stride=1))
        self.fc = Head()

    def __call__(self, x: jax.Array) -> dict[str, jax.Array]:
        x = maximum(chain(x, self.Conv2d_1a_3x3, self.Conv2d_2a_3x3, self.Conv2d_2b_3x3))
        x = maximum(chain(x, self.Conv2d_3b_1x1, self.Conv2d_4a_3x3))
        x = chain(x, self.Mixed_5b, self.Mixed_5c, self.Mixed_5d)
        x = chain(x, self.Mixed_6a, self.Mixed_6b, self.Mixed_6c, self.Mixed_6d, self.Mixed_6e)
        x = chain(x, self.Mixed_7a, self.Mixed_7b, self.Mixed_7c)
        features = jnp.mean(x, (1, 2))
        return {"features": features, "logits": self.fc(features)}


def inception(preset: str, weights: str | None) -> Network:
    """FID's network with the public weights, or with those of a given file.

    preset: "adm", "pytorch-fid" or "clean": how images are resized and scaled
    weights: a file in any format of `weights.read`, with the public file's names; None: the public file

    Raises:
      UserError: an unknown preset, or weights that are unavailable, unreadable, or of another network.
    """
    if preset not in resize.PRESETS:
        raise unknown("preset", preset, resize.PRESETS)
    path = find(weights)
    arrays, sha256 = read(path)
    try:
        variables = from_file(arrays)
    except ValueError as error:
        raise UserError(f"weights {path}: not Inception-v3 as FID has it: {error} (the public file is {NAMES[0]})") from error
    if sha256 != PUBLIC:
        logging.warning(
            "weights %s are not the public file (SHA-256 %s...): a distance over them is no FID, and is called fd_inception",
            path,
            sha256[:8],
        )
    graphdef, _ = graph()
    return Network(
        name="inception",
        distance="FID" if sha256 == PUBLIC else "FD-Inception",
        dim=DIM,
        preset=preset,
        size=(resize.SIZE, resize.SIZE),
        prepare=resize.PRESETS[preset],
        apply=lambda variables, x: nnx.merge(graphdef, variables)(x),
        variables=variables,
        sha256=sha256,
    )


@functools.cache
def graph() -> tuple[nnx.GraphDef, dict[tuple[str, ...], tuple[int, ...]]]:
    """(the network without its variables, their shapes by path: ("Mixed_5b", "branch1x1", "kernel"): (1, 1, 192, 64))"""
    graphdef, state = nnx.split(nnx.eval_shape(Inception))
    leaves: dict[Any, Any] = dict(flatten_dict(nnx.to_pure_dict(state)))
    return graphdef, {path: leaf.shape for path, leaf in leaves.items()}


def file_shapes() -> dict[str, tuple[int, ...]]:
    """The shape of every array that a file must have, by the file's names; it may have others."""
    _, shapes = graph()
    expected = {}
    for *layer, leaf in shapes:
        prefix, shape = ".".join(layer), shapes[(*layer, leaf)]
        if leaf == "bias":
            expected |= {f"{prefix}.bn.{name}": shape for name in BATCH_NORM}
        elif len(shape) == 4:
            expected[f"{prefix}.conv.weight"] = (shape[3], shape[2], shape[0], shape[1])
        else:
            expected[f"{prefix}.weight"] = shape[::-1]
    return expected


def from_file(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The network's variables from a file's arrays.

    Raises ValueError that names the first array that is missing, of the wrong shape, or not finite.
    """
    for name, shape in file_shapes().items():
        if name not in arrays:
            raise ValueError(f"there is no {name}")
        if arrays[name].shape != shape:
            raise ValueError(f"{name} is {arrays[name].shape}, not {shape}")
        if not np.isfinite(arrays[name].astype(np.float32)).all():
            raise ValueError(f"{name} is not finite")
    variables = {}
    for path, shape in graph()[1].items():
        layer = path[:-1]
        if len(shape) == 4:
            variables |= {(*layer, leaf): value for leaf, value in folded(arrays, ".".join(layer)).items()}
        elif path[-1] == "kernel":
            variables[path] = np.asarray(arrays[f"{'.'.join(layer)}.weight"].T, np.float32)
    return unflatten_dict(variables)


def folded(arrays: Mapping[str, np.ndarray], layer: str) -> dict[str, np.ndarray]:
    """A convolution's kernel [height, width, inputs, outputs] and bias with its batch norm folded in, computed in float64."""
    kernel = np.asarray(arrays[f"{layer}.conv.weight"], np.float64).transpose(2, 3, 1, 0)
    scale, shift, mean, variance = (np.asarray(arrays[f"{layer}.bn.{name}"], np.float64) for name in BATCH_NORM)
    scale = scale / np.sqrt(variance + EPSILON)
    return {"kernel": (kernel * scale).astype(np.float32), "bias": (shift - mean * scale).astype(np.float32)}
