"""The objective's own metrics on held-out data."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from tinygen import build
from tinygen.config import Config
from tinygen.data.source import DataSource
from tinygen.objectives.base import finalise
from tinygen.rng import stream
from tinygen.train_step import Metrics, Tree, merge


class Interrupted(Exception):
    """A signal interrupted the evaluation."""


def held_out_step(config: Config, parts: build.Parts) -> Any:
    """The jitted (weights, buffers, batch, batch index) -> metrics, for batches of `held_out_size` examples."""

    def numbered(weights: Tree, buffers: Tree, batch: Mapping[str, jax.Array], index: jax.Array) -> Metrics:
        key = jax.random.fold_in(stream(config.seed, "eval"), index)
        return parts.objective.loss(merge(parts.graphdef, weights, buffers), batch, key, train=False)[1]

    return jax.jit(numbered, out_shardings=parts.layout.replicated)


def held_out_size(config: Config, parts: build.Parts) -> int:
    return parts.layout.padded(config.batch_size)


def make_held_out(
    config: Config, source: DataSource, parts: build.Parts, step: Any = None, unwanted: Callable[[], bool] = lambda: False
) -> Callable[[Tree, Tree], dict[str, float]]:
    """(weights, buffers) -> metrics over the validation split, with the same noise and t every time.

    step: the `held_out_step`, if already made
    unwanted: called before each batch; True raises Interrupted
    """
    layout, size = parts.layout, held_out_size(config, parts)
    step = step or held_out_step(config, parts)

    def held_out(weights: Tree, buffers: Tree) -> dict[str, float]:
        totals: dict[str, tuple[Any, Any]] = {}
        for index, batch in enumerate(source.epoch("validation", size, config.train.eval_num, layout.rows(size))):
            if unwanted():
                raise Interrupted
            metrics = step(weights, buffers, layout.put(batch, size), index)
            for name, value in jax.device_get(metrics).items():
                before, pair = totals.get(name, (0.0, 0.0)), value if isinstance(value, tuple) else (value, 1.0)
                totals[name] = before[0] + np.asarray(pair[0], np.float64), before[1] + float(pair[1])
        return finalise(totals, parts.objective)

    return held_out
