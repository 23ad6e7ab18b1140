"""Quantizers of latents: finite scalar quantization, vector quantization by a moving-average codebook, and residual stages of it.

All have `codes`, the number of codes of a stage, `dim`, the features of a code, `quantize` and `lookup`. Tokens are int32
[B, h, w], or [B, h, w, stages] of a residual quantizer.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tinygen.errors import UserError, check_positive, check_share
from tinygen.nn.layers import Buffer, pin
from tinygen.nn.matmul import product, wide

MOST = 2**24  # codes: float32 counts them exactly
DEAD = 0.1  # a code used less often than this share of 1 / codes is revived
TINY = 1e-12


class Quantized(NamedTuple):
    """z: [B, h, w, D], the codes' features, with the gradient of the input (Bengio et al. 2013)
    tokens: int32 [B, h, w] or [B, h, w, stages]
    penalty: [B], the commitment loss; 0 without one
    """

    z: jax.Array
    tokens: jax.Array
    penalty: jax.Array


class FSQ(nnx.Module):
    """Finite scalar quantization (Mentzer et al. 2023, arXiv 2309.15505): each feature is rounded to one of a few levels.

    Levels are evenly spaced in [-1, 1], those of an even number half a step off 0. There are no parameters; the code's number has the
    levels as digits, the first feature's counting least.
    """

    def __init__(self, levels: Sequence[int]):
        if not levels or any(level < 2 for level in levels) or math.prod(levels) > MOST:
            raise UserError(f"config.model.levels={tuple(levels)} must be 2 or more each, and their product at most {MOST:,}")
        self.levels, self.dim, self.codes = tuple(levels), len(levels), math.prod(levels)

    def quantize(self, z: jax.Array, *, weight: jax.Array | None = None, rngs: nnx.Rngs | None = None) -> Quantized:
        """z [B, h, w, D] of any size, of which tanh is rounded."""
        del weight, rngs  # there is nothing to learn
        half = self._half()
        offset = half % 1  # ½ where a feature has an even number of levels
        bounded = jnp.tanh(wide(z)) * half
        rounded = jnp.round(bounded - offset) + offset
        tokens = jnp.sum((rounded + half).astype(jnp.int32) * self._places(), -1)
        return Quantized(straight_through(bounded, rounded) / half, tokens, jnp.zeros(len(z)))

    def lookup(self, tokens: jax.Array) -> jax.Array:  # int32 [...] -> [..., D]
        half = self._half()
        return (jnp.asarray(tokens)[..., None] // self._places() % np.asarray(self.levels) - half) / half

    def _half(self) -> np.ndarray:
        """float32 [D], half the distance from the lowest level to the highest, in steps."""
        return np.asarray([(level - 1) / 2 for level in self.levels], np.float32)

    def _places(self) -> np.ndarray:
        """int32 [D], what a step of each feature adds to the code's number."""
        return np.cumprod([1, *self.levels[:-1]]).astype(np.int32)


