"""Convolution of images [B, H, W, C] and group norm, which is independent of the batch."""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from tinygen.nn.layers import pin
from tinygen.nn.matmul import wide


class Convolution(nnx.Module):
    """[B, H, W, C] -> [B, ⌈H / stride⌉, ⌈W / stride⌉, C'], padded with zeros; He normal (He et al. 2015).

    Only the batch is sharded, whatever the kernel's sharding: with data, fsdp and tensor axes all in use, XLA's partitioner silently
    computes wrong sums for convolutions of sharded features (seen in JAX 0.10 on a 2x2x2 mesh).
    """

    def __init__(self, inputs: int, outputs: int, *, side: int = 3, stride: int = 1, precision: str, rngs: nnx.Rngs):
        deviation = math.sqrt(2.0 / (side * side * inputs))
        self.kernel = nnx.Param(deviation * jax.random.normal(rngs.params(), (side, side, inputs, outputs)))
        self.bias = nnx.Param(jnp.zeros(outputs))
        self.stride, self.precision = stride, precision

    def __call__(self, x: jax.Array) -> jax.Array:
        y = convolve(pin(x, "batch"), pin(self.kernel[...], None), self.stride, precision=self.precision)
        return pin(y + self.bias[...], "batch")


def convolve(x: jax.Array, kernel: jax.Array, stride: int = 1, *, precision: str) -> jax.Array:
    """x [B, H, W, C] with kernel [h, w, C, C'], or [h, w, C] for each feature by itself, padded to ⌈H / stride⌉ x ⌈W / stride⌉.

    In one dimension likewise: x [B, L, C] with kernel [l, C, C'] or [l, C].

    precision: "float32" is exact; otherwise operands are rounded to bfloat16, and so is the result, since JAX cannot differentiate a
        convolution whose result is wider than its operands
    """
    dims = "HW"[: x.ndim - 2]
    if precision != "float32":
        x, kernel = x.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16)
    depthwise = kernel.ndim < x.ndim
    y = jax.lax.conv_general_dilated(
        x, kernel[..., None, :] if depthwise else kernel, (stride,) * len(dims), "SAME",
        feature_group_count=x.shape[-1] if depthwise else 1,
        dimension_numbers=(f"N{dims}C", f"{dims}IO", f"N{dims}C"), precision=jax.lax.Precision.HIGHEST,
    )  # fmt: skip
    return wide(y)


class GroupNorm(nnx.Module):
    """Zero mean and unit variance of each example's groups of features over all pixels, then scale and bias (Wu & He 2018)."""

    def __init__(self, width: int, groups: int):
        self.scale, self.bias = nnx.Param(jnp.ones(width)), nnx.Param(jnp.zeros(width))
        self.groups = groups

    def __call__(self, x: jax.Array) -> jax.Array:  # [B, H, W, C]
        B, H, W, C = x.shape
        grouped = wide(x).reshape(B, H * W, self.groups, C // self.groups)
        centred = grouped - jnp.mean(grouped, (1, 3), keepdims=True)
        normal = centred * jax.lax.rsqrt(jnp.mean(jnp.square(centred), (1, 3), keepdims=True) + 1e-6)
        return normal.reshape(x.shape) * self.scale[...] + self.bias[...]
