"""The parts that models are made of.

Shape letters, in the whole project: B batch, T frames or tokens of a sequence, H W height and width, C channels,
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
    """A variable that is not trained: statistics of a codebook, a frozen network."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Output:
    """What a denoiser returns.

    pred: the prediction, of the input's shape
    head: a second prediction of the same shape, or None
    weight: broadcasts against pred; 0 where the model gave no prediction (a dropped patch), and elsewhere such that its expectation over
        the model's random choices is 1 in every place, so that a mean weighted by it is unbiased. None means 1 everywhere
    stats: scalars that the objective copies into its metrics
    """

    pred: jax.Array
    head: jax.Array | None = None
    weight: jax.Array | None = None
    stats: Mapping[str, jax.Array] = dataclasses.field(default_factory=dict)


def pin(x: jax.Array, *names: Any) -> jax.Array:
    """Constrains `x` to a partition over mesh axes by name, one a dimension; a no-op without a mesh.

    names: "batch" stands for the axes that split the batch, None for whole; `...` at the end leaves the other dimensions to XLA,
        and without it they are whole
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return x
    free = [jax.sharding.PartitionSpec.UNCONSTRAINED] * (x.ndim - len(names) + 1)
    dimensions = [*names[:-1], *free] if names[-1] is ... else names
    spec = jax.sharding.PartitionSpec(*(("data", "fsdp") if name == "batch" else name for name in dimensions))
    return jax.lax.with_sharding_constraint(x, spec)


def batch_shards() -> int:
    """The number of parts into which the devices split a batch; 1 without a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else mesh.shape["data"] * mesh.shape["fsdp"]


def xavier_uniform(key: jax.Array, fan_in: int, fan_out: int) -> jax.Array:
    """[fan_in, fan_out], uniform in ±√(6 / (fan_in + fan_out)) (Glorot & Bengio 2010)."""
    bound = math.sqrt(6.0 / (fan_in + fan_out))
    return jax.random.uniform(key, (fan_in, fan_out), jnp.float32, -bound, bound)


class Linear(nnx.Module):
    """y = x · kernel + bias: [..., inputs] -> [..., outputs], Xavier uniform or, where `zero`, from zero.

    The product is one of matrices: with several leading axes XLA's CPU backend takes almost twice as long over the
    kernel's gradient. Each kernel is one matrix too (queries, keys and values apart), so a partition of its columns
    is a partition of heads or hidden features. Input and output stay split over the batch: or else XLA, given a kernel that
    fsdp splits and few rows, moves the rows to the kernel's parts and back.
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
    """Zero mean and unit variance over the last axis, in float32, without parameters: adaptive layer norm brings its own."""
    x = wide(x)
    centred = x - jnp.mean(x, -1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(jnp.square(centred), -1, keepdims=True) + 1e-6)


class LayerNorm(nnx.Module):
    """`layer_norm` with a scale a feature, and no bias."""

    def __init__(self, width: int):
        self.scale = nnx.Param(jnp.ones(width))

    def __call__(self, x: jax.Array) -> jax.Array:
        return layer_norm(x) * self.scale[...]


def modulate(x: jax.Array, shift: jax.Array, scale: jax.Array) -> jax.Array:
    """x [B, L, D] scaled and shifted by [B, D], an example (Peebles & Xie 2023)."""
    return x * (1.0 + scale[:, None]) + shift[:, None]


def sincos(position: jax.Array | np.ndarray, width: int, longest: float = 10_000.0) -> jax.Array:
    """Sines and cosines [..., width] of `position` [...] at width/2 geometric frequencies from 1 to 1/longest (Vaswani et al. 2017)."""
    half = width // 2
    frequencies = np.exp(-math.log(longest) * np.arange(half) / half).astype(np.float32)
    angles = wide(jnp.asarray(position))[..., None] * frequencies
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)


def coordinates(height: int, width: int, grid: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(rows, columns), float64 [height · width] each: where the places of a grid are, row by row.

    grid: how many rows of places the coordinates span, whatever their number: place i is at i · grid / height; 0 = at i

    First places are aligned, as MicroDiT's authors have it: of a grid twice as fine every second place is where the coarse grid had
    one, exactly as a model that was trained on that grid knows it, and the others lie halfway. (With cells' centres aligned none would
    be, and the first would lie outside, at -1/4. To offsets it is all the same.)
    """
    scale = (grid or height) / height
    rows, columns = np.meshgrid(scale * np.arange(height), scale * np.arange(width), indexing="ij")
    return rows.ravel(), columns.ravel()


