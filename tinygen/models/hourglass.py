"""Hourglass: a bidirectional transformer over tokens that runs most of its blocks on a shortened sequence (Nawrot et al. 2021,
arXiv 2110.13711), for grids of image tokens and for text.

pre blocks -> blocks of s x s neighbouring places become one token -> valley blocks -> back to places, plus the output of the pre blocks
-> post blocks -> logits. Every head of every block gets rotary positions, over rows and columns for a grid. Conditions modulate the blocks
(AdaLN-zero), and captions are read by cross-attention, as in MicroDiT. The corruption level t is not an input: the number of masks tells
it, and SUNDAE's model must judge the noise by itself.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from tinygen.errors import UserError, check_positive, unknown
from tinygen.models.microdit import Block
from tinygen.nn import layers, rope, stack
from tinygen.nn.attention import Attention
from tinygen.nn.conditioning import Conditioned
from tinygen.nn.feed_forward import SwiGLU, swiglu_hidden
from tinygen.nn.layers import Embedding, Linear, Output, depth_to_space, layer_norm, space_to_depth
from tinygen.nn.matmul import product

RESAMPLINGS = ("linear", "attention")


class Hourglass(Conditioned):
    """A denoiser of tokens: int32 [B, *places] in 0 ... V, where V is the mask -> logits [B, *places, V].

    places: (H, W) of a grid, or (L,) of a text
    vocabulary: V
    classes, text_vocabulary, text_length, text_features: as for MicroDiT
    The other keywords are described in `tinygen.config.schema.MODELS`.
    """

    SHARDING = (*Attention.SHARDING, *SwiGLU.SHARDING)

    def __init__(
        self, *, places: Sequence[int], vocabulary: int, classes: int, text_vocabulary: int, text_length: int, text_features: int,
        width: int, depth: Sequence[int], shorten: int, resampling: str, heads: int, mlp_ratio: float, mlp_multiple: int, tied: bool,
        text_depth: int, text_width: int, adaln: str, qk_norm: bool, precision: str, attention: str, remat: str, scan: int, rngs: nnx.Rngs,
    ):  # fmt: skip
        check_positive("model", width=width, heads=heads, shorten=shorten, mlp_ratio=mlp_ratio, mlp_multiple=mlp_multiple)
        self._check(places, width, depth, shorten, resampling, heads, adaln)
        stack.check(remat, scan, depth[1])
        size, hidden = width // heads, functools.partial(swiglu_hidden, ratio=mlp_ratio, multiple=mlp_multiple)
        self.places, self.vocabulary, self.shorten, self.size = tuple(places), vocabulary, shorten, size
        self.precision, self.remat, self.scan = precision, remat, scan
        text = (text_width or width) if text_vocabulary or text_features else 0
        if text % size:
            raise UserError(f"config.model.text_width={text} must be a multiple of a head's size, width / heads = {size}")
        kind: dict[str, Any] = dict(qk_norm=qk_norm, precision=precision, attention=attention, needs_jvp=False, rngs=rngs)
        linear = functools.partial(Linear, precision=precision, rngs=rngs)

        def blocks(num: int) -> nnx.List:
            common: dict[str, Any] = dict(text=text, experts=0, capacity=1.0, own=adaln == "block", **kind)
            return nnx.List([Block(width, width, heads, size, hidden(width), **common) for _ in range(num)])

        pre, valley, post = depth
        self.tokens = Embedding(vocabulary + 1, width, rngs=rngs)
        self.make_label(classes, width, precision=precision, rngs=rngs)
        reading: dict[str, Any] = dict(vocabulary=text_vocabulary, length=text_length, features=text_features, depth=text_depth)
        self.make_caption(text, width, **reading, heads=text // size, hidden=hidden(text), **kind)
        self.modulation = None if adaln == "block" else linear(width, 6 * width, zero=True)
        self.pre, self.valley, self.post = blocks(pre), blocks(valley), blocks(post)
        volume, short = shorten ** len(places), shorten > 1
        self.down = linear(volume * width, width) if short else None
        self.up = linear(width, volume * width) if short else None
        mixing = short and resampling == "attention"
        self.down_attention = Attention(width, heads, size, context=width, zero=True, **kind) if mixing else None
        self.up_attention = Attention(width, heads, size, context=width, zero=True, **kind) if mixing else None
        self.final_modulation = linear(width, 2 * width, zero=True)
        self.head = None if tied else linear(width, vocabulary, zero=True)
        self.bias = nnx.Param(jnp.zeros(vocabulary)) if tied else None

    def __call__(
        self, x: jax.Array, t: jax.Array, cond: Mapping[str, jax.Array] | None = None, *, rngs: nnx.Rngs | None = None
    ) -> Output:  # fmt: skip
        """Args: x int32 [B, *places]; t [B], not used; cond: as for MicroDiT. rngs: not used, for there is no dropout."""
        del t, rngs
        B = len(x)
        cond = self.encode(cond or {}, B)
        c = jax.nn.silu(jnp.broadcast_to(self.pooled_condition(cond, B), (B, self.tokens.embedding.shape[1])))
        shared = None if self.modulation is None else self.modulation(c)
        conditions, fine = (c, shared, self.caption_tokens(cond)), self.angles(1)
        h = self._run(self.pre, self.tokens(x.reshape(B, -1)), conditions, fine)
        h = self._run(self.valley, h, conditions, fine, self.scan) if self.down is None else self._shortened(h, conditions)
        h = self._run(self.post, h, conditions, fine)
        shift, scale = jnp.split(self.final_modulation(c), 2, -1)
        h = layers.modulate(layer_norm(h), shift, scale)
        return Output(self._logits(h).reshape(B, *self.places, self.vocabulary))

    def angles(self, shorten: int) -> jax.Array:
        """[L', K/2], the rotation at each place, or at the centre of each block of `shorten` places a side, in places."""
        counts = [side // shorten for side in self.places]
        centre = (shorten - 1) / 2
        if len(counts) == 1:
            return rope.line_angles(shorten * jnp.arange(counts[0]) + centre, self.size)
        height, width = counts
        return jnp.asarray(rope.angles(height, width, self.size, scale=shorten, offset=centre))

    def _run(self, blocks: nnx.List, x: jax.Array, conditions: tuple[Any, ...], angles: jax.Array, scan: int = 0) -> jax.Array:
        return stack.apply(blocks, (x, {}), *conditions, angles, remat=self.remat, scan=scan)[0] if len(blocks) else x

    def _shortened(self, h: jax.Array, conditions: tuple[Any, ...]) -> jax.Array:
        """The valley: h [B, L, D] -> [B, L, D], on blocks of places."""
        assert self.down is not None
        assert self.up is not None
        B, L, D = h.shape
        blocks = space_to_depth(h.reshape(B, *self.places, D), self.shorten)
        low, fine, coarse = self.down(blocks).reshape(B, -1, D), self.angles(1), self.angles(self.shorten)
        if self.down_attention is not None:
            low = low + self.down_attention(layer_norm(low), layer_norm(h), angles=coarse, context_angles=fine)
        low = self._run(self.valley, low, conditions, coarse, self.scan)
        h = h + depth_to_space(self.up(layer_norm(low)).reshape(*blocks.shape[:-1], -1), self.shorten, self.places).reshape(B, L, D)
        if self.up_attention is None:
            return h
        return h + self.up_attention(layer_norm(h), layer_norm(low), angles=fine, context_angles=coarse)

    def _logits(self, h: jax.Array) -> jax.Array:
        """h [B, L, D] -> [B, L, V]."""
        if self.head is not None:
            return self.head(h)
        assert self.bias is not None
        table = self.tokens.embedding[: self.vocabulary]
        rows = product(h.reshape(-1, h.shape[-1]), table, ((1,), (1,)), precision=self.precision)
        return rows.reshape(*h.shape[:-1], -1) + self.bias[...]

    @staticmethod
    def _check(places: Sequence[int], width: int, depth: Sequence[int], shorten: int, resampling: str, heads: int, adaln: str) -> None:
        if len(places) not in (1, 2):
            raise UserError(f"model hourglass takes grids of tokens [H, W] or texts [L], but the data's tokens have shape {list(places)}")
        multiple = 2 * len(places)  # pairs of features for each axis
        if width % heads or width // heads % multiple:
            what = f"config.model.heads={heads} must divide config.model.width={width}"
            raise UserError(f"{what} into heads whose features are a multiple of {multiple}")
        if len(depth) != 3 or min(depth) < 0 or not sum(depth):
            raise UserError(f"config.model.depth={tuple(depth)} must be three numbers of blocks, before, in and after the valley")
        if any(side % shorten for side in places):
            sides = "x".join(map(str, places))
            raise UserError(f"config.model.shorten={shorten} does not divide the tokens of an example, {sides}: choose a divisor, or 1")
        if shorten > 1 and not depth[1]:
            raise UserError(f"config.model.shorten={shorten} needs blocks in the valley, the second number of config.model.depth")
        if resampling not in RESAMPLINGS:
            raise unknown("config.model.resampling", resampling, RESAMPLINGS)
        if adaln not in ("block", "shared"):
            raise UserError(f"config.model.adaln={adaln!r} must be 'block' or 'shared'")
