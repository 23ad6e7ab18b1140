"""MicroDiT: a diffusion transformer for images of any size and channel count (Sehwag et al. 2024, arXiv 2407.15811).

Patches become tokens with fixed positions, either added or rotary. If the patch size does not divide an image, it is zero-padded at the
bottom and right, and the prediction is cropped. A few cheap blocks, the patch mixer, see all patches; then, in training, a random share
is dropped, and the backbone runs on the rest: its cost falls with that share, and the loss covers the kept patches only.

Blocks of self-attention and SwiGLU, or a mixture of experts, are modulated by the time and the condition (AdaLN-zero, Peebles & Xie
2023): at initialisation every block is the identity and the output zero.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tinygen.errors import UserError, check_positive, unknown
from tinygen.nn import experts as mixture
from tinygen.nn import layers, masking, rope, stack
from tinygen.nn.attention import Attention
from tinygen.nn.conditioning import Caption, Conditioned, Scalars, span
from tinygen.nn.experts import Experts
from tinygen.nn.feed_forward import SwiGLU, swiglu_hidden
from tinygen.nn.layers import Linear, Output

POSITIONS = ("sincos", "rope")

Stream = tuple[jax.Array, dict[str, jax.Array]]
"""What blocks pass on: tokens [B, L, D], and the sums of the experts' statistics so far; {} without experts."""


class Block(nnx.Module):
    """x += g₁ ⊙ attention(modulated x); x += cross-attention(x, caption); x += g₂ ⊙ feed-forward(modulated x).

    condition: features of the condition
    text: features of a caption's tokens; 0 = no captions
    own: the block has its own modulation layer; otherwise it adds a learned table to the model's shared one
    experts: number of experts in place of one feed-forward; 0 = none
    """

    def __init__(
        self, width: int, condition: int, heads: int, head_size: int, hidden: int, *, text: int, experts: int, capacity: float,
        qk_norm: bool, own: bool, precision: str, attention: str, needs_jvp: bool, rngs: nnx.Rngs,
    ):  # fmt: skip
        common: dict[str, Any] = dict(qk_norm=qk_norm, precision=precision, attention=attention, needs_jvp=needs_jvp, rngs=rngs)
        self.attention = Attention(width, heads, head_size, **common)
        self.cross_attention = Attention(width, heads, head_size, context=text, zero=True, **common) if text else None
        self.feed_forward = None if experts else SwiGLU(width, hidden, precision=precision, rngs=rngs)
        self.experts = Experts(width, hidden, experts=experts, capacity=capacity, precision=precision, rngs=rngs) if experts else None
        self.modulation = Linear(condition, 6 * width, zero=True, precision=precision, rngs=rngs) if own else None
        self.modulation_table = None if own else nnx.Param(jnp.zeros(6 * width))

    def __call__(
        self, stream: Stream, c: jax.Array, shared: jax.Array | None, caption: Caption | None = None, angles: jax.Array | None = None
    ) -> Stream:
        """stream: x [B, L, D] and statistics; c [B, condition], the activated condition; shared [B, 6 D] or None; angles: see Attention."""
        x, stats = stream
        x = layers.pin(x, "batch")
        if self.modulation is not None:
            six = self.modulation(c)
        else:
            assert shared is not None
            assert self.modulation_table is not None
            six = shared + self.modulation_table[...]
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = jnp.split(six, 6, -1)
        x = x + gate_1[:, None] * self.attention(layers.modulate(layers.layer_norm(x), shift_1, scale_1), angles=angles)
        if self.cross_attention is not None and caption is not None:
            x = x + self.cross_attention(layers.layer_norm(x), *caption)
        modulated = layers.modulate(layers.layer_norm(x), shift_2, scale_2)
        if self.feed_forward is not None:
            return x + gate_2[:, None] * self.feed_forward(modulated), stats
        assert self.experts is not None
        out, more = self.experts(modulated)
        return x + gate_2[:, None] * out, {name: stats[name] + more[name] for name in stats}