class VQ(nnx.Module):
    """Vector quantization (van den Oord et al. 2017, arXiv 1711.00937): the nearest of `codes` vectors of `dim` features.

    Each vector is the mean of the inputs assigned to it, by exponential averages of their number and their sum (Razavi et al. 2019,
    arXiv 1906.00446). A code hardly used is revived: it takes a random input of the batch (Zeghidour et al. 2021, arXiv 2107.03312).
    At first no code is in use, so the first batch gives the codebook. The averages depend on neither the batch size nor the mesh.
    """

    def __init__(self, codes: int, dim: int, *, decay: float):
        """decay: of the averages per batch, or per micro-batch"""
        if not 2 <= codes <= MOST:
            raise UserError(f"config.model.codes={codes} must be 2 to {MOST:,}")
        check_positive("model", code_width=dim)
        check_share("model", code_decay=decay)
        self.codes, self.dim, self.decay = codes, dim, decay
        self.use = Buffer(jnp.zeros(codes))  # tokens of a code relative to those of uniform use
        self.sums = Buffer(jnp.zeros((codes, dim)))  # of its inputs, at the same scale

    @property
    def codebook(self) -> jax.Array:  # [codes, dim]
        return pin(self.sums[...], None) / jnp.maximum(pin(self.use[...], None), TINY)[:, None]

    def quantize(self, z: jax.Array, *, weight: jax.Array | None = None, rngs: nnx.Rngs | None = None) -> Quantized:
        """z [B, h, w, dim]. The penalty is the mean squared distance to the code, whose gradient moves the input only.

        weight: [B], 0 for examples that must not change the codebook; None = 1
        rngs: the stream `revival`, in training, which updates the codebook; None = no update
        """
        z = wide(z)
        rows = jax.lax.stop_gradient(pin(z, "batch").reshape(-1, self.dim))
        if rngs is not None:
            counted = jnp.repeat(jnp.ones(len(z)) if weight is None else weight, len(rows) // len(z))
            self._revive(rows, counted, rngs.revival())
        codebook = self.codebook
        squares = jnp.sum(jnp.square(codebook), -1)
        tokens = jnp.argmin(squares - 2 * product(rows, codebook, ((1,), (1,)), precision="float32"), -1)
        if rngs is not None:
            self._average(rows, counted, tokens)
        code = codebook[tokens].reshape(z.shape)
        penalty = jnp.mean(jnp.square(z - code), tuple(range(1, z.ndim)))
        return Quantized(straight_through(z, code), tokens.reshape(z.shape[:-1]).astype(jnp.int32), penalty)

    def lookup(self, tokens: jax.Array) -> jax.Array:  # int32 [...] -> [..., dim]
        return self.codebook[tokens]

    def _revive(self, rows: jax.Array, weight: jax.Array, key: jax.Array) -> None:
        """Moves unused codes to different rows [N, dim] of positive weight, as far as there are so many."""
        valid = jnp.sum(weight > 0)
        dead = (self.use[...] < DEAD) & (valid > 0)
        order = jnp.argsort(jax.random.uniform(key, weight.shape) + (weight <= 0))  # shuffled, the valid rows first
        drawn = rows[order[(jnp.cumsum(dead) - 1) % jnp.maximum(valid, 1)]]
        self.use[...] = jnp.where(dead, 1.0, self.use[...])
        self.sums[...] = jnp.where(dead[:, None], drawn, self.sums[...])

    def _average(self, rows: jax.Array, weight: jax.Array, tokens: jax.Array) -> None:
        """Updates the averages with rows [N, dim] and their codes [N]; without any weight they stay."""
        total = jnp.sum(weight)
        share = weight[:, None] * jax.nn.one_hot(tokens, self.codes) * self.codes / jnp.maximum(total, TINY)  # [N, codes]
        rate = jnp.where(total > 0, 1.0 - self.decay, 0.0)
        self.use[...] += rate * (jnp.sum(share, 0) - self.use[...])
        self.sums[...] += rate * (product(share, rows, ((0,), (0,)), precision="float32") - self.sums[...])


class ResidualVQ(nnx.Module):
    """Vector quantization in stages, each of what the ones before leave over (Zeghidour et al. 2021): a code is the sum of theirs."""

    def __init__(self, stages: int, codes: int, dim: int, *, decay: float):
        check_positive("model", stages=stages)
        self.stages = nnx.List([VQ(codes, dim, decay=decay) for _ in range(stages)])
        self.codes, self.dim = codes, dim

    def quantize(self, z: jax.Array, *, weight: jax.Array | None = None, rngs: nnx.Rngs | None = None) -> Quantized:
        """As `VQ.quantize`; the penalty is the sum of the stages' penalties."""
        z = rest = wide(z)
        found = []
        for stage in self.stages:
            found.append(stage.quantize(rest, weight=weight, rngs=rngs))
            rest = rest - jax.lax.stop_gradient(found[-1].z)
        tokens = jnp.stack([each.tokens for each in found], -1)
        return Quantized(straight_through(z, self.lookup(tokens)), tokens, sum((each.penalty for each in found), jnp.zeros(len(z))))

    def lookup(self, tokens: jax.Array) -> jax.Array:  # int32 [..., stages] -> [..., dim]
        return sum((stage.lookup(tokens[..., index]) for index, stage in enumerate(self.stages)), jnp.zeros(self.dim))


def straight_through(z: jax.Array, code: jax.Array) -> jax.Array:
    """Exactly `code`, with the gradient of `z`."""
    return jax.lax.stop_gradient(code) + (z - jax.lax.stop_gradient(z))
