"""Memory and work per device: the sharding and bytes of the state, and the FLOPs and collectives of the compiled step."""

import collections
import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from tinygen.distributed.mesh import AXES, Layout
from tinygen.nn.names import path_name
from tinygen.profiling import hlo
from tinygen.train_step import TrainState

BRANCHES = {"params": "parameters", "ema": "EMA", "opt_state": "optimizer", "buffers": "buffers"}  # branches of the state and their labels
LARGEST = 5  # replicated leaves to name


class Group(NamedTuple):
    """Corresponding leaves of equal blocks.

    path: "params/blocks/*/attention/query/kernel"
    leaves: their number
    spec: an axis or None per dimension
    bytes: of one leaf on one device
    """

    path: str
    leaves: int
    shape: tuple[int, ...]
    spec: tuple[str | None, ...]
    bytes: int


@dataclasses.dataclass(frozen=True)
class Footprint:
    """The mesh, and the memory and work of one device.

    held: {branch of the state: bytes}
    step: {"argument", "output", "temporary": bytes} of the compiled step as planned by XLA; empty if unknown
    program: FLOPs and collectives of the step
    """

    mesh: Mapping[str, int]
    held: Mapping[str, int]
    step: Mapping[str, int]
    program: hlo.Program
    groups: list[Group]

    @property
    def replicated(self) -> list[Group]:
        """The largest replicated parameters; none on a single device."""
        whole = [group for group in self.groups if group.path.startswith("params/") and not any(self.axes(group))]
        return sorted(whole, key=lambda group: -group.bytes * group.leaves)[:LARGEST] if math.prod(self.mesh.values()) > 1 else []

    def axes(self, group: Group) -> list[str | None]:
        """The group's spec without axes of a single device."""
        return [axis if axis is not None and self.mesh[axis] > 1 else None for axis in group.spec]

    def facts(self) -> dict[str, Any]:
        """The facts for the run's manifest."""
        return {
            "mesh": dict(self.mesh),
            "memory_per_device": {**self.held, **self.step},
            "flops_per_device": self.program.flops,
            "collectives": {kind: traffic._asdict() for kind, traffic in self.program.collectives.items()},
            "replicated": {group.path: group.bytes * group.leaves for group in self.replicated},
            "shardings": {group.path: self.axes(group) for group in self.groups},
        }

    def lines(self) -> Iterator[str]:
        """A summary for the start of a run's log and for --describe."""
        yield "mesh: " + " x ".join(f"{axis} {self.mesh[axis]}" for axis in AXES)
        yield "memory per device: " + ", ".join(f"{BRANCHES[branch]} {si(size, 1024)}B" for branch, size in self.held.items() if size)
        if self.step:
            total = sum(self.held.values()) + self.step["temporary"]
            yield (
                f"  during a step {si(self.step['temporary'], 1024)}B more: {si(total, 1024)}B in total, without previews and evaluation "
                f"(arguments {si(self.step['argument'], 1024)}B, results {si(self.step['output'], 1024)}B)"
            )
        yield f"work per device: {si(self.program.flops)}FLOPs per step" + "".join(
            f", {traffic.count} {kind} of {si(traffic.bytes, 1024)}B" for kind, traffic in self.program.collectives.items()
        )
        if self.replicated:
            named = ", ".join(f"{_counted(group)} {si(group.bytes * group.leaves, 1024)}B" for group in self.replicated)
            yield f"  replicated on every device: {named}"


def measure(compiled: Any, layout: Layout, abstract: TrainState) -> Footprint:
    """Measures the state and its compiled step."""
    plan, state = compiled.memory_analysis(), placed(abstract, layout)
    sizes = (
        {"argument": plan.argument_size_in_bytes, "output": plan.output_size_in_bytes, "temporary": plan.temp_size_in_bytes} if plan else {}
    )
    held = {branch: bytes_held(getattr(state, branch)) for branch in BRANCHES}
    return Footprint(dict(layout.mesh.shape), held, sizes, hlo.read(compiled.as_text() or ""), list(groups(state)))


def placed(abstract: Any, layout: Layout) -> Any:
    """The abstract tree with shardings."""
    return jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), abstract, layout.shardings(abstract)
    )


def bytes_held(state: Any) -> int:
    """Bytes per device of a tree of leaves with shardings."""
    return sum(map(_bytes, jax.tree.leaves(state)))


def groups(state: TrainState) -> Iterator[Group]:
    """The leaves of the state, grouped over equal blocks; without EMA and moments, which are sharded like their parameters."""
    leaves = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}
    specs = {path: tuple(leaf.sharding.spec) for path, leaf in leaves.items()}
    found: dict[str, list[str]] = collections.defaultdict(list)
    for path in specs:
        names = path.split("/")
        suffixes = ("/".join(["params", *names[start:]]) for start in range(1, len(names)))
        own = next((suffix for suffix in suffixes if suffix in specs), None)  # its own parameter
        if own is None or path == own:
            found["/".join("*" if name.isdigit() else name for name in names)].append(path)
    for pattern, paths in found.items():
        alike = len({(leaves[path].shape, specs[path]) for path in paths}) == 1
        for name, members in {pattern: paths}.items() if alike else {path: [path] for path in paths}.items():
            leaf = leaves[members[0]]
            yield Group(name, len(members), leaf.shape, specs[members[0]], _bytes(leaf))


def si(value: float, base: int = 1000) -> str:
    """ "1.25 T" for 1.25e12, and with base 1024 "1.25 Ti"."""
    prefixes = ("", "k", "M", "G", "T", "P", "E")
    power = max(0, min(int(math.log(max(value, 1), base)), len(prefixes) - 1))
    return f"{value / base**power:.3g} {prefixes[power]}{'i' if base == 1024 and power else ''}"


def _counted(group: Group) -> str:
    return group.path.removeprefix("params/") + (f" ({group.leaves}x)" if group.leaves > 1 else "")


def _bytes(leaf: Any) -> int:
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * np.dtype(leaf.dtype).itemsize
