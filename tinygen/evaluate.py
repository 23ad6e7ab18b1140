"""The objective's own metrics on held-out data, during a run and from a checkpoint."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from tinygen import build
from tinygen import config as config_lib
from tinygen.checkpoints import store
from tinygen.checkpoints.weights import EVERYWHERE, load
from tinygen.config import Config
from tinygen.data.source import DataSource
from tinygen.distributed import processes
from tinygen.errors import UserError
from tinygen.objectives.metrics import finalise
from tinygen.rng import stream
from tinygen.system.terminal import say
from tinygen.train_step import Metrics, TrainState, Tree, make_eval_step
from tinygen.workdir import data_contents
from tinygen.workdir.files import folder


def main(ckpt: str, *, step: int | None, ema: bool) -> int:
    """Prints the held-out metrics of a checkpoint and appends them to the run's eval.jsonl."""
    saved = store.find(ckpt, step)
    processes.agree("the checkpoint", str(saved.step))
    config = config_lib.change(saved.config, {"train": {"eval_num": 0}, **EVERYWHERE})
    with processes.lead_first("data"):
        source = build.data_source(config, saved.codec.words, prepares=False)
    if why := data_contents.change(folder(saved.workdir), saved.manifest, source):
        raise UserError(
            f"the data of {saved.workdir} have changed since it was trained ({why}):\n"
            "what is held out now may have been trained on. Put them back as they were."
        )
    processes.agree("the data", source.fingerprint)
    parts = build.parts(config, saved.codec)
    with jax.set_mesh(parts.layout.mesh):
        values = make_held_out(config, source, parts)(*load(saved, parts, ema=ema))
    if processes.leads():
        publish(saved, ema, source, values)
    return 0


def publish(saved: store.Saved, ema: bool, source: DataSource, values: dict[str, float]) -> None:
    """Prints the metrics and appends them to the run's eval.jsonl."""
    line = {"step": saved.step, "ema": ema, "data_fingerprint": source.fingerprint, "time": time.strftime("%Y-%m-%dT%H:%M:%S"), **values}
    folder(saved.workdir).append("eval.jsonl", json.dumps(line) + "\n")
    width = max(map(len, values))
    say(f"step {saved.step}, {'averaged' if ema else 'raw'} weights, {len(source.splits['validation'])} held-out examples")
    say("\n".join(f"  {name:<{width}}  {value:.5g}" for name, value in values.items()))


class Interrupted(Exception):
    """Whoever waits for an evaluation does so no longer."""


def held_out_step(config: Config, parts: build.Parts) -> Any:
    """The jitted (weights, buffers, batch, its number) -> metrics, for batches of as many examples as `held_out_size` says."""
    eval_step = make_eval_step(parts.graphdef, parts.objective)

    def numbered(weights: Tree, buffers: Tree, batch: Mapping[str, jax.Array], index: jax.Array) -> Metrics:
        return eval_step(weights, buffers, batch, jax.random.fold_in(stream(config.seed, "eval"), index))

    return jax.jit(numbered, out_shardings=parts.layout.replicated)


def held_out_size(config: Config, parts: build.Parts) -> int:
    return parts.layout.padded(config.batch_size)


def make_held_out(
    config: Config,
    source: DataSource,
    parts: build.Parts,
    step: Any = None,
    unwanted: Callable[[], bool] = lambda: False,
) -> Callable[[Tree, Tree], dict[str, float]]:
    """(weights, buffers) -> metrics over the validation split, with the same noise and t every time.

    step: the `held_out_step`, where there is one already
    unwanted: asked before each batch; raises Interrupted when it says so
    """
    layout, size = parts.layout, held_out_size(config, parts)
    step = step or held_out_step(config, parts)

    def held_out(weights: Tree, buffers: Tree) -> dict[str, float]:
        totals: dict[str, np.ndarray] = {}
        for index, batch in enumerate(source.epoch("validation", size, config.train.eval_num, layout.rows(size))):
            if unwanted():
                raise Interrupted
            metrics = step(weights, buffers, layout.put(batch, size), index)
            for name, value in jax.device_get(metrics).items():
                pair = np.asarray(value if isinstance(value, tuple) else (value, 1.0), np.float64)
                totals[name] = totals.get(name, np.zeros(2)) + pair
        return finalise({name: (total, weight) for name, (total, weight) in totals.items()}, parts.objective)

    return held_out


def make_evaluation(
    config: Config, source: DataSource, parts: build.Parts, **options: Any
) -> Callable[[TrainState], dict[str, float] | None]:
    """state -> held-out metrics: `eval_*` of the raw weights, `eval_ema_*` of the averaged ones; None once it is unwanted.

    options: `step` and `unwanted`, as for `make_held_out`
    """
    held_out = make_held_out(config, source, parts, **options)

    def evaluate(state: TrainState) -> dict[str, float] | None:
        try:
            raw, averaged = held_out(state.params, state.buffers), held_out(state.ema, state.buffers)
        except Interrupted:
            return None
        return {f"eval_{name}": value for name, value in raw.items()} | {f"eval_ema_{name}": value for name, value in averaged.items()}

    return evaluate
