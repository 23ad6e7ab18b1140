"""A stack of blocks x -> x: what the backward pass recomputes (remat), and whether the stack is unrolled or a loop (scan)."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.experimental.xla_metadata import set_xla_metadata

from tinygen.errors import UserError, unknown
from tinygen.nn.matmul import NAME

# What the backward pass of a block recomputes, as keyword arguments of jax.checkpoint. (XLA's CPU backend drops the barrier that keeps
# recomputation from moving forward, so on a CPU this saves memory only in a loop.)
REMAT: dict[str, dict[str, Any] | None] = {
    "none": None,  # nothing
    "products": dict(policy=jax.checkpoint_policies.save_only_these_names(NAME)),  # everything but matrix products
    "full": dict(),  # everything, from the block's input
}


def check(remat: str, scan: int, depth: int) -> None:
    """Raises UserError for an unknown policy, and for a `scan` that does not divide the depth."""
    if remat not in REMAT:
        raise unknown("config.remat", remat, REMAT)
    if scan < 0 or (scan and depth % scan):
        raise UserError(f"config.scan={scan} must be 0 (no loop) or divide the {depth} blocks of config.model.depth")


def materialized(x: Any) -> Any:
    """`x`, a tree of arrays, written to memory before it is used, and its gradient likewise.

    XLA's CPU backend fuses sums into their consumers. The gradient of a residual stream is a sum over all later blocks, which every
    block would recompute: work that grows with the depth squared. XLA drops optimization barriers before fusion, but cannot fuse
    across a function that is not inlined. (The body of a loop is such a function already.)
    """
    if jax.default_backend() != "cpu":
        return x
    with set_xla_metadata(inlineable="false"):
        return _barrier(x)


_barrier = jax.jit(jax.lax.optimization_barrier)  # an identity that JAX does not optimize away


def apply(blocks: Sequence[nnx.Module], x: Any, *conditions: Any, remat: str, scan: int) -> Any:
    """Applies the blocks in turn to `x`, an array or a tree: x = block(x, *conditions).

    remat: a key of REMAT
    scan: blocks per iteration of a loop; 0 = unrolled. A loop compiles in the time of one iteration, whatever the depth, but
        first stacks the parameters of all iterations, and their gradients. Block i must have the same structure in every
        iteration: alternating kinds of blocks need scan=2.
    """
    graphs, states = zip(*(nnx.split(block) for block in blocks), strict=True)

    def block(graph: nnx.GraphDef) -> Callable[[Any, Any], Any]:
        def call(state: Any, x: Any) -> Any:
            return nnx.merge(graph, state)(x, *conditions)

        keywords = REMAT[remat]
        # In a loop nothing can be fused across iterations, so the barrier would only cost.
        return call if keywords is None else jax.checkpoint(call, prevent_cse=not scan, **keywords)

    if not scan:
        for graph, state in zip(graphs, states, strict=True):
            x = block(graph)(state, materialized(x))
        return materialized(x)
    shapes = [(graph, jax.tree.map(jnp.shape, state)) for graph, state in zip(graphs, states, strict=True)]
    if any(shape != shapes[index % scan] for index, shape in enumerate(shapes)):
        cure = "use 2 for experts in every second block, 0 for widths that grow"
        raise UserError(f"config.scan={scan}: the blocks do not repeat after {scan}; {cure}")

    def body(x: Any, group: Sequence[Any]) -> tuple[Any, None]:
        for graph, state in zip(graphs, group, strict=False):
            x = block(graph)(state, x)
        return x, None

    stacked = tuple(jax.tree.map(lambda *leaves: jnp.stack(leaves), *states[index::scan]) for index in range(scan))
    return jax.lax.scan(body, x, stacked)[0]
