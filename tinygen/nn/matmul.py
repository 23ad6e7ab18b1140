"""Every matrix product of every model, and how it is computed on the machine at hand.

A product is `operand(left)·operand(right)` over leading batch axes, either side transposed or not: the four forms of BLAS.
Its derivatives are products of these forms again, so a model has one place where arithmetic is chosen, forward, backward and in
forward mode.
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
NAME = "product"  # of every product's result, for a policy that says what the backward pass keeps


class Form(NamedTuple):
    """left [..., M, K], or where `left_turned` [..., K, M]; right [..., K, N], or where `right_turned` [..., N, K]."""

    left_turned: bool
    right_turned: bool


def product(a: jax.Array, b: jax.Array, axes: Any, batch: Any = ((), ()), *, precision: str) -> jax.Array:
    """Σ over the axes `axes` = ((of a,), (of b,)) of a and b, which have the leading axes `batch` = (of a, of b) in common.

    a and b have one axis each besides: [..., M, K] and [..., K, N] in any order of the last two -> [..., M, N].

    precision: "float32", exact; or else operands rounded to bfloat16, sums and result in float32
    Several devices are known by `jax.set_mesh`.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision {precision!r} is not one of {PRECISIONS}")
    if precision == "float32":
        result = jax.lax.dot_general(a, b, (axes, batch), precision=jax.lax.Precision.HIGHEST)
    else:
        (((left,), (right,)), lead) = (axes, len(batch[0]))
        if (a.ndim, b.ndim) != (lead + 2, lead + 2) or tuple(batch[0]) != tuple(range(lead)) or tuple(batch[1]) != tuple(range(lead)):
            raise ValueError(f"a product of {a.shape} and {b.shape} over {axes} with {batch} in common is not one of matrices")
        # XLA does not split an array whose layout is pinned over devices: each would be sent all of it.
        alone = jax.sharding.get_abstract_mesh().size <= 1
        result = rounded_p.bind(a, b, form=Form(left % a.ndim == lead, right % b.ndim == lead + 1), pinned=alone)
    return checkpoint_name(result, NAME)


def narrow(x: jax.Array, *, precision: str) -> jax.Array:
    """Rounded to bfloat16 where `precision` keeps activations in it: half the memory and traffic of what the backward pass needs."""
    return x.astype(jnp.bfloat16) if precision == "bfloat16_activations" else x


def wide(x: jax.Array) -> jax.Array:
    """In float32 at least: for sums, norms and softmax."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def best_precision(backend: str) -> str:
    """What "auto" means. A CPU's elementwise code is four times slower in bfloat16 than in float32, so its activations stay wide."""
    if backend != "cpu":
        return "bfloat16_activations"
    return "bfloat16" if cpu_flags() & {"avx512_bf16", "amx_bf16"} else "float32"


@functools.cache
def cpu_flags() -> frozenset[str]:
    """What the processor can do, in Linux's words; empty elsewhere."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return frozenset(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())


rounded_p = Primitive("rounded_product")
"""Bilinear: operands of any float type are rounded to bfloat16, the result is float32.

A primitive of its own and not a function with a custom derivative, so that it can be differentiated in both modes, in one through
the other and again, each derivative in a form that is fast.
"""


def _rounded(a: jax.Array, b: jax.Array, *, form: Form, pinned: bool) -> jax.Array:
    a, b = a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)
    left = a.ndim - 2 if form.left_turned else a.ndim - 1
    pin = _row_major if pinned and (form.left_turned or a.ndim > 2) else lambda x: x
    if pinned and form.left_turned:
        a, left = jnp.swapaxes(a, -1, -2), a.ndim - 1
    common = tuple(range(a.ndim - 2))
    axes = ((left,), (b.ndim - 1 if form.right_turned else b.ndim - 2,))
    return pin(jax.lax.dot_general(pin(a), pin(b), (axes, (common, common)), preferred_element_type=jnp.float32))


def _free(a: jax.Array, b: jax.Array, *, form: Form, pinned: bool) -> jax.Array:
    """Elsewhere than in a CPU's program XLA lays arrays out well itself."""
    del pinned
    return _rounded(a, b, form=form, pinned=False)


def _row_major(x: jax.Array) -> jax.Array:
    """`x` in memory as its axes stand. XLA's CPU backend has its fast product, of bfloat16 at all, for such operands only.

    It sums over the left operand's last axis, and what stands otherwise takes two to seven times as long (every kernel's gradient)
    or is widened to float32 again (attention's products, whose heads stand between). A plain transpose would be folded back into
    the product; and a loop may choose another layout for a result, which then no product can write.
    """
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


def _shape(a: Any, b: Any, *, form: Form, pinned: bool) -> Any:
    del pinned
    inner = a.shape[-2 if form.left_turned else -1], b.shape[-1 if form.right_turned else -2]
    if a.shape[:-2] != b.shape[:-2] or inner[0] != inner[1]:
        raise TypeError(f"operands of shapes {a.shape} and {b.shape} have no product {form}")
    rows, columns = a.shape[-1 if form.left_turned else -2], b.shape[-2 if form.right_turned else -1]
    return a.update(shape=(*a.shape[:-2], rows, columns), dtype=jnp.dtype(jnp.float32), weak_type=False)


def _to_left(g: jax.Array, a: Any, b: jax.Array, *, form: Form, pinned: bool) -> jax.Array:
    """The left operand's cotangent: g·rightᵀ, or where it is turned right·gᵀ."""
    if form.left_turned:
        return rounded_p.bind(b, g, form=Form(form.right_turned, True), pinned=pinned).astype(a.aval.dtype)
    return rounded_p.bind(g, b, form=Form(False, not form.right_turned), pinned=pinned).astype(a.aval.dtype)


def _to_right(g: jax.Array, a: jax.Array, b: Any, *, form: Form, pinned: bool) -> jax.Array:
    """The right operand's cotangent: leftᵀ·g, or where it is turned gᵀ·left."""
    if form.right_turned:
        return rounded_p.bind(g, a, form=Form(True, form.left_turned), pinned=pinned).astype(b.aval.dtype)
    return rounded_p.bind(a, g, form=Form(not form.left_turned, False), pinned=pinned).astype(b.aval.dtype)


def _mapped(
    operands: tuple[jax.Array, jax.Array], axes: tuple[int | None, int | None], *, form: Form, pinned: bool
) -> tuple[jax.Array, int]:
    """Under vmap: one more leading axis."""
    size = next(x.shape[axis] for x, axis in zip(operands, axes, strict=True) if axis is not None)
    a, b = (
        jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(operands, axes, strict=True)
    )
    return rounded_p.bind(a, b, form=form, pinned=pinned), 0


rounded_p.def_impl(jax.jit(_free, static_argnames=("form", "pinned")))
rounded_p.def_abstract_eval(_shape)
ad.defbilinear(rounded_p, _to_left, _to_right)
batching.primitive_batchers[rounded_p] = _mapped
mlir.register_lowering(rounded_p, mlir.lower_fun(_free, multiple_results=False))
mlir.register_lowering(rounded_p, mlir.lower_fun(_rounded, multiple_results=False), platform="cpu")
