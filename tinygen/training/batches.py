"""Groups steps into calls, and prefetches their batches to the devices."""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from typing import Any

import jax
import numpy as np

from tinygen import build
from tinygen import config as config_lib
from tinygen.config import Config
from tinygen.data.codec import Batch
from tinygen.data.source import DataSource, check_batch
from tinygen.train_step import Call
from tinygen.training.periodic import cadences
from tinygen.training.program import argument_shapes

Waiting = Callable[[], contextlib.AbstractContextManager[None]]


def calls(config: Config, start: int) -> Iterator[range]:
    """The steps after `start`, grouped into calls of at most config.train.steps_per_call steps.

    A call ends at a step after which the loop evaluates, draws or saves. The first call is a single step: the clock starts after it.
    """
    step, steps, most, work = start, config.train.steps, config.train.steps_per_call, cadences(config).values()
    while step < steps:
        longest = range(step + 1, min(step + (most if step > start else 1), steps) + 1)
        last = next((each for each in longest if any(due(each) for due in work)), longest[-1])
        yield range(step + 1, last + 1)
        step = last


def bounded(config: Config) -> Config:
    """The configuration with steps_per_call lowered to its longest call, for which batches are allocated."""
    longest = 1
    for call in calls(config, 0):
        longest = max(longest, len(call))
        if longest == config.train.steps_per_call:  # usually soon; a run may have millions of calls
            break
    return config_lib.change(config, dict(train=dict(steps_per_call=longest)))


@contextlib.contextmanager
def device_calls(
    config: Config, source: DataSource, parts: build.Parts, attempt: int, start: int, waiting: Waiting = contextlib.nullcontext
) -> Iterator[Iterator[Any]]:
    """The second arguments of `Program.step` from batch number `start`, prefetched to the devices: batches, or for several steps per call
    batches stacked per call, one transfer per array.

    The first batch of a run is checked on entry. The prefetching threads end on exit.

    waiting: context manager entered while waiting for a batch
    """
    most, abstract = config.train.steps_per_call, argument_shapes(config, parts)

    def gathered(reading: Iterator[Batch]) -> Iterator[Any]:
        if most == 1:
            yield from reading
        else:
            for steps in calls(config, start):
                yield Call(np.int32(len(steps)), stacked(itertools.islice(reading, len(steps)), most))

    def placed(argument: Any) -> Any:
        return jax.tree.map(put, abstract, argument)

    def put(shape: jax.ShapeDtypeStruct, array: Any) -> jax.Array:
        return jax.make_array_from_process_local_data(shape.sharding, array, shape.shape)

    with _checked(config, source, parts, attempt, start) as reading, _ahead(map(placed, gathered(reading)), waiting) as arguments:
        yield arguments


def stacked(batches: Iterable[Batch], size: int) -> Batch:
    """Stacks at most `size` batches [B, ...] into [size, B, ...], padded with zeros."""
    whole: dict[str, np.ndarray] = {}
    for index, batch in enumerate(batches):
        for key, rows in batch.items():
            whole.setdefault(key, np.zeros((size, *rows.shape), rows.dtype))[index] = rows
    return whole


@contextlib.contextmanager
def _checked(config: Config, source: DataSource, parts: build.Parts, attempt: int, start: int) -> Iterator[Iterator[Batch]]:
    """This process's rows of the batches from number `start`. The first batch of a run is read and checked on entry.

    Later batches are not checked: a run that has skipped non-finite updates may resume at any of them.
    """
    rows = parts.layout.rows(config.batch_size)
    mine = rows if len(rows) < config.batch_size else None
    with contextlib.closing(source.batches("train", config.batch_size, config.seed, attempt, start, mine)) as reading:
        if start or attempt:
            yield reading
            return
        first = next(reading)
        check_batch(first, source.codec)
        yield itertools.chain([first], reading)


@contextlib.contextmanager
def _ahead(items: Iterator[Any], waiting: Waiting) -> Iterator[Iterator[Any]]:
    """Prefetches items: a thread computes the next one while the device works. The thread ends on exit.

    The `with` block owns the thread, not the iterator: a generator might be garbage-collected in the thread, which cannot join itself.
    """

    def prefetched() -> Iterator[Any]:
        coming = thread.submit(next, items, None)
        while True:
            with waiting():
                item = coming.result()
            if item is None:
                return
            coming = thread.submit(next, items, None)
            yield item

    with futures.ThreadPoolExecutor(1, "feed") as thread:
        yield prefetched()
