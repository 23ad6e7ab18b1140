"""Draws samples in the model's domain, independent of batch size and devices."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from rich.progress import track

from tinygen import build
from tinygen.data.codec import Batch
from tinygen.distributed import processes
from tinygen.rng import example_keys, stream
from tinygen.train_step import Tree, merge

Conditions = Mapping[str, jax.Array]
BATCH = 64  # samples drawn together by default


def counted(
    weights: tuple[Tree, Tree], parts: build.Parts, cond: Batch, *, num: int, seed: int, batch_size: int, negative: Batch | None = None
) -> tuple[np.ndarray, np.ndarray | None]:
    """(samples [num, ...] in the model's domain, network evaluations of each [num], or None if the objective does not count them).

    Sample i depends on the seed and i, not on the batch size or the devices.
    """
    size = parts.layout.padded(min(batch_size, num))
    parted = drawn(weights, parts, cond, num=num, seed=seed, size=size, negative=negative)
    shown = track(parted, description="sampling", total=-(-num // size), transient=True, disable=not processes.leads())
    x, evaluations = zip(*shown, strict=True)
    return np.concatenate(x), None if evaluations[0] is None else np.concatenate(evaluations)


def drawn(
    weights: tuple[Tree, Tree], parts: build.Parts, cond: Batch, *, num: int, seed: int, size: int, start: int = 0, step: Any = None,
    negative: Batch | None = None,
) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:  # fmt: skip
    """Samples `start` to `num` and their network evaluations as in `counted`, at most `size` at a time.

    cond, negative: conditions of all `num` samples
    step: the `sample_step` of that size and seed, if already made
    """
    with jax.set_mesh(parts.layout.mesh):
        jitted = step or sample_step(parts, size, seed)
    for first in range(start, num, size):
        with jax.set_mesh(parts.layout.mesh):  # not around the yield: the caller has its own mesh
            given = [shared(parts, each, first, size, num) for each in (cond, negative) if each is not None]
            x, evaluations = jax.device_get(jitted(*weights, first, *given))
        yield np.asarray(x)[: num - first], None if evaluations is None else np.asarray(evaluations)[: num - first]


def shared(parts: build.Parts, cond: Batch, first: int, size: int, num: int) -> Conditions:
    """Rows `first` to `first + size` of the conditions of `num` samples, on the devices; the last row is repeated."""
    rows = np.minimum(np.arange(first, first + size), num - 1)
    return parts.layout.share({key: value[rows] for key, value in cond.items()})


def sample_step(parts: build.Parts, size: int, seed: int) -> Any:
    """The jitted (weights, buffers, first index, conditions [size], negative conditions or None) -> (`size` samples, evaluations)."""
    root = stream(seed, "sample")

    def sample(
        params: Tree, buffers: Tree, start: int, cond: Conditions, negative: Conditions | None = None
    ) -> tuple[jax.Array, jax.Array | None]:
        given = merge(parts.graphdef, params, buffers), parts.layout.pinned(example_keys(root, start, size)), cond, negative
        return parts.objective.draw(*given)

    return jax.jit(sample, out_shardings=parts.layout.replicated)
