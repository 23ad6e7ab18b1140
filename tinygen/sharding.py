"""Where arrays live: a mesh of devices named by what is split over them, and a Layout that gives every leaf its partition.

Axes: `data` splits the batch, `fsdp` splits the batch and every large leaf of the state, `tensor` splits products as the
model's SHARDING table says. The same rules give parameters, their average and the optimizer's moments the same partition,
since those repeat the parameters' paths.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from tinygen.errors import UserError

AXES = ("data", "fsdp", "tensor")
Rules = Sequence[tuple[str, tuple[str | None, ...]]]


def make_mesh(sizes: Mapping[str, int], devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh over all devices; one of the sizes may be -1, for the rest. Raises UserError where they don't fit."""
    devices = list(devices if devices is not None else jax.devices())
    shape = [sizes[axis] for axis in AXES]
    if shape.count(-1) > 1 or any(size < 1 and size != -1 for size in shape):
        raise UserError(f"config.mesh={dict(sizes)}: every axis must be positive; one may be -1, for the rest of the devices")
    known = int(np.prod([size for size in shape if size != -1]))
    if -1 in shape:
        if len(devices) % known:
            raise UserError(f"config.mesh={dict(sizes)}: {known} does not divide the {len(devices)} devices")
        shape[shape.index(-1)] = len(devices) // known
    if np.prod(shape) != len(devices):
        raise UserError(f"config.mesh={dict(sizes)} needs {int(np.prod(shape))} devices, but there are {len(devices)}")
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices)


@dataclasses.dataclass(frozen=True)
class Layout:
    """The partition of every array of a run.

    rules: (regular expression, partial spec) pairs; the first that is found in a leaf's path gives its dimensions to axes
    min_size: leaves with fewer elements are not split over `fsdp`
    """

    mesh: Mesh
    rules: Rules = ()
    min_size: int = 2**16

    @property
    def replicated(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def batch(self) -> NamedSharding:
        """The leading axis over everything that splits a batch."""
        return NamedSharding(self.mesh, PartitionSpec(("data", "fsdp")))

    def pinned(self, array: jax.Array) -> jax.Array:
        """An array made inside a compiled function, its leading axis split as a batch is."""
        return jax.lax.with_sharding_constraint(array, self.batch)

    @property
    def batch_multiple(self) -> int:
        """What a batch size must be a multiple of."""
        return self.mesh.shape["data"] * self.mesh.shape["fsdp"]

    def padded(self, num: int) -> int:
        """The next batch size from `num` up that splits evenly."""
        return -(-num // self.batch_multiple) * self.batch_multiple

    def shardings(self, abstract: Any) -> Any:
        """A tree of shardings like `abstract`, whose leaves have shapes."""
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: NamedSharding(self.mesh, self.spec(path_name(path), leaf.shape)), abstract
        )

    def spec(self, path: str, shape: Sequence[int]) -> PartitionSpec:
        """One leaf's partition: the model's rule first, then the largest dimension left that `fsdp` divides (ties: the first)."""
        spec: list[str | None] = [None] * len(shape)
        for pattern, partial in self.rules:
            if re.search(pattern, path):
                spec[: len(partial)] = partial
                break
        for dimension, axis in enumerate(spec):
            if axis is not None and shape[dimension] % self.mesh.shape[axis]:
                raise UserError(f"{path} {list(shape)}: dimension {dimension} is not divisible by mesh.{axis}={self.mesh.shape[axis]}")
        fsdp = self.mesh.shape["fsdp"]
        free = [d for d, axis in enumerate(spec) if axis is None and shape[d] % fsdp == 0]
        if fsdp > 1 and free and np.prod(shape) >= self.min_size:
            spec[max(free, key=lambda d: shape[d])] = "fsdp"
        return PartitionSpec(*spec)

    def rows(self, batch_size: int) -> list[int]:
        """The positions of a global batch that this process's devices hold, in order."""
        indices = self.batch.addressable_devices_indices_map((batch_size,))
        return sorted({row for index in indices.values() if index is not None for row in range(batch_size)[index[0]]})

    def put(self, batch: Mapping[str, np.ndarray], batch_size: int) -> dict[str, jax.Array]:
        """The `rows` that this process holds of a batch, as global arrays split over the mesh."""
        return {
            key: jax.make_array_from_process_local_data(self.batch, array, (batch_size, *array.shape[1:])) for key, array in batch.items()
        }

    def share(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """The same, of a whole batch that every process has."""
        if not batch:
            return {}
        num = len(next(iter(batch.values())))
        rows = self.rows(num)
        return self.put({key: array[rows] for key, array in batch.items()}, num)


def path_name(path: Sequence[Any]) -> str:
    """ "params/blocks/0/attention/qkv/kernel" for the key path of a leaf."""
    return "/".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)
