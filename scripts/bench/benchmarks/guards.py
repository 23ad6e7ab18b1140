"""Overhead of the guards: alternating blocks of training steps with and without them, on one batch on the device.

With them, the device applies an update only if loss and gradient are finite; the host reads the counter of the previous
call and looks for spikes. Without them, every update is applied and nothing is read.
"""

import os
import statistics
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

from benchmarks import ours, turns
from benchmarks.machine import caution, head
from tinygen import config as config_lib
from tinygen.config import Config
from tinygen.errors import UserError

GOAL = 0.01


def measure(recipe: str, block: int, rounds: int) -> dict[str, Any]:
    """Seconds per block with and without the guards, for each round."""
    from tinygen import build, train_step

    config = config_lib.load(recipe)
    if config.train.steps_per_call != 1:
        raise UserError("train.steps_per_call must be 1 here, since single steps are timed")
    codec = build.data_source(config).codec
    guarded = make_block(config, codec, block, guarded=True)
    with mock.patch.object(train_step.jax.lax, "cond", lambda finite, update, skip: update()):
        unguarded = make_block(config, codec, block, guarded=False)
    blocks = [unguarded, guarded]
    for run in blocks:
        run()  # warm up
    seconds = turns.take([turns.timed(run) for run in blocks], rounds)
    overhead = statistics.median(slower / faster - 1 for faster, slower in zip(*seconds, strict=True))
    return {"recipe": os.path.basename(recipe), "block": block, "seconds": seconds, "overhead": overhead, "goal": GOAL}


def make_block(config: Config, codec: Any, block: int, *, guarded: bool) -> Callable[[], None]:
    """Takes `block` steps."""
    import jax

    from tinygen.training.nonfinite import Guard, Spikes

    step = ours.step_of(config, codec)
    with jax.set_mesh(step.parts.layout.mesh):
        take_step = step.jitted.lower(step.abstract, step.batch).compile()
        state = step.create()
    batch = step.parts.layout.share(ours.noise(codec, config.batch_size))
    guard, spikes = Guard("skip", 10, 3, skipped=0, streak=0, attempt=0), Spikes(10.0)

    def watch(number: int, metrics: Any) -> None:
        skipped, ratio, (total, weight) = jax.device_get((metrics["skipped"], metrics["update_ratio"], metrics["loss"]))
        guard.watch([number], [int(np.ravel(skipped)[0])], [float(np.ravel(ratio)[0])])
        spikes({number: float(total) / float(weight)})

    def run() -> None:
        nonlocal state
        before = None
        for number in range(block):
            state, metrics = take_step(state, batch)
            if guarded and before is not None:
                watch(number, before)
            before = metrics
        jax.block_until_ready(state)

    return run


def table(result: dict[str, Any]) -> str:
    without, guarded = (1000 * statistics.median(seconds) / result["block"] for seconds in result["seconds"])
    overhead = f"{result['overhead']:+.1%}, median of the rounds (goal: at most {result['goal']:.0%})"
    return "\n".join(
        [
            head(result["machine"]),
            f"{result['recipe']}: blocks of {result['block']} steps, medians of {len(result['seconds'][0])} rounds",
            f"without guards {without:10.3f} ms per step",
            f"with guards    {guarded:10.3f} ms per step: {overhead}",
            *caution(result["busy_before"]),
        ]
    )
