"""Layers shared by the models.

Shape letters throughout the project: B batch, T frames or tokens of a sequence, H W height and width, C channels,
L tokens, D features, N heads, E experts, F hidden features of a feed-forward layer.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tinygen.nn.matmul import product, wide


class Buffer(nnx.Variable):
    """A variable that is not trained, such as the statistics of a codebook or a frozen network."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Output:
    """The output of a denoiser.

    pred: the prediction, of the input's shape
    head: a second prediction of the same shape, or None
    weight: broadcasts against pred; 0 where there is no prediction (a dropped patch). Its expectation over the model's random choices is
        1 everywhere, so a mean weighted by it is unbiased. None means 1 everywhere
    stats: scalars that the objective copies into its metrics
    """

    pred: jax.Array
    head: jax.Array | None = None
    weight: jax.Array | None = None
    stats: Mapping[str, jax.Array] = dataclasses.field(default_factory=dict)


def pin(x: jax.Array, *names: Any) -> jax.Array:
    """Constrains the sharding of `x` to mesh axes by name, one per dimension; a no-op without a mesh.

    names: "batch" for the axes that shard the batch, None for replicated. Further dimensions are replicated, or after `...` left to XLA
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return x
    free = [jax.sharding.PartitionSpec.UNCONSTRAINED] * (x.ndim - len(names) + 1)
    dimensions = [*names[:-1], *free] if names[-1] is ... else names
    spec = jax.sharding.PartitionSpec(*(("data", "fsdp") if name == "batch" else name for name in dimensions))
    return jax.lax.with_sharding_constraint(x, spec)


def batch_shards() -> int:
    """The number of shards of a batch; 1 without a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else mesh.shape["data"] * mesh.shape["fsdp"]


def xavier_uniform(key: jax.Array, fan_in: int, fan_out: int) -> jax.Array:
    """[fan_in, fan_out], uniform in ±√(6 / (fan_in + fan_out)) (Glorot & Bengio 2010)."""
    bound = math.sqrt(6.0 / (fan_in + fan_out))
    return jax.random.uniform(key, (fan_in, fan_out), jnp.float32, -bound, bound)


class Linear(nnx.Module):
    """y = x · kernel + bias: [..., inputs] -> [..., outputs], initialized Xavier uniform, or to zero with `zero`.

    Leading axes are merged: with several, XLA's CPU backend takes almost twice as long for the kernel's gradient. Input and output stay
    sharded over the batch: otherwise XLA, given a kernel sharded by fsdp and few rows, moves the rows to the kernel's shards and back.
    """

    def __init__(self, inputs: int, outputs: int, *, precision: str, rngs: nnx.Rngs, zero: bool = False):
        self.kernel = nnx.Param(jnp.zeros((inputs, outputs)) if zero else xavier_uniform(rngs.params(), inputs, outputs))
        self.bias = nnx.Param(jnp.zeros(outputs))
        self.precision = precision

    def __call__(self, x: jax.Array) -> jax.Array:
        rows = pin(x, "batch", ...).reshape(-1, x.shape[-1])
        y = product(rows, self.kernel[...], ((1,), (0,)), precision=self.precision) + self.bias[...]
        return pin(y.reshape(*x.shape[:-1], y.shape[-1]), "batch", ...)


class Embedding(nnx.Module):
    """A table of `num` rows of `width` features, N(0, 0.02²)."""

    def __init__(self, num: int, width: int, *, rngs: nnx.Rngs):
        self.embedding = nnx.Param(0.02 * jax.random.normal(rngs.params(), (num, width)))

    def __call__(self, index: jax.Array) -> jax.Array:  # [...] -> [..., D]
        return pin(self.embedding[...][index], "batch", ...)


class RMSNorm(nnx.Module):
    """x / √(mean x² + ε) · scale over the last axis (Zhang & Sennrich 2019)."""

    def __init__(self, width: int):
        self.scale = nnx.Param(jnp.ones(width))

    def __call__(self, x: jax.Array) -> jax.Array:
        x = wide(x)
        return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6) * self.scale[...]


def layer_norm(x: jax.Array) -> jax.Array:
    """Zero mean and unit variance over the last axis, in float32, without parameters: adaptive layer norm has its own."""
    x = wide(x)
    centred = x - jnp.mean(x, -1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(jnp.square(centred), -1, keepdims=True) + 1e-6)


class LayerNorm(nnx.Module):
    """`layer_norm` with a scale per feature and no bias."""

    def __init__(self, width: int):
        self.scale = nnx.Param(jnp.ones(width))

    def __call__(self, x: jax.Array) -> jax.Array:
        return layer_norm(x) * self.scale[...]


def as_channels(x: jax.Array, channels: int) -> jax.Array:
    """x [B, *places, C] unchanged, or the one-hot vectors [B, *places, C] of tokens int32 [B, *places]; tokens from C on, masks, are 0."""
    return jax.nn.one_hot(x, channels) if jnp.issubdtype(x.dtype, jnp.integer) else x


