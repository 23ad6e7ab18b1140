"""A stack of blocks that each take and return x: what its backward pass keeps, and whether its program is written out or is a loop."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.experimental.xla_metadata import set_xla_metadata

from tinygen.errors import UserError, unknown
from tinygen.nn.matmul import NAME

# What the backward pass of a block computes again. Keyword arguments of jax.checkpoint. (XLA's CPU backend drops the barrier that
# keeps it from being computed early: there memory is saved in a loop only.)
REMAT: dict[str, dict[str, Any] | None] = {
    "none": None,  # nothing: all that it needs is kept
    "products": dict(policy=jax.checkpoint_policies.save_only_these_names(NAME)),  # all but the results of products
    "full": dict(),  # the whole block from its input
}


def check(remat: str, scan: int, depth: int) -> None:
    """Raises UserError for a policy that there is not, and for groups that do not divide the blocks."""
    if remat not in REMAT:
        raise unknown("config.remat", remat, REMAT)
    if scan < 0 or (scan and depth % scan):
        raise UserError(f"config.scan={scan} must be 0 (no loop) or divide the {depth} blocks of config.model.depth")


def settled(x: Any) -> Any:
    """`x`, arrays, as such that are in memory before anything is computed from it, and its gradient too.

    XLA's CPU backend takes sums together with whatever reads them. The gradient of a residual stream is a sum over all later
    blocks, which each block would add up from the start again: work and traffic that grow with the depth squared. It drops
    optimization barriers before it decides that; a function that must stay a function it cannot look through.
    (The turns of a loop are such functions already.)
    """
    if jax.default_backend() != "cpu":
        return x
    with set_xla_metadata(inlineable="false"):
        return _itself(x)


_itself = jax.jit(jax.lax.optimization_barrier)  # the identity, but none that JAX leaves out


def through(blocks: Sequence[nnx.Module], x: Any, *conditions: Any, remat: str, scan: int) -> Any:
    """`x`, an array or a tree of them, taken through the blocks: x = block(x, *conditions) for each.

    remat: a row of REMAT
    scan: blocks a turn of the loop; 0 = no loop: every block compiled on its own. A loop compiles in the time of one turn,
        whatever the depth, but stacks the turns' parameters, and their gradients, first. Block i of each turn must be of one
        structure: alternating kinds of blocks take scan=2.
    """
    graphs, states = zip(*(nnx.split(block) for block in blocks), strict=True)

    def applied(graph: nnx.GraphDef) -> Callable[[Any, Any], Any]:
        def apply(state: Any, x: Any) -> Any:
            return nnx.merge(graph, state)(x, *conditions)

        keywords = REMAT[remat]
        # In a loop nothing can be taken together over its turns: the barrier that prevents it would only cost.
        return apply if keywords is None else jax.checkpoint(apply, prevent_cse=not scan, **keywords)

    if not scan:
        for graph, state in zip(graphs, states, strict=True):
            x = applied(graph)(state, settled(x))
        return settled(x)
    shapes = [(graph, jax.tree.map(jnp.shape, state)) for graph, state in zip(graphs, states, strict=True)]
    if any(shape != shapes[index % scan] for index, shape in enumerate(shapes)):
        cure = "experts in every second block take 2, widths that grow 0"
        raise UserError(f"config.scan={scan}: the blocks do not repeat after {scan}; {cure}")

    def turn(x: Any, group: Sequence[Any]) -> tuple[Any, None]:
        for graph, state in zip(graphs, group, strict=False):
            x = applied(graph)(state, x)
        return x, None

    stacked = tuple(jax.tree.map(lambda *leaves: jnp.stack(leaves), *states[index::scan]) for index in range(scan))
    return jax.lax.scan(turn, x, stacked)[0]
