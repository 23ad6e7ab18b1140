"""Feature extraction: threads decode and resize pictures while the devices compute.

Batches are sharded over the mesh. Feature i depends on picture i only, not on the batch size.
"""

import collections
import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import jax
import numpy as np

from tinygen.distributed.mesh import Layout
from tinygen.evaluation.features.network import Network
from tinygen.evaluation.images import Read
from tinygen.system import limits, malloc

TRIMMED = 256  # pictures after which free memory is returned to the kernel
ON_CPU, ON_ACCELERATOR = 16, 256  # images per device and batch; more is not faster
SHARE = 0.5  # maximum share of a device's memory for a batch


class Extractor(NamedTuple):
    """A compiled network on the devices, for batches of `size`."""

    network: Network
    layout: Layout
    size: int
    step: Any
    variables: Any


def extractor(network: Network, layout: Layout) -> Extractor:
    """The network compiled for the largest useful batch size that fits into device memory."""
    variables = jax.device_put(network.variables, layout.replicated)
    jitted = jax.jit(network.apply, in_shardings=(layout.replicated, layout.batch), out_shardings=layout.replicated)
    each = ON_CPU if jax.default_backend() == "cpu" else ON_ACCELERATOR
    while True:
        size = each * layout.batch_multiple
        images = jax.ShapeDtypeStruct((size, *network.size, 3), "float32")
        with jax.set_mesh(layout.mesh):
            step = jitted.lower(variables, images).compile()
        taken = step.memory_analysis()
        if each == 1 or taken is None or taken.temp_size_in_bytes < SHARE * limits.device_bytes():
            return Extractor(network, layout, size, step, variables)
        each //= 2


def extract(reads: Iterator[Read], using: Extractor, unwanted: Callable[[], bool] = lambda: False) -> Iterator[dict[str, np.ndarray]]:
    """The network's outputs for the pictures, in order: {"features": [n, D], ...} for n pictures at a time, on every process.

    unwanted: called before each batch; stops if it returns True
    """
    network, layout, size, step, variables = using
    rows = layout.rows(size)
    mine = set(rows)
    before: tuple[int, Any] | None = None
    held = 0
    with ThreadPoolExecutor(os.cpu_count(), "pictures") as pool:
        queue = _ahead(reads, size, lambda read: pool.submit(lambda: network.prepare(read())), mine)
        while batch := list(itertools.islice(queue, size)):
            if unwanted():
                pool.shutdown(cancel_futures=True)
                return
            images = [each.result() for each in batch if each is not None]
            num = len(batch)
            while len(images) < len(rows):  # pad the last batch
                images.append(np.zeros((*network.size, 3), np.float32))
            given = layout.put({"x": np.stack(images)}, size)["x"]
            now = num, step(variables, given)
            if before is not None:
                yield _fetched(*before)  # while the devices compute this batch
            before = now
            held += num
            if held >= TRIMMED:
                held = 0
                malloc.release_freed_memory()
    if before is not None:
        yield _fetched(*before)


def _ahead(
    reads: Iterator[Read], size: int, submit: Callable[[Read], Future[np.ndarray]], mine: set[int]
) -> Iterator[Future[np.ndarray] | None]:
    """The in-flight pictures, two batches ahead; None for one that another process prepares.

    At most as many pictures are read ahead as there are threads, since before resizing they may be hundreds of times as large.
    """
    waiting: collections.deque[Future[np.ndarray] | None] = collections.deque()
    busy: collections.deque[Future[np.ndarray]] = collections.deque()
    for number, read in enumerate(reads):
        waiting.append(submit(read) if number % size in mine else None)
        if (latest := waiting[-1]) is not None:
            busy.append(latest)
        if len(busy) > (os.cpu_count() or 1):
            wait([busy.popleft()])
        if len(waiting) > 2 * size:
            yield waiting.popleft()
    yield from waiting


def _fetched(num: int, given: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(value)[:num] for name, value in jax.device_get(given).items()}
