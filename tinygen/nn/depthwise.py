"""Depthwise convolution: one kernel per feature, in one dimension [B, L, C] or two [B, H, W, C].

convolution  XLA's grouped convolution, for GPUs and TPUs
products     one product per feature with its kernel as a banded (Toeplitz) matrix, tile by tile: for backends whose grouped convolution
             is slow or missing. On a CPU it is 10 to 40 times as fast, forward and backward, since a tile's matrix costs little
             beside a ConvNeXt block's own products.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tinygen.errors import unknown
from tinygen.nn.convolution import convolve
from tinygen.nn.layers import pin
from tinygen.nn.matmul import product

METHODS = ("auto", "convolution", "products")
TILE = {1: 64, 2: 16}  # positions per side of a tile, by the number of dimensions


class Depthwise(nnx.Module):
    """[B, *places, C] -> the same shape, padded with zeros; N(0, 1 / taps). Raises UserError for an unknown method.

    dims: 1 or 2, of `places`
    side: of the kernel, odd
    """

    def __init__(self, width: int, side: int, dims: int, *, method: str, precision: str, rngs: nnx.Rngs):
        if method not in METHODS:
            raise unknown("config.model.depthwise", method, METHODS)
        deviation = 1 / math.sqrt(side**dims)
        self.kernel = nnx.Param(deviation * jax.random.normal(rngs.params(), (*[side] * dims, width)))
        self.bias = nnx.Param(jnp.zeros(width))
        self.precision = precision
        self.method = method if method != "auto" else "products" if jax.default_backend() == "cpu" else "convolution"

    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = pin(self.kernel[...], None)  # see `convolution.Convolution`
        function = convolve if self.method == "convolution" else by_products
        return pin(function(pin(x, "batch"), kernel, precision=self.precision) + self.bias[...], "batch")


def by_products(x: jax.Array, kernel: jax.Array, *, precision: str) -> jax.Array:
    """`convolve` as products: x [B, *places, C], kernel [side, ..., C].

    Places are split into tiles with overlapping margins; all tiles share a feature's matrix.
    """
    B, *places, C = x.shape
    side = kernel.shape[0]
    counts = [-(-size // TILE[len(places)]) for size in places]  # tiles along each dimension
    sizes = [-(-size // count) for size, count in zip(places, counts, strict=True)]
    margins = [side // 2 if count > 1 else 0 for count in counts]
    matrix = _matrix(kernel, tuple(sizes), tuple(margins))  # [C, places in, places out]
    for axis, (size, count, margin) in enumerate(zip(sizes, counts, margins, strict=True), 1):
        if count > 1:
            padding = [(0, 0)] * x.ndim
            padding[axis] = (margin, margin + size * count - x.shape[axis])
            x = jnp.pad(x, padding)
            tiles = [jax.lax.slice_in_dim(x, size * index, size * (index + 1) + 2 * margin, axis=axis) for index in range(count)]
            x = jnp.concatenate(tiles)  # tiles join the batch axis, outermost
    y = product(jnp.moveaxis(x.reshape(len(x), -1, C), 2, 0), matrix, ((2,), (1,)), ((0,), (0,)), precision=precision)
    y = jnp.moveaxis(y, 0, 2).reshape(len(x), *sizes, C)
    for axis, count in reversed(list(enumerate(counts, 1))):
        if count > 1:
            y = jnp.concatenate(jnp.split(y, count), axis)
            y = jax.lax.slice_in_dim(y, 0, places[axis - 1], axis=axis)
    return y


def _matrix(kernel: jax.Array, sizes: tuple[int, ...], margins: tuple[int, ...]) -> jax.Array:
    """[C, Π(size + 2 margin), Π size]: the weight of each input place in each output place of a tile. Built one dimension at a time."""
    side, C = kernel.shape[0], kernel.shape[-1]
    result = jnp.moveaxis(kernel, -1, 0)  # [C, side, ...]
    ins = [size + 2 * margin for size, margin in zip(sizes, margins, strict=True)]
    for size, margin in zip(sizes, margins, strict=True):
        rest = result.shape[2:]
        flat = jnp.moveaxis(result, 1, -1).reshape(-1, side)
        band = product(flat, jnp.asarray(_band(side, size, margin), flat.dtype), ((1,), (0,)), precision="float32")
        result = band.reshape(C, *rest, -1)  # the next dimension's taps now come first
    result = result.reshape(C, *[each for pair in zip(ins, sizes, strict=True) for each in pair])
    order = [0, *range(1, result.ndim, 2), *range(2, result.ndim, 2)]
    return result.transpose(order).reshape(C, math.prod(ins), math.prod(sizes))


@functools.cache
def _band(side: int, size: int, margin: int) -> np.ndarray:
    """[side, (size + 2 margin) · size] of zeros and ones: which tap connects which input place to which output place."""
    tap, into, out = np.ogrid[:side, : size + 2 * margin, :size]
    return (into - margin - out + side // 2 == tap).reshape(side, -1).astype(np.float32)
