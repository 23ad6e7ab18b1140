"""Matrix products of the models, at the precision and in the layout that suit the machine.

A product is `operand(left)·operand(right)` over leading batch axes, either side transposed or not: the four forms of BLAS.
Its derivatives have the same forms, so the arithmetic of a model is chosen in one place: forward, backward and in forward mode.
"""

import functools
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.layout import Layout, with_layout_constraint
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

PRECISIONS = ("float32", "bfloat16", "bfloat16_activations")
NAME = "product"  # the checkpoint name of every product's result, for the policies of `stack.REMAT`


class Form(NamedTuple):
    """left [..., M, K], or [..., K, M] if `left_transposed` [..., K, M]; right [..., K, N], or where `right_transposed` [..., N, K]."""

    left_transposed: bool
    right_transposed: bool


def product(a: jax.Array, b: jax.Array, axes: Any, batch: Any = ((), ()), *, precision: str) -> jax.Array:
    """[..., M, K] and [..., K, N], each in any order of the last two axes -> [..., M, N].

    axes: ((of a,), (of b,)), those contracted; batch: (of a, of b), the leading axes in common
    precision: "float32" is exact; otherwise operands are rounded to bfloat16, with sums and result in float32
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision {precision!r} is not one of {PRECISIONS}")
    if precision == "float32":
        result = jax.lax.dot_general(a, b, (axes, batch), precision=jax.lax.Precision.HIGHEST)
    else:
        (((left,), (right,)), lead) = (axes, len(batch[0]))
        if (a.ndim, b.ndim) != (lead + 2, lead + 2) or tuple(batch[0]) != tuple(range(lead)) or tuple(batch[1]) != tuple(range(lead)):
            raise ValueError(f"a product of {a.shape} and {b.shape} over {axes} with {batch} in common is not a matrix product")
        # XLA does not shard an array whose layout is pinned: each device would receive all of it.
        alone = jax.sharding.get_abstract_mesh().size <= 1
        result = rounded_p.bind(a, b, form=Form(left % a.ndim == lead, right % b.ndim == lead + 1), pinned=alone)
    return checkpoint_name(result, NAME)


def narrow(x: jax.Array, *, precision: str) -> jax.Array:
    """Rounded to bfloat16 if `precision` keeps activations in it, which halves the memory and traffic of the backward pass."""
    return x.astype(jnp.bfloat16) if precision == "bfloat16_activations" else x


def wide(x: jax.Array) -> jax.Array:
    """Widened to float32 at least, for sums, norms and softmax."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def best_precision(backend: str) -> str:
    """The precision that "auto" chooses. Elementwise code on a CPU is four times slower in bfloat16, so activations stay in float32."""
    if backend != "cpu":
        return "bfloat16_activations"
    return "bfloat16" if cpu_flags() & {"avx512_bf16", "amx_bf16"} else "float32"


@functools.cache
def cpu_flags() -> frozenset[str]:
    """The processor's feature flags as Linux lists them; empty on other systems."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return frozenset(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())


rounded_p = Primitive("rounded_product")
"""Bilinear: operands of any float type are rounded to bfloat16, the result is float32.

A primitive rather than a function with a custom derivative, so that it can be differentiated in both modes, nested and repeatedly,
with each derivative in a fast form.
"""


def _rounded(a: jax.Array, b: jax.Array, *, form: Form, pinned: bool) -> jax.Array:
    a, b = a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)
    left = a.ndim - 2 if form.left_transposed else a.ndim - 1
    pin = _row_major if pinned and (form.left_transposed or a.ndim > 2) else lambda x: x
    if pinned and form.left_transposed:
        a, left = jnp.swapaxes(a, -1, -2), a.ndim - 1
    common = tuple(range(a.ndim - 2))
    axes = ((left,), (b.ndim - 1 if form.right_transposed else b.ndim - 2,))
    return pin(jax.lax.dot_general(pin(a), pin(b), (axes, (common, common)), preferred_element_type=jnp.float32))


def _free(a: jax.Array, b: jax.Array, *, form: Form, pinned: bool) -> jax.Array:
    """For backends other than CPU, where XLA chooses good layouts itself."""
    del pinned
    return _rounded(a, b, form=form, pinned=False)


def _row_major(x: jax.Array) -> jax.Array:
    """`x` in row-major layout, the only one for which XLA's CPU backend has a fast product, or any product of bfloat16.

    Other layouts take two to seven times as long (every kernel's gradient) or are widened to float32 (attention, with heads in
    between). A plain transpose would be folded back into the product, and a loop may choose another layout for a result.
    """
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


def _shape(a: Any, b: Any, *, form: Form, pinned: bool) -> Any:
    del pinned
    inner = a.shape[-2 if form.left_transposed else -1], b.shape[-1 if form.right_transposed else -2]
    if a.shape[:-2] != b.shape[:-2] or inner[0] != inner[1]:
        raise TypeError(f"operands of shapes {a.shape} and {b.shape} have no product {form}")
    rows, columns = a.shape[-1 if form.left_transposed else -2], b.shape[-2 if form.right_transposed else -1]
    return a.update(shape=(*a.shape[:-2], rows, columns), dtype=jnp.dtype(jnp.float32), weak_type=False)


def _to_left(g: jax.Array, a: Any, b: jax.Array, *, form: Form, pinned: bool) -> jax.Array:
    """The left operand's cotangent: g·rightᵀ, or if transposed, right·gᵀ."""
    if form.left_transposed:
        return rounded_p.bind(b, g, form=Form(form.right_transposed, True), pinned=pinned).astype(a.aval.dtype)
    return rounded_p.bind(g, b, form=Form(False, not form.right_transposed), pinned=pinned).astype(a.aval.dtype)


def _to_right(g: jax.Array, a: jax.Array, b: Any, *, form: Form, pinned: bool) -> jax.Array:
    """The right operand's cotangent: leftᵀ·g, or if transposed, gᵀ·left."""
    if form.right_transposed:
        return rounded_p.bind(g, a, form=Form(True, form.left_transposed), pinned=pinned).astype(b.aval.dtype)
    return rounded_p.bind(a, g, form=Form(not form.left_transposed, False), pinned=pinned).astype(b.aval.dtype)


def _mapped(operands: tuple[jax.Array, jax.Array], axes: tuple[int | None, ...], *, form: Form, pinned: bool) -> tuple[jax.Array, int]:
    """The batching rule: one more leading axis."""
    pairs = [*zip(operands, axes, strict=True)]
    size = next(x.shape[axis] for x, axis in pairs if axis is not None)
    a, b = (jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in pairs)
    return rounded_p.bind(a, b, form=form, pinned=pinned), 0


rounded_p.def_impl(jax.jit(_free, static_argnames=("form", "pinned")))
rounded_p.def_abstract_eval(_shape)
ad.defbilinear(rounded_p, _to_left, _to_right)
batching.primitive_batchers[rounded_p] = _mapped
mlir.register_lowering(rounded_p, mlir.lower_fun(_free, multiple_results=False))
mlir.register_lowering(rounded_p, mlir.lower_fun(_rounded, multiple_results=False), platform="cpu")