class MicroDiT(Conditioned):
    """A denoiser: (x [B, H, W, C], t [B], label [B], text [B, S] or embed [B, S, E]) -> prediction [B, H, W, C].

    shape: (H, W, C) of an image
    classes: number of labels; 0 for a model without labels
    text_vocabulary, text_length: of tokenized captions; 0 for a model without
    text_features: of caption embeddings, used in place of tokens; 0 for a model without
    inputs: scalars that the objective gives besides the time (see `conditioning.Scalars`)
    head: whether to make a second prediction, from a last layer of its own
    needs_jvp: the model will be differentiated in forward mode
    The other keywords are described in `tinygen.config.schema.MODELS`.
    """

    SHARDING = (*Experts.SHARDING, *Attention.SHARDING, *SwiGLU.SHARDING)

    def __init__(
        self, *, shape: Sequence[int], classes: int, text_vocabulary: int, text_length: int, text_features: int, patch: int, width: int,
        depth: int, heads: int, mlp_ratio: float, mlp_multiple: int, mlp_ratio_first: float, attention_first: float, mask: float,
        mixer_depth: int, mixer_width: int, experts: int, capacity: float, positions: str, position_grid: int, text_depth: int,
        text_width: int, adaln: str, qk_norm: bool, time_scale: float, inputs: Sequence[str], head: bool, precision: str, attention: str,
        needs_jvp: bool, remat: str, scan: int, rngs: nnx.Rngs,
    ):  # fmt: skip
        rest = dict(depth=depth, mlp_ratio=mlp_ratio, mlp_multiple=mlp_multiple, time_scale=time_scale)
        self._check(shape, patch, width, heads, adaln, positions, position_grid, **rest)
        size, mixer = width // heads, (mixer_width or width) if mixer_depth else width
        ratios, counts = block_sizes(depth, heads, mlp_ratio, mlp_ratio_first, attention_first)
        stack.check(remat, scan, depth)
        self.shape, self.patch, self.remat, self.scan = tuple(shape), patch, remat, scan
        self.grid, self.position_grid = layers.patches_of(shape[:2], patch), position_grid
        self.rotated = size if positions == "rope" else 0  # features of a head
        self.num = masking.num_kept(math.prod(self.grid), mask)
        mixture.check(experts, capacity, self.num)
        text = (text_width or width) if text_vocabulary or text_features else 0
        self._check_widths(size, mixer_depth, mixer_width, mixer, text_depth, text)
        kind: dict[str, Any] = dict(qk_norm=qk_norm, precision=precision, attention=attention, needs_jvp=needs_jvp, rngs=rngs)
        common: dict[str, Any] = dict(text=text, capacity=capacity, own=adaln == "block", **kind)
        hidden: Callable[[int, float], int] = functools.partial(swiglu_hidden, multiple=mlp_multiple)
        linear: Callable[..., Linear] = functools.partial(Linear, precision=precision, rngs=rngs)
        outputs = patch * patch * shape[-1]
        self.embed = linear(outputs, mixer)
        self.time = layers.TimeEmbedding(width, time_scale, rngs=rngs)
        self.make_label(classes, width, precision=precision, rngs=rngs)
        self.modulation = None if adaln == "block" else linear(width, 6 * width, zero=True)
        kinds = [(count, size, hidden(width, ratio)) for count, ratio in zip(counts, ratios, strict=True)]
        self.blocks = backbone(width, kinds, experts, **common)
        self.final_modulation = linear(width, 2 * width, zero=True)
        self.final = linear(width, outputs, zero=True)
        self._add_mixer(mixer_depth, mixer, width, linear, (mixer // size, size, hidden(mixer, mlp_ratio)), **common)
        reading: dict[str, Any] = dict(vocabulary=text_vocabulary, length=text_length, features=text_features, depth=text_depth)
        self.make_caption(text, width, **reading, heads=text // size, hidden=hidden(text, mlp_ratio), **kind)
        self.inputs, self.scalars = tuple(inputs), Scalars(inputs, width, time_scale, rngs=rngs)
        self.head = linear(width, outputs, zero=True) if head else None
        self.head_modulation = linear(width, 2 * width, zero=True) if head else None
        self.mixtures = sum(block.experts is not None for block in self.blocks)

    def _add_mixer(
        self, depth: int, width: int, condition: int, linear: Callable[..., Linear], kind: tuple[int, ...], **common: Any
    ) -> None:  # fmt: skip
        """The patch mixer, and the projection to the backbone's width, which is that of the condition."""
        self.mixer = nnx.List([Block(width, condition, *kind, experts=0, **common) for _ in range(depth)])
        self.mixer_modulation = linear(condition, 6 * width, zero=True) if depth and not common["own"] else None
        self.project = linear(width, condition) if depth else None

    def __call__(
        self, x: jax.Array, t: jax.Array, r: jax.Array | None = None, cond: Mapping[str, jax.Array] | None = None, *,
        rngs: nnx.Rngs | None = None,
    ) -> Output:  # fmt: skip
        """Args: x [B, H, W, C], or tokens int32 [B, H, W] (see `layers.as_channels`); t [B] in [0, 1]; cond: `label` int32 [B], `text`
        int32 [B, S] or `embed` [B, S, E] and `embed_mask` bool [B, S] (or what `encode` makes of them), and `keep` bool [B], False for
        the null condition.

        rngs: the stream `mask` chooses the patches to drop, in training; None = drop none
        """
        h = span(t, r, self.inputs, "MicroDiT")
        tokens, angles = self._placed(self.embed(layers.patchify(layers.as_channels(x, self.shape[-1]), self.patch)))
        B, L, _ = tokens.shape
        cond = self.encode(cond or {}, B)
        caption = self.caption_tokens(cond)
        c = jax.nn.silu(self.time(t) + self.pooled_condition(cond, B) + self.scalars(h, cond))
        if self.project is not None:
            modulation = None if self.mixer_modulation is None else self.mixer_modulation(c)
            tokens, _ = stack.apply(self.mixer, (tokens, {}), c, modulation, caption, angles, remat=self.remat, scan=0)
        kept = None if rngs is None or self.num == L else masking.choose(rngs.mask(), B, L, self.num)
        if kept is not None:
            tokens, angles = kept.gather(tokens), None if angles is None else angles[kept.order]
        tokens = tokens if self.project is None else self.project(tokens)
        shared = None if self.modulation is None else self.modulation(c)
        sums = {name: jnp.zeros(()) for name in mixture.STATS} if self.mixtures else {}
        tokens, sums = stack.apply(self.blocks, (tokens, sums), c, shared, caption, angles, remat=self.remat, scan=self.scan)
        pred = self._predicted(tokens, c, kept, self.final_modulation, self.final)
        head = None
        if self.head is not None and self.head_modulation is not None:
            head = self._predicted(tokens, c, kept, self.head_modulation, self.head)
        stats = {name: value / self.mixtures for name, value in sums.items()}
        if kept is None:
            return Output(pred, head=head, stats=stats)
        weight = layers.unpatchify(jnp.repeat(kept.weight[..., None], self.patch**2, -1), (*self.shape[:2], 1), self.patch)
        return Output(pred, head=head, weight=weight * (L / self.num), stats=stats)

    def _placed(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """(tokens [B, L, D] with their positions added, None) or (the same tokens, the angles by which attention turns them)."""
        rows, columns = self.grid
        if self.rotated:
            return tokens, jnp.asarray(rope.angles(rows, columns, self.rotated, self.position_grid))
        return tokens + layers.sincos_2d(rows, columns, tokens.shape[-1], self.position_grid), None

    def _predicted(self, tokens: jax.Array, c: jax.Array, kept: masking.Kept | None, modulation: Linear, final: Linear) -> jax.Array:
        """The prediction [B, H, W, C] from the last block's tokens, zero where a patch was dropped."""
        shift, scale = jnp.split(modulation(c), 2, -1)
        patches = final(layers.modulate(layers.layer_norm(tokens), shift, scale))
        return layers.unpatchify(patches if kept is None else kept.scatter(patches), self.shape, self.patch)

    @staticmethod
    def _check(
        shape: Sequence[int], patch: int, width: int, heads: int, adaln: str, positions: str, grid: int, **rest: float
    ) -> None:  # fmt: skip
        check_positive("model", patch=patch, width=width, heads=heads, **rest)
        if len(shape) != 3:
            raise UserError(f"model microdit takes images [H, W, C], but the data's examples have shape {list(shape)}")
        if patch > min(shape[:2]):
            raise UserError(f"config.model.patch={patch} is larger than a side of the images, which are {shape[0]}x{shape[1]}")
        if width % heads or width // heads % 2:
            raise UserError(f"config.model.heads={heads} must divide config.model.width={width} into heads of an even size")
        if width % 4:
            raise UserError(f"config.model.width={width} must be a multiple of 4, for sincos positions in two dimensions")
        if adaln not in ("block", "shared"):
            raise UserError(f"config.model.adaln={adaln!r} must be 'block' or 'shared'")
        if positions not in POSITIONS:
            raise unknown("config.model.positions", positions, POSITIONS)
        if positions == "rope" and width // heads % 4:
            raise UserError(
                f"config.model.positions=rope rotates pairs of features by row and by column: width / heads must be a multiple of 4, "
                f"but config.model.heads={heads} gives {width // heads}"
            )
        if grid < 0:
            raise UserError(f"config.model.position_grid={grid} must be 0 (as many rows of patches as there are) or positive")

    @staticmethod
    def _check_widths(size: int, mixer_depth: int, mixer_width: int, mixer: int, text_depth: int, text: int) -> None:
        """size: of a head; mixer, text: the features per token that result"""
        if mixer_depth < 0 or mixer_width < 0:
            given = f"config.model.mixer_depth={mixer_depth} and mixer_width={mixer_width}"
            raise UserError(f"{given} must be 0 (none, and as the backbone) or positive")
        if mixer % size or mixer % 4:
            raise UserError(f"config.model.mixer_width={mixer} must be a multiple of 4 and of a head's size, width / heads = {size}")
        if mixer_width and not mixer_depth:
            raise UserError(f"config.model.mixer_width={mixer_width} has no effect without blocks: set config.model.mixer_depth")
        if text and text_depth < 1:
            raise UserError(f"config.model.text_depth={text_depth}: captions need at least one block")
        if text < 0 or text % size:
            raise UserError(f"config.model.text_width={text} must be a multiple of a head's size, width / heads = {size}")


def backbone(width: int, kinds: Sequence[tuple[int, ...]], experts: int, **common: Any) -> nnx.List:
    """Blocks of these (heads, head size, hidden features). Every second one is a mixture of experts, and the last is not."""
    mixed = [experts if (len(kinds) - index) % 2 == 0 else 0 for index in range(len(kinds))]
    return nnx.List([Block(width, width, *kind, experts=num, **common) for kind, num in zip(kinds, mixed, strict=True)])


def block_sizes(depth: int, heads: int, ratio: float, ratio_first: float, attention_first: float) -> tuple[list[float], list[int]]:
    """(feed-forward ratio, attention heads) of each block, interpolated linearly from the first to the last (Mehta et al. 2024).

    ratio_first: of the first block; 0 = `ratio` throughout
    attention_first: share of the heads in the first block
    Raises UserError for values out of range.
    """
    if not 0 <= ratio_first < math.inf:
        raise UserError(f"config.model.mlp_ratio_first={ratio_first} must be 0 (as mlp_ratio) or positive")
    if not 0 < attention_first <= 1:
        raise UserError(f"config.model.attention_first={attention_first} must lie above 0 and at most at 1")
    counts = np.linspace(attention_first, 1.0, depth) * heads if depth > 1 else [heads]
    return np.linspace(ratio_first or ratio, ratio, depth).tolist(), [max(1, math.floor(count + 0.5)) for count in counts]