def sincos_2d(height: int, width: int, features: int, grid: int = 0) -> jax.Array:
    """Fixed positions [height · width, features] of a grid, row by row: half the features for the row, half for the column.

    grid: as `coordinates` takes it
    """
    return jnp.concatenate([sincos(place, features // 2) for place in coordinates(height, width, grid)], -1)


class TimeEmbedding(nnx.Module):
    """t [B] -> [B, D]: a two-layer perceptron on sines and cosines of scale·t.

    Its products are in float32 whatever the precision of the model. Rounded to bfloat16 the sines of ln σ / 4, EDM's time, have steps
    of up to 2^-8, or 1.6 % of σ; and an average velocity's du/dt is the slope of these features.
    """

    def __init__(self, width: int, scale: float, *, rngs: nnx.Rngs):
        self.scale = scale
        self.features = 256
        self.hidden = Linear(self.features, width, precision="float32", rngs=rngs)
        self.out = Linear(width, width, precision="float32", rngs=rngs)

    def __call__(self, t: jax.Array) -> jax.Array:
        return self.out(jax.nn.silu(self.hidden(sincos(self.scale * t, self.features))))


def drop(x: jax.Array, rate: float, key: jax.Array) -> jax.Array:
    """`x` with a share `rate` of its elements put to zero, the others enlarged to keep the mean.

    Which ones depends on the key and the shape alone: JAX counts its random bits by their place in the whole array, however it is
    split over devices.
    """
    return jnp.where(jax.random.bernoulli(key, 1.0 - rate, x.shape), x / (1.0 - rate), 0.0)


def patches_of(places: Sequence[int], patch: int) -> tuple[int, ...]:
    """How many patches cover places, along each dimension; the last one may reach beyond them."""
    return tuple(-(-size // patch) for size in places)


def filled(x: jax.Array, patch: int) -> jax.Array:
    """x [B, *places, C] with zeros after the last place of each dimension that patches of `patch` places do not divide."""
    missing = [-size % patch for size in x.shape[1:-1]]
    return jnp.pad(x, [(0, 0), *((0, each) for each in missing), (0, 0)]) if any(missing) else x


def cut(x: jax.Array, places: Sequence[int]) -> jax.Array:
    """x [B, *filled places, C] without what `filled` has added to the `places`."""
    return x if x.shape[1:-1] == tuple(places) else x[(slice(None), *map(slice, places))]


def patchify(x: jax.Array, patch: int) -> jax.Array:
    """[B, H, W, C] -> [B, ⌈H/p⌉ · ⌈W/p⌉, p·p·C], patches row by row; those that reach beyond the image are filled up with zeros."""
    B, _, _, C = x.shape
    rows, columns = patches_of(x.shape[1:3], patch)
    x = filled(x, patch).reshape(B, rows, patch, columns, patch, C)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(B, rows * columns, patch * patch * C)


def unpatchify(tokens: jax.Array, shape: Sequence[int], patch: int) -> jax.Array:
    """The inverse of `patchify` for images of `shape` (H, W, C)."""
    *places, C = shape
    rows, columns = patches_of(places, patch)
    x = tokens.reshape(-1, rows, columns, patch, patch, C)
    return cut(x.transpose(0, 1, 3, 2, 4, 5).reshape(-1, rows * patch, columns * patch, C), places)
