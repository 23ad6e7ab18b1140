"""The cost of the guards: the training step with and without them, on one batch on the device, in alternating blocks.

With them the device looks whether loss and gradient are finite and takes the update only then; the host reads the counter of the
call before, and looks for spikes. Without them the update is always taken and nothing is read.
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
    from tinygen import build
    from tinygen import train_step as state

    config = config_lib.load(recipe)
    if config.train.steps_per_call != 1:
        raise UserError("train.steps_per_call: only single steps are timed here")
    codec = build.data_source(config).codec
    guarded = taking(config, codec, block, guarded=True)
    with mock.patch.object(state.jax.lax, "cond", lambda finite, update, skip: update()):
        unguarded = taking(config, codec, block, guarded=False)
    blocks = [unguarded, guarded]
    for run in blocks:
        run()  # the first one touches its memory
    seconds = turns.take([turns.timed(run) for run in blocks], rounds)
    shares = [mine / bare - 1 for bare, mine in zip(*seconds, strict=True)]
    return {"recipe": os.path.basename(recipe), "block": block, "seconds": seconds, "overhead": statistics.median(shares), "goal": GOAL}


def taking(config: Config, codec: Any, block: int, *, guarded: bool) -> Callable[[], None]:
    """Runs a block of steps."""
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
    """The result as text."""
    without, guarded = (1000 * statistics.median(seconds) / result["block"] for seconds in result["seconds"])
    return "\n".join(
        [
            head(result["machine"]),
            f"{result['recipe']}: blocks of {result['block']} steps, medians of {len(result['seconds'][0])} rounds",
            f"without guards {without:10.3f} ms a step",
            f"with them      {guarded:10.3f} ms a step: {result['overhead']:+.1%}, the rounds' median (goal: at most {result['goal']:.0%})",
            *caution(result["busy_before"]),
        ]
    )
