"""Sharding: the device mesh, and a Layout that gives every leaf of the state its partition spec.

Axes: `data` shards the batch, `fsdp` shards the batch and every large leaf of the state, `tensor` shards matrix products by the
model's SHARDING table. Parameters, their average and the optimizer's moments are sharded alike, since the paths of the latter
contain the parameters' paths.
"""

import dataclasses
import difflib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from tinygen.errors import UserError, unknown
from tinygen.nn.names import path_name, variable_name

AXES = ("data", "fsdp", "tensor")
Rules = Sequence[tuple[str, tuple[str | None, ...] | None]]


def make_mesh(sizes: Mapping[str, int], devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh over all devices; one size may be -1, for the rest. Raises UserError for sizes that don't fit the devices."""
    devices = list(devices if devices is not None else jax.devices())
    shape = [sizes[axis] for axis in AXES]
    if shape.count(-1) > 1 or any(size < 1 and size != -1 for size in shape):
        raise UserError(f"config.mesh={dict(sizes)}: every axis must be positive; one may be -1, for the rest of the devices")
    known = math.prod(size for size in shape if size != -1)
    if -1 in shape:
        if len(devices) % known:
            raise UserError(f"config.mesh={dict(sizes)}: {known} does not divide the {len(devices)} devices")
        shape[shape.index(-1)] = len(devices) // known
    elif known != len(devices):
        raise UserError(f"config.mesh={dict(sizes)} needs {known} devices, but there are {len(devices)}")
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices)


@dataclasses.dataclass(frozen=True)
class Layout:
    """The sharding of every array of a run.

    rules: (regular expression, partial spec) pairs; the first that matches a leaf's path assigns axes to its dimensions, and `fsdp` takes
        one of the others. A spec of None replicates the leaf
    min_size: leaves with fewer elements are not sharded by `fsdp`
    """

    mesh: Mesh
    rules: Rules = ()
    min_size: int = 2**16

    @property
    def replicated(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def batch(self) -> NamedSharding:
        """The sharding of a batch: its leading axis over `data` and `fsdp`."""
        return NamedSharding(self.mesh, PartitionSpec(("data", "fsdp")))

    def pinned(self, array: jax.Array) -> jax.Array:
        """An array inside a compiled function, constrained to the sharding of a batch."""
        return jax.lax.with_sharding_constraint(array, self.batch)

    @property
    def batch_multiple(self) -> int:
        """The number that a batch size must be a multiple of."""
        return self.mesh.shape["data"] * self.mesh.shape["fsdp"]

    def padded(self, num: int) -> int:
        """`num` rounded up to a multiple of `batch_multiple`."""
        return -(-num // self.batch_multiple) * self.batch_multiple

    def shardings(self, abstract: Any) -> Any:
        """A tree of shardings like `abstract`, whose leaves have shapes."""
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: NamedSharding(self.mesh, self.spec(path_name(path), leaf.shape)), abstract
        )

    def spec(self, path: str, shape: Sequence[int]) -> PartitionSpec:
        """The partition spec of a leaf: the first matching rule, then `fsdp` on the largest (first, if tied) free dimension it divides.

        `fsdp` shards an embedding table by vocabulary or not at all, since rows are looked up whole. Raises UserError for a rule that
        does not fit the leaf.
        """
        spec: list[str | None] = [None] * len(shape)
        name = variable_name(path)
        for pattern, partial in self.rules if shape else ():
            if re.search(pattern, name):
                if partial is None:
                    return PartitionSpec(*spec)
                if len(partial) > len(shape):
                    raise UserError(f"{path} {list(shape)}: the rule {pattern!r} names {len(partial)} dimensions, {partial}")
                spec[: len(partial)] = partial
                break
        for dimension, axis in enumerate(spec):
            if axis is not None and shape[dimension] % self.mesh.shape[axis]:
                raise UserError(f"{path} {list(shape)}: dimension {dimension} is not divisible by mesh.{axis}={self.mesh.shape[axis]}")
        fsdp = self.mesh.shape["fsdp"]
        free = [d for d, axis in enumerate(spec) if axis is None and shape[d] % fsdp == 0]
        if path.endswith("embedding"):
            free = [d for d in free if d == 0]
        if fsdp > 1 and free and "fsdp" not in spec and math.prod(shape) >= self.min_size:
            spec[max(free, key=lambda d: shape[d])] = "fsdp"
        return PartitionSpec(*spec)

    def rows(self, batch_size: int) -> list[int]:
        """The rows of a global batch on this process's devices, in order."""
        indices = self.batch.addressable_devices_indices_map((batch_size,))
        return sorted({row for index in indices.values() if index is not None for row in range(batch_size)[index[0]]})

    def put(self, batch: Mapping[str, np.ndarray], batch_size: int) -> dict[str, jax.Array]:
        """Global arrays sharded over the mesh, from this process's `rows` of a batch."""
        return {
            key: jax.make_array_from_process_local_data(self.batch, array, (batch_size, *array.shape[1:])) for key, array in batch.items()
        }

    def share(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """The same from a whole batch, which every process has."""
        if not batch:
            return {}
        num = len(next(iter(batch.values())))
        rows = self.rows(num)
        return self.put({key: array[rows] for key, array in batch.items()}, num)


def check_rules(rules: Sequence[Any], names: Sequence[str]) -> Rules:
    """Validates config.sharding.rules: pairs of a regular expression that matches one of the `names`, and axes or None.

    Raises UserError for invalid rules.
    """
    for rule in rules:
        if not (isinstance(rule, tuple) and len(rule) == 2 and isinstance(rule[0], str) and isinstance(rule[1], tuple | None)):
            raise UserError(
                f"config.sharding.rules: {rule!r} is not a pair of a regular expression for paths and axes (None = replicated).\n"
                """Write them as a list: --config.sharding.rules="[('embed/kernel$', (None, 'tensor')), ('condition', None)]\""""
            )
        pattern, spec = rule
        try:
            found = any(re.search(pattern, name) for name in names)
        except re.error as error:
            raise UserError(f"config.sharding.rules: {pattern!r} is not a regular expression: {error}") from error
        axes = [axis for axis in spec or () if axis is not None]
        for axis in axes:
            if axis not in AXES:
                raise unknown(f"axis in config.sharding.rules, {pattern!r}:", axis, AXES)
        if len(set(axes)) < len(axes):
            raise UserError(f"config.sharding.rules: {pattern!r} names an axis twice, {spec}; an axis shards one dimension of a leaf")
        if not found:
            plain = {re.sub(r"/\d+(?=/|$)", "/*", name): None for name in names}
            near = difflib.get_close_matches(re.sub(r"\W+", "/", pattern), plain, n=3, cutoff=0.0)
            raise UserError(f"config.sharding.rules: {pattern!r} matches no parameter's name. Nearest: {', '.join(near)}")
    return rules
