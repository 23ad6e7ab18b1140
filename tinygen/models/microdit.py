"""MicroDiT: a diffusion transformer for images of any size and channel count (Sehwag et al. 2024, arXiv 2407.15811).

Patches become tokens with fixed positions; blocks of self-attention and SwiGLU are modulated by the time and the
condition (AdaLN-zero, Peebles & Xie 2023): at initialisation every block is the identity and the output zero.
"""

import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from tinygen.errors import UserError
from tinygen.models import layers, stack
from tinygen.models.attention import Attention
from tinygen.models.layers import Embedding, Linear, Output, SwiGLU


class Block(nnx.Module):
    """x += g₁ ⊙ attention(modulated x); x += g₂ ⊙ feed-forward(modulated x).

    own: the block has its own modulation layer; otherwise it adds a learned table to the model's shared one.
    """

    def __init__(
        self, width: int, heads: int, hidden: int, *, qk_norm: bool, own: bool, precision: str, attention: str, needs_jvp: bool,
        rngs: nnx.Rngs,
    ):  # fmt: skip
        self.attention = Attention(width, heads, qk_norm=qk_norm, precision=precision, attention=attention, needs_jvp=needs_jvp, rngs=rngs)
        self.feed_forward = SwiGLU(width, hidden, precision=precision, rngs=rngs)
        self.modulation = Linear(width, 6 * width, zero=True, precision=precision, rngs=rngs) if own else None
        self.modulation_table = None if own else nnx.Param(jnp.zeros(6 * width))

    def __call__(self, x: jax.Array, c: jax.Array, shared: jax.Array | None) -> jax.Array:
        """x [B, L, D]; c [B, D], the activated condition; shared [B, 6 D] or None."""
        x = layers.pin(x, "batch")
        if self.modulation is not None:
            six = self.modulation(c)
        else:
            assert shared is not None
            assert self.modulation_table is not None
            six = shared + self.modulation_table[...]
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = jnp.split(six, 6, -1)
        x = x + gate_1[:, None] * self.attention(layers.modulate(layers.layer_norm(x), shift_1, scale_1))
        return x + gate_2[:, None] * self.feed_forward(layers.modulate(layers.layer_norm(x), shift_2, scale_2))


class MicroDiT(nnx.Module):
    """A denoiser: (x [B, H, W, C], t [B], label [B]) -> prediction [B, H, W, C].

    shape: (H, W, C) of an image; H and W are multiples of `patch`
    classes: of the label; 0 for a model without a condition
    needs_jvp: the model will be differentiated in forward mode
    The other keywords are described in `tinygen.keys.MODELS`.
    """

    SHARDING = (*Attention.SHARDING, *SwiGLU.SHARDING)

    def __init__(
        self, *, shape: Sequence[int], classes: int, patch: int, width: int, depth: int, heads: int, mlp_ratio: float, mlp_multiple: int,
        adaln: str, qk_norm: bool, time_scale: float, precision: str, attention: str, needs_jvp: bool, remat: str, scan: int,
        rngs: nnx.Rngs,
    ):  # fmt: skip
        sizes = dict(patch=patch, width=width, depth=depth, heads=heads, mlp_ratio=mlp_ratio, mlp_multiple=mlp_multiple)
        for key, value in dict(**sizes, time_scale=time_scale).items():
            if not 0 < value < math.inf:
                raise UserError(f"config.model.{key}={value} must be positive")
        self._check(shape, patch, width, heads, adaln)
        stack.check(remat, scan, depth)
        self.shape, self.patch, self.remat, self.scan = tuple(shape), patch, remat, scan
        H, W, C = shape
        hidden = layers.swiglu_hidden(width, mlp_ratio, mlp_multiple)
        self.embed = Linear(patch * patch * C, width, precision=precision, rngs=rngs)
        self.time = layers.TimeEmbedding(width, time_scale, precision=precision, rngs=rngs)
        self.label = Embedding(classes, width, rngs=rngs) if classes else None
        self.null = nnx.Param(0.02 * jax.random.normal(rngs.params(), (width,))) if classes else None
        self.condition = Linear(width, width, precision=precision, rngs=rngs) if classes else None
        self.modulation = None if adaln == "block" else Linear(width, 6 * width, zero=True, precision=precision, rngs=rngs)
        self.blocks = nnx.List(
            [
                Block(
                    width, heads, hidden, qk_norm=qk_norm, own=adaln == "block", precision=precision, attention=attention,
                    needs_jvp=needs_jvp, rngs=rngs,
                )
                for _ in range(depth)
            ]
        )  # fmt: skip
        self.final_modulation = Linear(width, 2 * width, zero=True, precision=precision, rngs=rngs)
        self.final = Linear(width, patch * patch * C, zero=True, precision=precision, rngs=rngs)

    def __call__(
        self,
        x: jax.Array,
        t: jax.Array,
        r: jax.Array | None = None,
        cond: Mapping[str, jax.Array] | None = None,
        *,
        rngs: nnx.Rngs | None = None,
    ) -> Output:
        """Args: x [B, H, W, C]; t [B] in [0, 1]; cond: `label` int32 [B] and `keep` bool [B], False for the model's null condition."""
        if r is not None:
            raise ValueError("MicroDiT is not told r: it predicts an instantaneous velocity")
        del rngs  # nothing here is random
        H, W, _ = self.shape
        positions = layers.sincos_2d(H // self.patch, W // self.patch, self.embed.kernel.shape[-1])
        tokens = self.embed(layers.patchify(x, self.patch)) + positions
        c = jax.nn.silu(self.time(t) + self._condition(cond or {}, t.shape[0]))
        shared = None if self.modulation is None else self.modulation(c)
        tokens = stack.through(self.blocks, tokens, c, shared, remat=self.remat, scan=self.scan)
        shift, scale = jnp.split(self.final_modulation(c), 2, -1)
        patches = self.final(layers.modulate(layers.layer_norm(tokens), shift, scale))
        return Output(layers.unpatchify(patches, self.shape, self.patch))

    def _condition(self, cond: Mapping[str, jax.Array], batch: int) -> jax.Array:
        """The pooled condition [B, D]; zero for a model without one."""
        if self.label is None or self.null is None or self.condition is None:
            return jnp.zeros(())
        null = jnp.broadcast_to(self.null[...], (batch, self.null.shape[0]))
        if "label" not in cond:
            return self.condition(null)
        pooled = self.label(cond["label"])
        return self.condition(jnp.where(cond["keep"][:, None], pooled, null) if "keep" in cond else pooled)

    @staticmethod
    def _check(shape: Sequence[int], patch: int, width: int, heads: int, adaln: str) -> None:
        if len(shape) != 3:
            raise UserError(f"model microdit draws images [H, W, C], but the data's examples have shape {list(shape)}")
        if shape[0] % patch or shape[1] % patch:
            raise UserError(f"config.model.patch={patch} does not divide the image size {shape[0]}x{shape[1]}")
        if width % heads or width // heads % 2:
            raise UserError(f"config.model.heads={heads} must divide config.model.width={width} into heads of an even size")
        if width % 4:
            raise UserError(f"config.model.width={width} must be a multiple of 4, for sincos positions in two dimensions")
        if adaln not in ("block", "shared"):
            raise UserError(f"config.model.adaln={adaln!r} must be 'block' or 'shared'")
