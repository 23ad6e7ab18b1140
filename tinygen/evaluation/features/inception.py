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
from tinygen.evaluation.features import inception_blocks as blocks
from tinygen.evaluation.features import resize
from tinygen.evaluation.features.network import BATCH_NORM, Network, folded
from tinygen.pretrained.weights import NAMES, PUBLIC, find, read

DIM = 2048
CLASSES = 1008


class Inception(nnx.Module):
    """[B, 299, 299, 3] in about ±1 -> features [B, 2048], the means over the last block's 8x8, and logits [B, 1008] without a bias."""

    def __init__(self):
        self.Conv2d_1a_3x3 = blocks.Convolution(3, 32, (3, 3), stride=2, pad=False)
        self.Conv2d_2a_3x3 = blocks.Convolution(32, 32, (3, 3), pad=False)
        self.Conv2d_2b_3x3 = blocks.Convolution(32, 64, (3, 3))
        self.Conv2d_3b_1x1 = blocks.Convolution(64, 80)
        self.Conv2d_4a_3x3 = blocks.Convolution(80, 192, (3, 3), pad=False)
        self.Mixed_5b = blocks.MixedA(192, 32)
        self.Mixed_5c = blocks.MixedA(256, 64)
        self.Mixed_5d = blocks.MixedA(288, 64)
        self.Mixed_6a = blocks.MixedB(288)
        self.Mixed_6b = blocks.MixedC(768, 128)
        self.Mixed_6c = blocks.MixedC(768, 160)
        self.Mixed_6d = blocks.MixedC(768, 160)
        self.Mixed_6e = blocks.MixedC(768, 192)
        self.Mixed_7a = blocks.MixedD(768)
        self.Mixed_7b = blocks.MixedE(1280, blocks.average)
        self.Mixed_7c = blocks.MixedE(2048, functools.partial(blocks.maximum, stride=1))
        # without the file's bias, as in the Inception Score
        self.fc = nnx.Linear(DIM, CLASSES, use_bias=False, precision=blocks.HIGHEST, rngs=nnx.Rngs(0))

    def __call__(self, x: jax.Array) -> dict[str, jax.Array]:
        x = blocks.maximum(blocks.chain(x, self.Conv2d_1a_3x3, self.Conv2d_2a_3x3, self.Conv2d_2b_3x3))
        x = blocks.maximum(blocks.chain(x, self.Conv2d_3b_1x1, self.Conv2d_4a_3x3))
        x = blocks.chain(x, self.Mixed_5b, self.Mixed_5c, self.Mixed_5d)
        x = blocks.chain(x, self.Mixed_6a, self.Mixed_6b, self.Mixed_6c, self.Mixed_6d, self.Mixed_6e)
        x = blocks.chain(x, self.Mixed_7a, self.Mixed_7b, self.Mixed_7c)
        features = jnp.mean(x, (1, 2))
        return {"features": features, "logits": self.fc(features)}


def inception(preset: str, weights: str | None) -> Network:
    """FID's network with the public weights, or with those of a given file.

    preset: "adm", "pytorch-fid" or "clean": how images are resized and scaled
    weights: a file in any format of `weights.read`, with the public file's names; None: the public file
    Raises UserError for an unknown preset, and for weights that are unavailable, unreadable, or of another network.
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
        message = "weights %s are not the public file (SHA-256 %s...): a distance over them is no FID, and is called fd_inception"
        logging.warning(message, path, sha256[:8])
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
def graph() -> tuple[nnx.GraphDef, dict[str, tuple[int, ...]]]:
    """(the network without its variables, the shapes of its kernels by layer: "Mixed_5b.branch1x1": (1, 1, 192, 64))"""
    graphdef, state = nnx.split(nnx.eval_shape(Inception))
    leaves: dict[str, Any] = flatten_dict(nnx.to_pure_dict(state), sep=".")
    return graphdef, {name.removesuffix(".kernel"): leaf.shape for name, leaf in leaves.items() if name.endswith(".kernel")}


def file_shapes() -> dict[str, tuple[int, ...]]:
    """The shape of every array that a file must have, by the file's names; it may have others."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer, (*size, inputs, outputs) in graph()[1].items():
        if size:
            shapes |= {f"{layer}.bn.{part}": (outputs,) for part in BATCH_NORM}
        shapes[f"{layer}.conv.weight" if size else f"{layer}.weight"] = (outputs, inputs, *size)
    return shapes


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
    variables = {"fc.kernel": np.asarray(arrays["fc.weight"].T, np.float32)}
    for layer in graph()[1].keys() - {"fc"}:
        norm = (arrays[f"{layer}.bn.{part}"] for part in BATCH_NORM)
        variables[f"{layer}.kernel"], variables[f"{layer}.bias"] = folded(arrays[f"{layer}.conv.weight"], *norm)
    return unflatten_dict(variables, sep=".")
