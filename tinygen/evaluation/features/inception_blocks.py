"""The blocks of FID's Inception-v3. Attributes have the names in its weights file; batch norms are folded into the convolutions."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tinygen.nn.layers import Buffer

HIGHEST = jax.lax.Precision.HIGHEST  # the default precision on GPUs and TPUs changes the distance
LAYOUT = ("NHWC", "HWIO", "NHWC")  # of a convolution's input, kernel and output
AROUND = ((0, 0), (1, 1), (1, 1), (0, 0))  # one pixel on all sides of [B, H, W, C]


class Convolution(nnx.Module):
    """relu(x * kernel + bias), [B, H, W, inputs] -> [B, H', W', outputs]; the batch norm is in the kernel and the bias.

    size: height and width of the kernel
    pad: zero-pad to keep the size

    Without padding, one more row and column are computed over zeros past the edge and dropped: with any padding XLA's convolution on a
    CPU takes a path that is four times as fast.
    """

    def __init__(self, inputs: int, outputs: int, size: tuple[int, int] = (1, 1), *, stride: int = 1, pad: bool = True):
        self.kernel = Buffer(jnp.zeros((*size, inputs, outputs)))
        self.bias = Buffer(jnp.zeros(outputs))
        self.stride = stride
        self.padding = tuple((length // 2, length // 2) if pad else (0, stride) for length in size)
        self.dropped = 0 if pad else 1

    def __call__(self, x: jax.Array) -> jax.Array:
        kernel, strides = self.kernel[...], (self.stride, self.stride)
        y = jax.lax.conv_general_dilated(x, kernel, strides, self.padding, dimension_numbers=LAYOUT, precision=HIGHEST)
        y = y[:, : y.shape[1] - self.dropped, : y.shape[2] - self.dropped]
        return jax.nn.relu(y + self.bias[...])


def abreast(x: jax.Array, *layers: Convolution) -> list[jax.Array]:
    """Several 1x1 convolutions of x [B, H, W, C] as one matrix product."""
    kernel = jnp.concatenate([layer.kernel[0, 0] for layer in layers], -1)
    bias = jnp.concatenate([layer.bias[...] for layer in layers])
    ends = np.cumsum([layer.bias.shape[0] for layer in layers])
    return jnp.split(jax.nn.relu(jnp.matmul(x, kernel, precision=HIGHEST) + bias), ends[:-1], -1)


def chain(x: jax.Array, *layers: Callable[[jax.Array], jax.Array]) -> jax.Array:
    return functools.reduce(lambda y, layer: layer(y), layers, x)


def joined(join: Callable[[jax.Array, jax.Array], jax.Array], x: jax.Array, stride: int) -> jax.Array:
    """3x3 pooling of x [B, H, W, C] with the reduction `join`, along columns and then rows, at every `stride`-th pixel.

    XLA fuses these slices into one loop; its own pooling takes five times as long on a CPU.
    """
    for axis in (1, 2):
        last = (x.shape[axis] - 3) // stride * stride
        x = functools.reduce(join, [jax.lax.slice_in_dim(x, first, first + last + 1, stride, axis) for first in range(3)])
    return x


def maximum(x: jax.Array, *, stride: int = 2) -> jax.Array:
    """3x3 max pooling: without padding at stride 2, with padding at stride 1."""
    return joined(jnp.maximum, jnp.pad(x, AROUND, constant_values=-jnp.inf) if stride == 1 else x, stride)


def average(x: jax.Array) -> jax.Array:
    """3x3 average pooling at stride 1 that excludes padding."""
    return joined(jnp.add, jnp.pad(x, AROUND), 1) / joined(jnp.add, jnp.pad(jnp.ones((1, *x.shape[1:3], 1)), AROUND), 1)


class MixedA(nnx.Module):  # [B, 35, 35, inputs] -> [B, 35, 35, 224 + pooled]
    def __init__(self, inputs: int, pooled: int):
        self.branch1x1 = Convolution(inputs, 64)
        self.branch5x5_1 = Convolution(inputs, 48)
        self.branch5x5_2 = Convolution(48, 64, (5, 5))
        self.branch3x3dbl_1 = Convolution(inputs, 64)
        self.branch3x3dbl_2 = Convolution(64, 96, (3, 3))
        self.branch3x3dbl_3 = Convolution(96, 96, (3, 3))
        self.branch_pool = Convolution(inputs, pooled)

    def __call__(self, x: jax.Array) -> jax.Array:
        single, five, double = abreast(x, self.branch1x1, self.branch5x5_1, self.branch3x3dbl_1)
        double = chain(double, self.branch3x3dbl_2, self.branch3x3dbl_3)
        return jnp.concatenate([single, self.branch5x5_2(five), double, self.branch_pool(average(x))], -1)


class MixedB(nnx.Module):  # [B, 35, 35, inputs] -> [B, 17, 17, 480 + inputs]
    def __init__(self, inputs: int):
        self.branch3x3 = Convolution(inputs, 384, (3, 3), stride=2, pad=False)
        self.branch3x3dbl_1 = Convolution(inputs, 64)
        self.branch3x3dbl_2 = Convolution(64, 96, (3, 3))
        self.branch3x3dbl_3 = Convolution(96, 96, (3, 3), stride=2, pad=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        double = chain(x, self.branch3x3dbl_1, self.branch3x3dbl_2, self.branch3x3dbl_3)
        return jnp.concatenate([self.branch3x3(x), double, maximum(x)], -1)


class MixedC(nnx.Module):  # [B, 17, 17, inputs] -> [B, 17, 17, 768]
    def __init__(self, inputs: int, width: int):
        self.branch1x1 = Convolution(inputs, 192)
        self.branch7x7_1 = Convolution(inputs, width)
        self.branch7x7_2 = Convolution(width, width, (1, 7))
        self.branch7x7_3 = Convolution(width, 192, (7, 1))
        self.branch7x7dbl_1 = Convolution(inputs, width)
        self.branch7x7dbl_2 = Convolution(width, width, (7, 1))
        self.branch7x7dbl_3 = Convolution(width, width, (1, 7))
        self.branch7x7dbl_4 = Convolution(width, width, (7, 1))
        self.branch7x7dbl_5 = Convolution(width, 192, (1, 7))
        self.branch_pool = Convolution(inputs, 192)

    def __call__(self, x: jax.Array) -> jax.Array:
        single, seven, double = abreast(x, self.branch1x1, self.branch7x7_1, self.branch7x7dbl_1)
        seven = chain(seven, self.branch7x7_2, self.branch7x7_3)
        double = chain(double, self.branch7x7dbl_2, self.branch7x7dbl_3, self.branch7x7dbl_4, self.branch7x7dbl_5)
        return jnp.concatenate([single, seven, double, self.branch_pool(average(x))], -1)


class MixedD(nnx.Module):  # [B, 17, 17, inputs] -> [B, 8, 8, 512 + inputs]
    def __init__(self, inputs: int):
        self.branch3x3_1 = Convolution(inputs, 192)
        self.branch3x3_2 = Convolution(192, 320, (3, 3), stride=2, pad=False)
        self.branch7x7x3_1 = Convolution(inputs, 192)
        self.branch7x7x3_2 = Convolution(192, 192, (1, 7))
        self.branch7x7x3_3 = Convolution(192, 192, (7, 1))
        self.branch7x7x3_4 = Convolution(192, 192, (3, 3), stride=2, pad=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        three, seven = abreast(x, self.branch3x3_1, self.branch7x7x3_1)
        seven = chain(seven, self.branch7x7x3_2, self.branch7x7x3_3, self.branch7x7x3_4)
        return jnp.concatenate([self.branch3x3_2(three), seven, maximum(x)], -1)


class MixedE(nnx.Module):  # [B, 8, 8, inputs] -> [B, 8, 8, 2048]
    def __init__(self, inputs: int, pool: Callable[[jax.Array], jax.Array]):
        self.branch1x1 = Convolution(inputs, 320)
        self.branch3x3_1 = Convolution(inputs, 384)
        self.branch3x3_2a = Convolution(384, 384, (1, 3))
        self.branch3x3_2b = Convolution(384, 384, (3, 1))
        self.branch3x3dbl_1 = Convolution(inputs, 448)
        self.branch3x3dbl_2 = Convolution(448, 384, (3, 3))
        self.branch3x3dbl_3a = Convolution(384, 384, (1, 3))
        self.branch3x3dbl_3b = Convolution(384, 384, (3, 1))
        self.branch_pool = Convolution(inputs, 192)
        self.pool = pool

    def __call__(self, x: jax.Array) -> jax.Array:
        single, three, double = abreast(x, self.branch1x1, self.branch3x3_1, self.branch3x3dbl_1)
        double = self.branch3x3dbl_2(double)
        split = [self.branch3x3_2a(three), self.branch3x3_2b(three), self.branch3x3dbl_3a(double), self.branch3x3dbl_3b(double)]
        return jnp.concatenate([single, *split, self.branch_pool(self.pool(x))], -1)
