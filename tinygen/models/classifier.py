"""A small residual network that classifies images; the features before its last layer serve as a metric between sets of images."""

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from tinygen.errors import UserError, check_positive, check_share
from tinygen.nn.convolution import Convolution, GroupNorm
from tinygen.nn.layers import Linear, drop


class Block(nnx.Module):
    """A pre-activation residual block, x + convolution(silu(norm(convolution(silu(norm x))))) (He et al. 2016), with a convolution on
    the skip path if the size changes.
    """

    def __init__(self, inputs: int, outputs: int, groups: int, *, stride: int, precision: str, rngs: nnx.Rngs):
        self.norm_first, self.norm_second = GroupNorm(inputs, groups), GroupNorm(outputs, groups)
        self.first = Convolution(inputs, outputs, stride=stride, precision=precision, rngs=rngs)
        self.second = Convolution(outputs, outputs, precision=precision, rngs=rngs)
        same = stride == 1 and inputs == outputs
        self.skip = None if same else Convolution(inputs, outputs, side=1, stride=stride, precision=precision, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        h = self.first(jax.nn.silu(self.norm_first(x)))
        h = self.second(jax.nn.silu(self.norm_second(h)))
        return h + (x if self.skip is None else self.skip(x))


class Classifier(nnx.Module):
    """x [B, H, W, C] -> logits [B, classes]. Each stage halves height and width; each after the first doubles the features.

    shape: (H, W, C) of an image, of any size that the stages can halve
    The other keywords are described in `tinygen.config.schema.MODELS`.
    """

    SHARDING = ()  # convolutions shard the batch only

    def __init__(
        self, *, shape: Sequence[int], classes: int, width: int, stages: int, depth: int, groups: int, dropout: float, precision: str,
        rngs: nnx.Rngs,
    ):  # fmt: skip
        check_positive("model", width=width, stages=stages, depth=depth, groups=groups)
        check_share("model", dropout=dropout)
        if len(shape) != 3:
            raise UserError(f"model classifier reads images [H, W, C], but the data's examples have shape {list(shape)}")
        if min(shape[:2]) < 2 ** (stages - 1) or stages > 16:
            raise UserError(f"config.model.stages={stages} is too many: each halves the images of {shape[0]}x{shape[1]}")
        if width % groups:
            raise UserError(f"config.model.groups={groups} does not divide config.model.width={width}")
        self.dropout = dropout
        self.stem = Convolution(shape[-1], width, precision=precision, rngs=rngs)
        widths = [width, *(width * 2**stage for stage in range(stages) for _ in range(depth))]
        kinds = zip(itertools.pairwise(widths), [2, *[1] * (depth - 1)] * stages, strict=True)  # the first block of a stage halves
        self.blocks = nnx.List([Block(*pair, groups, stride=stride, precision=precision, rngs=rngs) for pair, stride in kinds])
        self.norm = GroupNorm(widths[-1], groups)
        self.out = Linear(widths[-1], classes, precision=precision, rngs=rngs)

    def features(self, x: jax.Array) -> jax.Array:
        """[B, H, W, C] -> [B, D], the last block's output averaged over all pixels."""
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        return jnp.mean(jax.nn.silu(self.norm(h)), (1, 2))

    def logits(self, features: jax.Array) -> jax.Array:  # [B, D] -> [B, classes]
        return self.out(features)

    def __call__(self, x: jax.Array, *, rngs: nnx.Rngs | None = None) -> jax.Array:
        """Logits. rngs: the stream `dropout`, in training; None = no dropout."""
        h = self.features(x)
        if rngs is not None and self.dropout:
            h = drop(h, self.dropout, rngs.dropout())
        return self.logits(h)
