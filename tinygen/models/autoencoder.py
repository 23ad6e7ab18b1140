"""A KL autoencoder: images to a normal distribution over smaller latents, and latents back to images.

The architecture of latent diffusion's public autoencoders (Rombach et al. 2022, arXiv 2112.10752), including Stable Diffusion's:
residual blocks in stages, single-head attention at the lowest resolution, and a 1x1 convolution on either side of the latent.
VQGAN's (Esser et al. 2021, arXiv 2012.09841) attend in the whole stage of the lowest resolution, not only in the middle.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from tinygen.errors import UserError, check_positive
from tinygen.models.classifier import Block
from tinygen.nn.attention import Attention
from tinygen.nn.convolution import Convolution, GroupNorm

LOWEST, HIGHEST = -30.0, 20.0  # ln σ² is clipped to this range: σ from 3e-7 to 22,000


class Autoencoder(nnx.Module):
    """x [B, H, W, C] in [-1, 1] <-> z [B, H/f, W/f, latent], f = 2^(stages - 1): sides are multiples of f.

    shape: (H, W, C) of an image. Other heights and widths are accepted too
    The other keywords are described in `tinygen.config.schema.MODELS`.
    """

    SHARDING = ()  # convolutions shard the batch only, and a single head cannot be sharded
    codes = 0  # latents are not quantized

    def __init__(
        self, *, shape: Sequence[int], widths: Sequence[int], depth: int, latent: int, groups: int, precision: str, attention: str,
        needs_jvp: bool, rngs: nnx.Rngs,
    ):  # fmt: skip
        check_positive("model", latent=latent)
        self.factor, self.latent = factor_of("autoencoder", shape, widths, depth=depth, groups=groups), latent
        kind: dict[str, Any] = dict(precision=precision, rngs=rngs, attention=attention, needs_jvp=needs_jvp)
        self.encoder = Encoder(shape[-1], 2 * latent, attends=False, widths=widths, depth=depth, groups=groups, **kind)
        self.quant = Convolution(2 * latent, 2 * latent, side=1, precision=precision, rngs=rngs)
        self.post_quant = Convolution(latent, latent, side=1, precision=precision, rngs=rngs)
        self.decoder = Decoder(latent, shape[-1], attends=False, widths=widths, depth=depth, groups=groups, **kind)

    def encode(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(mean, σ) of the latents' normal distribution, each [B, H/f, W/f, latent]. Raises UserError for sides that f does not divide."""
        check_sides("autoencoder", x.shape[1:], self.factor)
        mean, log_variance = jnp.split(self.quant(self.encoder(x)), 2, -1)
        return mean, jnp.exp(0.5 * jnp.clip(log_variance, LOWEST, HIGHEST))

    def decode(self, z: jax.Array) -> jax.Array:  # [B, h, w, latent] -> [B, f·h, f·w, C]
        return self.decoder(self.post_quant(z))

    def __call__(self, x: jax.Array, *, rngs: nnx.Rngs | None = None) -> tuple[jax.Array, jax.Array, jax.Array]:
        """(the reconstruction, the latents' mean, their σ).

        rngs: the stream `posterior` draws the latent; None = decode the mean
        """
        mean, deviation = self.encode(x)
        z = mean if rngs is None else mean + deviation * jax.random.normal(rngs.posterior(), mean.shape)
        return self.decode(z), mean, deviation


def factor_of(model: str, shape: Sequence[int], widths: Sequence[int], *, depth: int, groups: int) -> int:
    """2^(stages - 1), which divides the sides of images. Raises UserError for sizes that make no encoder of images of `shape`.

    model: its name, for messages
    """
    check_positive("model", depth=depth, groups=groups)
    if not 1 <= len(widths) <= 16 or any(width < 1 or width % groups for width in widths):
        raise UserError(f"config.model.widths={tuple(widths)} must be 1 to 16 multiples of config.model.groups={groups}")
    if len(shape) != 3:
        raise UserError(f"model {model} reads images [H, W, C], but the data's examples have shape {list(shape)}")
    factor = 2 ** (len(widths) - 1)
    check_sides(model, shape, factor)
    return factor


def check_sides(model: str, shape: Sequence[int], factor: int) -> None:
    H, W, _ = shape
    if H % factor or W % factor:
        near = "x".join(str(max(1, round(side / factor)) * factor) for side in (H, W))
        raise UserError(f"images of {H}x{W}: this {model} needs sides that are multiples of {factor}, such as {near}")


