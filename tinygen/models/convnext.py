"""A ConvNeXt denoiser for images or sound (Woo et al. 2023, arXiv 2301.00808).

A block is a depthwise convolution, a norm, and a feed-forward of `expansion` times the features with a global response norm inside.
The time and the conditions scale and shift the norm's output (FiLM, Perez et al. 2018). Two resolutions form an hourglass: blocks,
downsampling, blocks, upsampling with a skip connection, blocks.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from tinygen.errors import UserError, check_positive
from tinygen.nn import layers, stack
from tinygen.nn.conditioning import Conditioned, Scalars, span
from tinygen.nn.depthwise import Depthwise
from tinygen.nn.layers import Linear, Output, depth_to_space, space_to_depth
from tinygen.nn.matmul import narrow, wide


class GRN(nnx.Module):
    """Global response norm: x + γ(x ⊙ N) + β, N = G / mean of G over features, G the norm over all places; initially the identity."""

    def __init__(self, width: int):
        self.scale, self.bias = nnx.Param(jnp.zeros(width)), nnx.Param(jnp.zeros(width))

    def __call__(self, x: jax.Array) -> jax.Array:  # [B, *places, C]
        x = wide(x)
        places = tuple(range(1, x.ndim - 1))
        norm = jnp.sqrt(jnp.sum(jnp.square(x), places, keepdims=True) + 1e-6)  # a dead feature has a gradient too
        share = norm / (jnp.mean(norm, -1, keepdims=True) + 1e-6)
        return x + self.scale[...] * (x * share) + self.bias[...]


class Block(nnx.Module):
    """x + down(GRN(gelu(up(FiLM(norm(depthwise(x))))))), initially the identity."""

    def __init__(
        self, width: int, condition: int, side: int, dims: int, expansion: int, *, depthwise: str, precision: str, rngs: nnx.Rngs
    ):  # fmt: skip
        self.depthwise = Depthwise(width, side, dims, method=depthwise, precision=precision, rngs=rngs)
        self.film = Linear(condition, 2 * width, zero=True, precision=precision, rngs=rngs)
        self.up = Linear(width, expansion * width, precision=precision, rngs=rngs)
        self.grn = GRN(expansion * width)
        self.down = Linear(expansion * width, width, zero=True, precision=precision, rngs=rngs)
        self.precision = precision

    def __call__(self, x: jax.Array, c: jax.Array) -> jax.Array:  # [B, *places, C], [B, condition]
        h = film(layers.layer_norm(self.depthwise(x)), self.film(c))
        h = narrow(self.up(narrow(h, precision=self.precision)), precision=self.precision)
        return x + self.down(narrow(self.grn(jax.nn.gelu(h)), precision=self.precision))


class ConvNeXt(Conditioned):
    """A denoiser: (x [B, H, W, C] or [B, L, C], t [B], label [B]) -> prediction of the shape of x.

    shape: of an example. Sides that `patch` does not divide are zero-padded, and so are odd sides before downsampling
    classes: number of labels; 0 for a model without labels
    inputs: scalars that the objective gives besides the time (see `conditioning.Scalars`)
    head: whether to make a second prediction, from a last layer of its own
    The other keywords are described in `tinygen.config.schema.MODELS`.
    """

    SHARDING = ()  # convolutions shard the batch only

    def __init__(
        self, *, shape: Sequence[int], classes: int, patch: int, widths: Sequence[int], depths: Sequence[int], side: int, expansion: int,
        condition_width: int, depthwise: str, time_scale: float, inputs: Sequence[str], head: bool, precision: str, remat: str,
        rngs: nnx.Rngs,
    ):  # fmt: skip
        self._check(shape, patch, widths, depths, side)
        check_positive("model", patch=patch, expansion=expansion, condition_width=condition_width, time_scale=time_scale)
        stack.check(remat, 0, 1)
        dims, channels = len(shape) - 1, shape[-1]
        self.patch, self.channels, self.inputs, self.remat = patch, channels, tuple(inputs), remat
        block: dict[str, Any] = dict(condition=condition_width, side=side, dims=dims, expansion=expansion, depthwise=depthwise)

        def linear(fan_in: int, fan_out: int, *, zero: bool = False) -> Linear:
            return Linear(fan_in, fan_out, zero=zero, precision=precision, rngs=rngs)

        def blocks(width: int, depth: int) -> nnx.List:
            return nnx.List([Block(width, **block, precision=precision, rngs=rngs) for _ in range(depth)])

        first, last = widths[0], widths[-1]
        self.time = layers.TimeEmbedding(condition_width, time_scale, rngs=rngs)
        self.make_label(classes, condition_width, precision=precision, rngs=rngs)
        self.scalars = Scalars(inputs, condition_width, time_scale, rngs=rngs)
        self.embed = linear(patch**dims * channels, first)
        self.blocks = blocks(first, depths[0])
        self.halve = linear(2**dims * first, last) if len(widths) == 2 else None
        self.inner = blocks(last, depths[1]) if len(widths) == 2 else nnx.List([])
        self.double = linear(last, 2**dims * first) if len(widths) == 2 else None
        self.outer = blocks(first, depths[0]) if len(widths) == 2 else nnx.List([])
        self.final_film = linear(condition_width, 2 * first, zero=True)
        self.final = linear(first, patch**dims * channels, zero=True)
        self.head_film = linear(condition_width, 2 * first, zero=True) if head else None
        self.head = linear(first, patch**dims * channels, zero=True) if head else None

    def __call__(
        self, x: jax.Array, t: jax.Array, r: jax.Array | None = None, cond: Mapping[str, jax.Array] | None = None, *,
        rngs: nnx.Rngs | None = None,
    ) -> Output:  # fmt: skip
        """Args: x [B, *places, C], or tokens int32 [B, *places] (see `layers.as_channels`); t [B] in [0, 1]; r [B] for an average
        velocity; cond: `label` int32 [B], `keep` bool [B], False for the null condition, and the objective's scalars [B].
        """
        del rngs  # no dropout
        x = layers.as_channels(x, self.channels)
        h, cond = span(t, r, self.inputs, "ConvNeXt"), cond or {}
        c = jax.nn.silu(self.time(t) + self.label_embedding(cond, len(x)) + self.scalars(h, cond))
        z = stack.apply(self.blocks, self.embed(space_to_depth(x, self.patch)), c, remat=self.remat, scan=0)
        if self.halve is not None and self.double is not None:
            low = stack.apply(self.inner, self.halve(space_to_depth(z, 2)), c, remat=self.remat, scan=0)
            z = stack.apply(self.outer, z + depth_to_space(self.double(low), 2, z.shape[1:-1]), c, remat=self.remat, scan=0)
        normal, places = layers.layer_norm(z), x.shape[1:-1]
        pred = depth_to_space(self.final(film(normal, self.final_film(c))), self.patch, places)
        if self.head is None or self.head_film is None:
            return Output(pred)
        return Output(pred, head=depth_to_space(self.head(film(normal, self.head_film(c))), self.patch, places))

    @staticmethod
    def _check(shape: Sequence[int], patch: int, widths: Sequence[int], depths: Sequence[int], side: int) -> None:
        if len(shape) not in (2, 3):
            raise UserError(f"model convnext takes images [H, W, C] or sound [L, C], but the data's examples have shape {list(shape)}")
        if not 1 <= len(widths) == len(depths) <= 2:
            what = f"config.model.widths={widths} and depths={depths}"
            raise UserError(f"{what} must have one value per resolution, for one or two resolutions")
        for key, values in dict(widths=widths, depths=depths).items():
            if min(values) < 1:
                raise UserError(f"config.model.{key}={values if len(values) > 1 else values[0]} must be positive")
        if side < 1 or side % 2 == 0:
            raise UserError(f"config.model.side={side} must be odd and positive: kernels are centred")
        if patch > min(shape[:-1]):
            sides = "x".join(map(str, shape[:-1]))
            raise UserError(f"config.model.patch={patch} is larger than a side of the examples, which are {sides}")


def film(x: jax.Array, scale_shift: jax.Array) -> jax.Array:
    """x [B, *places, C] scaled by 1 + the first half of scale_shift [B, 2 C] and shifted by the second."""
    scale, shift = jnp.split(scale_shift.reshape(len(x), *[1] * (x.ndim - 2), -1), 2, -1)
    return x * (1.0 + scale) + shift
