"""Softmax attention in three equivalent implementations, and the rule that chooses between them.

plain      all scores [B, N, L, S] at once, kept for the backward pass
blockwise  an online softmax over blocks of keys (Milakov & Gimelshein 2018, arXiv 1805.02867; Rabe & Staats 2021,
           arXiv 2112.05682): memory grows with L + S instead of L·S, forward and backward (except for two numbers per query
           and block of keys, 1/128 of the scores)
cudnn      cuDNN's flash attention (Dao et al. 2022, arXiv 2205.14135): NVIDIA GPUs, bfloat16, no forward mode

The first two are ordinary JAX, differentiable in both modes and in one through the other. A TPU uses one of them too:
JAX's experimental Pallas kernels are not used.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import nnx
from jax.extend.backend import get_backend

from tinygen.errors import UserError, unknown
from tinygen.nn.layers import Linear, RMSNorm, pin
from tinygen.nn.matmul import narrow, product, wide
from tinygen.nn.rope import rotate

METHODS = ("auto", "plain", "blockwise", "cudnn")
LARGEST_SCORES = 2**28  # bytes per layer and device up to which auto chooses plain
BLOCK = 256  # keys per block of blockwise
BANDS = 4  # of queries, processed in turn: a quarter of the scores is held at a time, and a causal mask saves 3/8 of the work
SMALLEST_BAND = 64  # queries per band of plain, which uses bands for a causal mask
HEADS = ((0, 1), (0, 1))  # the batch dimensions of all products here
LOWEST = -1e30  # the score of a masked key: finite, since the difference of two infinities is NaN

Segments = tuple[jax.Array, jax.Array]


class Projections(nnx.Module):
    """The layers before and after attention: queries, keys and values of each head, and the output.

    kv_heads: key and value heads, each shared by heads / kv_heads query heads (Ainslie et al. 2023); divides heads
    context: features of the context's tokens; 0 = self-attention
    zero: initialize the output layer to zero, for blocks without a gate
    """

    SHARDING = (
        (r"(query|key|value)/kernel$", (None, "tensor")),
        (r"(query|key|value)/bias$", ("tensor",)),
        (r"attention/out/kernel$", ("tensor",)),
    )

    def __init__(
        self, width: int, heads: int, kv_heads: int, head_size: int, *, context: int = 0, zero: bool = False, qk_norm: bool,
        precision: str, rngs: nnx.Rngs,
    ):  # fmt: skip
        sizes = (width, heads), (context or width, kv_heads), (context or width, kv_heads)
        self.query, self.key, self.value = (Linear(each, num * head_size, precision=precision, rngs=rngs) for each, num in sizes)
        self.out = Linear(heads * head_size, width, precision=precision, rngs=rngs, zero=zero)
        self.query_norm = RMSNorm(head_size) if qk_norm else None
        self.key_norm = RMSNorm(head_size) if qk_norm else None
        self.heads, self.kv_heads, self.head_size, self.precision = heads, kv_heads, head_size, precision

    def project(
        self, x: jax.Array, context: jax.Array | None, angles: jax.Array | None, context_angles: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """(queries [B, L, N, K] of x [B, L, D], keys and values [B, S, N', K] of the context [B, S, C] or x), normalized and rotated.

        context_angles: of the keys; None = those of the queries
        """
        x = narrow(x, precision=self.precision)
        other = x if context is None else narrow(context, precision=self.precision)
        given = ((self.query, x), (self.key, other), (self.value, other))
        q, k, v = (narrow(f(rows), precision=self.precision).reshape(*rows.shape[:2], -1, self.head_size) for f, rows in given)
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        return (q, k, v) if angles is None else (rotate(q, angles), rotate(k, angles if context_angles is None else context_angles), v)


class Attention(Projections):
    """Multi-head self- or cross-attention; heads · head_size need not equal width. Raises UserError for a method that does not support
    these heads on this machine. The other keywords are those of `Projections`.
    """

    def __init__(self, width: int, heads: int, head_size: int, *, precision: str, attention: str, needs_jvp: bool, **keywords: Any):
        super().__init__(width, heads, heads, head_size, precision=precision, **keywords)
        self.method, self.needs_jvp = attention, needs_jvp
        choose(attention, backend=platform(), precision=precision, head_size=head_size, segments=False, needs_jvp=needs_jvp)

    def check_mesh(self, tensor: int, keys: Mapping[str, Any]) -> None:
        """Raises UserError unless mesh.tensor splits the heads evenly. keys: config.model's, which the message names"""
        if self.heads % tensor == 0:
            return
        if self.heads == keys.get("heads"):
            raise UserError(f"config.model.heads={self.heads} is not a multiple of config.mesh.tensor={tensor}, which splits the heads")
        what = f"config.mesh.tensor={tensor} splits attention's heads, and"
        if "heads" not in keys:
            raise UserError(f"{what} model {keys['name']!r} has {self.heads}: leave it at 1")
        raise UserError(f"{what} a block has {self.heads}: change config.model.attention_first, mixer_width or text_width")

    def __call__(
        self, x: jax.Array, context: jax.Array | None = None, mask: jax.Array | None = None, *, angles: jax.Array | None = None,
        context_angles: jax.Array | None = None,
    ) -> jax.Array:  # fmt: skip
        """x [B, L, D], context [B, S, C] -> [B, L, D].

        mask: bool [B, S], True for the tokens of the context (or of x) to attend to
        angles: [L, K/2] or [B, L, K/2], by which the queries and keys of every head are rotated (see `rope`); None = no rotation
        context_angles: [S, K/2] or [B, S, K/2], for the keys, if they are at other places
        """
        B, L, _ = x.shape
        q, k, v = self.project(x, context, angles, context_angles)
        segments = None if mask is None else (jnp.ones((B, L), jnp.int32), mask.astype(jnp.int32))
        method = "auto" if segments is not None and self.method == "cudnn" else self.method  # cudnn has no masks
        mixed = attention(q, k, v, segments=segments, precision=self.precision, method=method, needs_jvp=self.needs_jvp)
        return self.out(mixed.reshape(B, L, -1))


def attention(
    q: jax.Array, k: jax.Array, v: jax.Array, *, causal: bool = False, segments: Segments | None = None, precision: str,
    method: str = "auto", needs_jvp: bool = False,
) -> jax.Array:  # fmt: skip
    """softmax(q·kᵀ/√K)·v per head, the softmax in float32: q [B, L, N, K], k and v [B, S, N, K] -> [B, L, N, K].

    causal: query i attends to keys 0 to i
    segments: int32 [B, L] of the queries and [B, S] of the keys; a query attends only to its own segment, and gives zeros without keys
    needs_jvp: the result will be differentiated in forward mode
    Raises UserError for a method that is not supported here.
    """
    B, L, N, K = q.shape
    S, mesh = k.shape[1], jax.sharding.get_abstract_mesh()
    scores = 4 * B * N * L * S // max(1, mesh.size)  # every axis of a mesh splits them
    method, why = choose(
        method, backend=platform(), precision=precision, scores=scores, head_size=K, segments=segments is not None, needs_jvp=needs_jvp
    )
    announce(f"{method} for {L} queries and {'keys' if L == S else f'{S} keys'} ({why})")
    q, k, v = (pin(each, "batch", None, "tensor", None) for each in (q, k, v))
    if method == "cudnn":
        return cudnn(q, k, v, causal)
    scaled, k, v = (jnp.swapaxes(each, 1, 2) for each in (wide(q) * K**-0.5, k, v))  # [B, N, ., K]
    function = plain if method == "plain" else blockwise
    return jnp.swapaxes(function(scaled, k, v, causal, segments, precision), 1, 2).astype(q.dtype)


def choose(
    method: str, *, backend: str, precision: str, scores: int = 0, head_size: int, segments: bool, needs_jvp: bool
) -> tuple[str, str]:  # fmt: skip
    """(method, reason): for auto cuDNN's if it is supported, else by the bytes of one layer's `scores` on a device.

    Raises UserError for a method that is unknown or not supported here.

    Scores take 4·B·N·L·S bytes: 48 MiB for a batch of 64 in 12 heads with 128 tokens each, 3 GiB with 1024. Plain keeps those of
    every layer for the backward pass; blockwise recomputes them, which is a sixth more work.
    """
    if method not in METHODS:
        raise unknown("config.attention", method, METHODS)
    obstacle = cudnn_obstacle(backend, precision, head_size, segments, needs_jvp)
    if method == "cudnn" and obstacle is not None:
        raise UserError(f"config.attention=cudnn is not supported: {obstacle}. Use config.attention=auto")
    if method != "auto":
        return method, "set by config.attention"
    if obstacle is None:
        return "cudnn", "supported here"
    without = f"not cudnn: {obstacle}; " if backend == "cuda" else ""
    if scores <= LARGEST_SCORES:
        return "plain", f"{without}scores take at most {LARGEST_SCORES // 2**20} MiB"
    return "blockwise", f"{without}scores would take {scores / 2**30:.1f} GiB"


def cudnn_obstacle(backend: str, precision: str, head_size: int, segments: bool, needs_jvp: bool) -> str | None:
    """Why cuDNN's flash attention cannot be used, or None. It supports any length and a causal mask."""
    if backend != "cuda":
        return f"it needs an NVIDIA GPU, and this is a {backend.upper()}" if backend != "rocm" else "it needs an NVIDIA GPU"
    if precision == "float32":
        return "it computes in bfloat16, and config.precision is float32"
    if needs_jvp:
        return "it has no forward mode (JVP), which this objective needs"
    if head_size % 8 or head_size > 128:  # Hopper and later support up to 256
        return f"heads of {head_size} features are not a multiple of 8 up to 128"
    if segments:  # they would be a bias [B, 1, L, S], with a gradient of that size
        return "it has no segments"
    return None


def platform() -> str:
    """JAX's default backend: cpu, tpu, cuda or rocm. JAX calls both of the latter gpu."""
    name = jax.default_backend()
    return name if name != "gpu" else "cuda" if "cuda" in get_backend().platform_version else "rocm"


@functools.cache
def announce(choice: str) -> None:
    """Logs a choice once, however often it is traced."""
    logging.info("attention: %s", choice)


def seen(last: np.ndarray, index: jax.Array | np.ndarray, segments: Segments | None) -> jax.Array:
    """The mask of visible keys per query: [L, S], or [B, 1, L, S] with segments.

    last: [L], the last key visible to each query
    index: [S], the position of each key
    """
    visible = jnp.asarray(index <= last[:, None])
    return visible if segments is None else visible & (segments[0][:, None, :, None] == segments[1][:, None, None, :])


def last_seen(L: int, S: int, causal: bool) -> np.ndarray:
    return np.minimum(np.arange(L), S - 1) if causal else np.full(L, S - 1)


def masked_softmax(scores: jax.Array, visible: jax.Array) -> jax.Array:
    """The softmax over the visible keys, 0 for the others."""
    return jnp.where(visible, jax.nn.softmax(jnp.where(visible, scores, LOWEST), -1), 0.0)


def plain(q: jax.Array, k: jax.Array, v: jax.Array, causal: bool, segments: Segments | None, precision: str) -> jax.Array:
    """q [B, N, L, K], already scaled; k and v [B, N, S, K] -> [B, N, L, K]."""
    L, S = q.shape[2], k.shape[2]
    last = last_seen(L, S, causal)
    height = max(SMALLEST_BAND, -(-L // BANDS)) if causal else L

    def band(start: int, stop: int) -> jax.Array:
        reach = int(last[stop - 1]) + 1  # later keys are masked
        scores = wide(product(q[:, :, start:stop], k[:, :, :reach], ((3,), (3,)), HEADS, precision=precision))  # [B, N, band, reach]
        if not causal and segments is None:
            weights = jax.nn.softmax(scores, -1)
        else:
            own = None if segments is None else (segments[0][:, start:stop], segments[1][:, :reach])
            weights = masked_softmax(scores, seen(last[start:stop], np.arange(reach), own))
        # Normalize the weights, not the mixed values (which would be less work): the weights' gradient is a difference of two terms
        # that a common offset of the values makes large, and rounding errors cancel only if both come from the same product.
        return product(weights, v[:, :, :reach], ((3,), (2,)), HEADS, precision=precision)

    return jnp.concatenate([band(start, min(start + height, L)) for start in range(0, L, height)], 2)


def blockwise(q: jax.Array, k: jax.Array, v: jax.Array, causal: bool, segments: Segments | None, precision: str) -> jax.Array:
    """Like `plain`, one band of queries and one block of keys at a time."""
    L, S = q.shape[2], k.shape[2]
    size = min(BLOCK, S)
    blocks = -(-S // size)
    last = last_seen(L, S, causal)

    def split(x: jax.Array, axis: int) -> jax.Array:  # [..., S, ...] -> [blocks, ..., size, ...], zeros at the end
        padding = [(0, blocks * size - S if each == axis else 0) for each in range(x.ndim)]
        x = jnp.pad(x, padding).reshape(*x.shape[:axis], blocks, size, *x.shape[axis + 1 :])
        return jnp.moveaxis(x, axis, 0)

    index = jnp.arange(blocks * size).reshape(blocks, size)
    keys = (split(k, 2), split(v, 2), index, None if segments is None else split(segments[1], 1))

    def band(start: int, stop: int) -> jax.Array:
        rows, reach = q[:, :, start:stop], last[start:stop]
        own = None if segments is None else segments[0][:, start:stop]

        # Only the results are kept: the backward pass recomputes the scores.
        @functools.partial(jax.checkpoint, prevent_cse=False)
        def block(top: jax.Array, k: jax.Array, v: jax.Array, index: jax.Array, segment: jax.Array | None) -> tuple[jax.Array, ...]:
            scores = wide(product(rows, k, ((3,), (3,)), HEADS, precision=precision))  # [B, N, band, size]
            visible = seen(reach, index, None if own is None or segment is None else (own, segment))
            scores = jnp.where(visible, scores, LOWEST)
            # The result does not depend on the maximum that is subtracted, so neither does the gradient.
            top = jax.lax.stop_gradient(jnp.maximum(top, jnp.max(scores, -1)))
            weights = jnp.where(visible, jnp.exp(scores - top[..., None]), 0.0)
            return product(weights, v, ((3,), (2,)), HEADS, precision=precision), jnp.sum(weights, -1), top

        def step(carry: tuple[jax.Array, ...], keys: tuple[jax.Array | None, ...]) -> tuple[tuple[jax.Array, ...], None]:
            value, total, top = carry
            more_value, more, new_top = block(top, *keys)
            fade = jnp.exp(top - new_top)
            return (value * fade[..., None] + more_value, total * fade + more, new_top), None

        zero = jnp.zeros(rows.shape, wide(rows).dtype)
        needed = int(reach[-1]) // size + 1  # later blocks are masked
        first = (zero, zero[..., 0], zero[..., 0] + LOWEST)
        (value, total, _), _ = jax.lax.scan(step, first, jax.tree.map(lambda x: x[:needed], keys))
        return value / jnp.where(total == 0, 1.0, total)[..., None]

    height = max(BLOCK, -(-L // BANDS))
    return jnp.concatenate([band(start, min(start + height, L)) for start in range(0, L, height)], 2)


def cudnn(q: jax.Array, k: jax.Array, v: jax.Array, causal: bool) -> jax.Array:
    """q [B, L, N, K], k and v [B, S, N, K] -> [B, L, N, K]; operands rounded to bfloat16, sums and softmax in float32."""
    half = (each.astype(jnp.bfloat16) for each in (q, k, v))
    return jax.nn.dot_product_attention(*half, is_causal=causal, implementation="cudnn").astype(q.dtype)