class Encoder(nnx.Module):
    """[B, H, W, C] -> [B, H/f, W/f, outputs], from the highest resolution to the lowest.

    attends: whether attention follows each block of the last stage too; kind: keywords of `Attention`, `precision` and `rngs`
    """

    def __init__(
        self, inputs: int, outputs: int, *, attends: bool, widths: Sequence[int], depth: int, groups: int, precision: str,
        rngs: nnx.Rngs, **kind: Any,
    ):  # fmt: skip
        self.stem = Convolution(inputs, widths[0], precision=precision, rngs=rngs)
        kind |= dict(precision=precision, rngs=rngs)
        steps = ["half"] * (len(widths) - 1) + ["keep"]
        self.stages = stages((widths[0], *widths), depth, groups, steps, attends=len(widths) - 1 if attends else None, **kind)
        self.middle = Middle(widths[-1], groups, **kind)
        self.norm = GroupNorm(widths[-1], groups)
        self.out = Convolution(widths[-1], outputs, precision=precision, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return self.out(jax.nn.silu(self.norm(self.middle(x))))


class Decoder(nnx.Module):
    """[B, h, w, inputs] -> [B, f·h, f·w, C], from the lowest resolution up, with one more block per stage than the encoder.

    attends: whether attention follows each block of the first stage too; kind: as `Encoder`
    """

    def __init__(
        self, inputs: int, outputs: int, *, attends: bool, widths: Sequence[int], depth: int, groups: int, precision: str,
        rngs: nnx.Rngs, **kind: Any,
    ):  # fmt: skip
        self.stem = Convolution(inputs, widths[-1], precision=precision, rngs=rngs)
        kind |= dict(precision=precision, rngs=rngs)
        self.middle = Middle(widths[-1], groups, **kind)
        steps = ["double"] * (len(widths) - 1) + ["keep"]
        self.stages = stages((widths[-1], *reversed(widths)), depth + 1, groups, steps, attends=0 if attends else None, **kind)
        self.norm = GroupNorm(widths[0], groups)
        self.out = Convolution(widths[0], outputs, precision=precision, rngs=rngs)

    def __call__(self, z: jax.Array) -> jax.Array:
        x = self.middle(self.stem(z))
        for stage in self.stages:
            x = stage(x)
        return self.out(jax.nn.silu(self.norm(x)))


def stages(widths: Sequence[int], depth: int, groups: int, steps: Sequence[str], *, attends: int | None, **kind: Any) -> nnx.List:
    """One stage per width after the first, which is the input's, resized as in `steps`. attends: the index of the one with attention"""
    zipped = enumerate(zip(itertools.pairwise(widths), steps, strict=True))
    return nnx.List([Stage(*pair, depth, groups, resize=step, attends=index == attends, **kind) for index, (pair, step) in zipped])


class Stage(nnx.Module):
    """Residual blocks, each followed by attention if it `attends`, then resampling.

    resize: "half": a convolution of stride 2, which zero-pads even sides at the bottom and right only; "double": nearest-neighbour
        upsampling and a convolution; "keep": none
    """

    def __init__(
        self, inputs: int, outputs: int, depth: int, groups: int, *, resize: str, attends: bool, precision: str, rngs: nnx.Rngs,
        **kind: Any,
    ):  # fmt: skip
        self.blocks = nnx.List(
            [Block(outputs if block else inputs, outputs, groups, stride=1, precision=precision, rngs=rngs) for block in range(depth)]
        )
        each = range(depth if attends else 0)
        self.attentions = nnx.List([PixelAttention(outputs, groups, precision=precision, rngs=rngs, **kind) for _ in each])
        stride = 2 if resize == "half" else 1
        self.resample = None if resize == "keep" else Convolution(outputs, outputs, stride=stride, precision=precision, rngs=rngs)
        self.doubles = resize == "double"

    def __call__(self, x: jax.Array) -> jax.Array:  # [B, H, W, C] -> [B, H', W', C']
        for block, attend in itertools.zip_longest(self.blocks, self.attentions):
            x = block(x) if attend is None else attend(block(x))
        if self.doubles:
            x = jnp.repeat(jnp.repeat(x, 2, 1), 2, 2)
        return x if self.resample is None else self.resample(x)


class PixelAttention(nnx.Module):
    """x + single-head self-attention of its normalized pixels. kind: keywords of `Attention`"""

    def __init__(self, width: int, groups: int, *, precision: str, rngs: nnx.Rngs, **kind: Any):
        self.norm = GroupNorm(width, groups)
        self.attention = Attention(width, 1, width, qk_norm=False, precision=precision, rngs=rngs, **kind)

    def __call__(self, x: jax.Array) -> jax.Array:  # [B, H, W, C] -> [B, H, W, C]
        return x + self.attention(self.norm(x).reshape(len(x), -1, x.shape[-1])).reshape(x.shape)


class Middle(PixelAttention):
    """A residual block, attention, and another residual block."""

    def __init__(self, width: int, groups: int, *, precision: str, rngs: nnx.Rngs, **kind: Any):
        self.first, self.second = (Block(width, width, groups, stride=1, precision=precision, rngs=rngs) for _ in range(2))
        super().__init__(width, groups, precision=precision, rngs=rngs, **kind)

    def __call__(self, x: jax.Array) -> jax.Array:  # [B, H, W, C] -> [B, H, W, C]
        return self.second(super().__call__(self.first(x)))
