"""Restore a checkpoint's arrays onto devices: compare names, shapes and dtypes first, then read each shard directly to its device."""

import contextlib
from collections.abc import Collection
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp
from etils import epath
from flax.traverse_util import flatten_dict, unflatten_dict

from tinygen.errors import UserError
from tinygen.nn.names import path_name

IN_FLIGHT = 2**26  # bytes in flight, in addition to the state that is being filled; more is not faster


class Differences(NamedTuple):
    """How a checkpoint's arrays differ from the wanted ones: names, with "saved -> wanted" if both exist."""

    missing: list[str]
    unexpected: list[str]
    other_shape: list[str]
    other_dtype: list[str]

    def lines(self, most: int) -> list[str]:
        """One line per kind: the count, and at most `most` names."""
        shown = {kind.replace("_", " "): names for kind, names in self._asdict().items() if names}
        return [
            f"  {kind} ({len(names)}): {', '.join(names[:most])}" + (f" and {len(names) - most} more" if len(names) > most else "")
            for kind, names in shown.items()
        ]


def read(folder: epath.Path, abstract: Any, shardings: Any, *, branches: Collection[str] | None = None, advice: str) -> Any:
    """The checkpoint's arrays in the tree `abstract`, restored directly to `shardings`, whatever devices they were saved from.

    branches: the parts of the checkpoint that must hold exactly these arrays; None = all
    Raises UserError with the differences and the `advice`, before reading any array, if there are any differences.
    """
    if any(found := differences(folder, abstract, branches)):
        raise UserError("\n".join([f"{folder.parent} holds other arrays than this model has (saved -> wanted):", *found.lines(3), advice]))
    return _read(folder, abstract, shardings)


def read_fitting(folder: epath.Path, abstract: dict[str, Any], shardings: dict[str, Any]) -> tuple[dict[str, Any], Differences]:
    """The wanted arrays that match the checkpoint by name, shape and dtype, and the differences.

    abstract, shardings: nested dicts whose top-level keys are branches. The result omits arrays, or whole branches, that do not match.
    """
    found = differences(folder, abstract, abstract)
    unfit = {line.split()[0] for line in (*found.missing, *found.other_shape, *found.other_dtype)}
    fitting = [_without(tree, unfit) for tree in (abstract, shardings)]
    return (_read(folder, *fitting) if jax.tree.leaves(fitting[0]) else fitting[0]), found


def differences(folder: epath.Path, abstract: Any, branches: Collection[str] | None) -> Differences:
    """The differences that prevent reading `abstract`. Reads metadata only."""
    with contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
        tree = handler.metadata(folder).tree
    saved = {name: leaf for name, leaf in _named(tree) if branches is None or name.split("/")[0] in branches}
    wanted = dict(_named(abstract))
    both = [(name, saved[name], leaf) for name, leaf in wanted.items() if name in saved]
    return Differences(
        missing=[name for name in wanted if name not in saved],
        unexpected=[name for name in saved if name not in wanted],
        other_shape=[f"{name} {list(a.shape)} -> {list(b.shape)}" for name, a, b in both if tuple(a.shape) != tuple(b.shape)],
        other_dtype=[f"{name} {a.dtype} -> {b.dtype}" for name, a, b in both if a.dtype != b.dtype],
    )


def _read(folder: epath.Path, abstract: Any, shardings: Any) -> Any:
    largest = max((leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(abstract)), default=0)
    gigabytes: Any = max(IN_FLIGHT, largest + 1) / 10**9  # Orbax needs more than the largest array, and converts it to bytes
    target = jax.tree.map(lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), abstract, shardings)
    arguments = ocp.checkpoint_utils.construct_restore_args(target)
    # Not strict: Orbax would ignore dtypes and branches, and `differences` has compared everything already.
    with contextlib.closing(ocp.PyTreeCheckpointHandler(restore_concurrent_gb=gigabytes)) as handler:
        return handler.restore(folder, args=ocp.args.PyTreeRestore(item=target, restore_args=arguments, partial_restore=True))


def _named(tree: Any) -> list[tuple[str, Any]]:
    return [(path_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def _without(tree: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """`tree` without the leaves with these names, and without branches left empty, which Orbax would treat as leaves."""
    return unflatten_dict({name: leaf for name, leaf in flatten_dict(tree, sep="/").items() if name not in names}, sep="/")