def modulate(x: jax.Array, shift: jax.Array, scale: jax.Array) -> jax.Array:
    """x [B, L, D] scaled and shifted by [B, D], per example (Peebles & Xie 2023)."""
    return x * (1.0 + scale[:, None]) + shift[:, None]


def sincos(position: jax.Array | np.ndarray, width: int, longest: float = 10_000.0) -> jax.Array:
    """Sines and cosines [..., width] of `position` [...] at width/2 geometric frequencies from 1 to 1/longest (Vaswani et al. 2017)."""
    half = width // 2
    frequencies = np.exp(-math.log(longest) * np.arange(half) / half).astype(np.float32)
    angles = wide(jnp.asarray(position))[..., None] * frequencies
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)


def coordinates(height: int, width: int, grid: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(rows, columns), float64 [height · width] each: the coordinates of the places of a grid, row by row.

    grid: the rows that the coordinates span, whatever the height: place i is at i · grid / height; 0 = at i

    The first places are aligned, as in MicroDiT: every second place of a grid twice as fine coincides with one of the coarse grid, and
    the others lie halfway. (With aligned cell centres none would coincide, and the first would lie outside, at -1/4.)
    """
    scale = (grid or height) / height
    rows, columns = np.meshgrid(scale * np.arange(height), scale * np.arange(width), indexing="ij")
    return rows.ravel(), columns.ravel()


def sincos_2d(height: int, width: int, features: int, grid: int = 0) -> jax.Array:
    """Fixed position embeddings [height · width, features] of a grid, row by row: half the features for the row, half for the column.

    grid: see `coordinates`
    """
    return jnp.concatenate([sincos(place, features // 2) for place in coordinates(height, width, grid)], -1)


class TimeEmbedding(nnx.Module):
    """t [B] -> [B, D]: a two-layer perceptron on sines and cosines of scale·t.

    Always in float32. In bfloat16 the sines of ln σ / 4, EDM's time, would have steps of up to 2^-8, or 1.6 % of σ; and an average
    velocity's du/dt is the slope of these features.
    """

    def __init__(self, width: int, scale: float, *, rngs: nnx.Rngs):
        self.scale = scale
        self.features = 256
        self.hidden = Linear(self.features, width, precision="float32", rngs=rngs)
        self.out = Linear(width, width, precision="float32", rngs=rngs)

    def __call__(self, t: jax.Array) -> jax.Array:
        return self.out(jax.nn.silu(self.hidden(sincos(self.scale * t, self.features))))


def drop(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Dropout, or nothing without a key: zeroes a share `rate` of the elements of `x` and scales the others to keep the mean.

    The mask does not depend on the sharding: JAX's random bits are indexed by position in the global array.
    """
    return x if key is None else jnp.where(jax.random.bernoulli(key, 1.0 - rate, x.shape), x / (1.0 - rate), 0.0)


def patches_of(places: Sequence[int], patch: int) -> tuple[int, ...]:
    """The number of patches along each dimension; the last one may extend past the edge."""
    return tuple(-(-size // patch) for size in places)


def space_to_depth(x: jax.Array, patch: int) -> jax.Array:
    """[B, *places, C] -> [B, *⌈places / patch⌉, patch^dims · C], zero-padded at the end of each dimension."""
    B, *places, C = x.shape
    counts, dims = patches_of(places, patch), len(places)
    missing = [-size % patch for size in places]
    x = jnp.pad(x, [(0, 0), *((0, each) for each in missing), (0, 0)]) if any(missing) else x
    x = x.reshape(B, *[each for count in counts for each in (count, patch)], C)
    order = [0, *range(1, 2 * dims, 2), *range(2, 2 * dims + 1, 2), 2 * dims + 1]
    return x.transpose(order).reshape(B, *counts, -1)


def depth_to_space(x: jax.Array, patch: int, places: Sequence[int]) -> jax.Array:
    """The inverse of `space_to_depth`, cropped to `places`."""
    B, *counts, _ = x.shape
    dims = len(counts)
    x = x.reshape(B, *counts, *[patch] * dims, -1)
    order = [0, *[each for axis in range(1, dims + 1) for each in (axis, axis + dims)], 2 * dims + 1]
    x = x.transpose(order).reshape(B, *(count * patch for count in counts), -1)
    return x if x.shape[1:-1] == tuple(places) else x[(slice(None), *map(slice, places))]


def patchify(x: jax.Array, patch: int) -> jax.Array:
    """[B, H, W, C] -> [B, ⌈H/p⌉ · ⌈W/p⌉, p·p·C], patches row by row, zero-padded at the edges."""
    return space_to_depth(x, patch).reshape(len(x), -1, patch * patch * x.shape[-1])


def unpatchify(tokens: jax.Array, shape: Sequence[int], patch: int) -> jax.Array:
    """The inverse of `patchify` for images of `shape` (H, W, C)."""
    places = shape[:2]
    return depth_to_space(tokens.reshape(len(tokens), *patches_of(places, patch), -1), patch, places)
