"""Several steps per call (config.train.steps_per_call) against one, data included, in alternating blocks of steps."""

import contextlib
import os
import statistics
from collections.abc import Callable
from typing import Any

from benchmarks import turns
from benchmarks.machine import caution, head
from tinygen import config as config_lib
from tinygen.config import Config


def measure(recipe: str, calls: int, block: int, rounds: int) -> dict[str, Any]:
    """Seconds per block with one step per call and with `calls`, for each round."""
    from tinygen import build

    config = config_lib.load(recipe)
    source = build.data_source(config)
    with contextlib.ExitStack() as stack:
        blocks = [make_block(each, config, source, block, stack) for each in (1, calls)]
        for run in blocks:
            run()  # warm up
        seconds = turns.take([turns.timed(run) for run in blocks], rounds)
    return {
        "recipe": os.path.basename(recipe),
        "calls": calls,
        "block": block,
        "seconds": seconds,
        "speed": turns.ratio(*reversed(seconds)),
    }


def make_block(calls: int, config: Config, source: Any, block: int, stack: contextlib.ExitStack) -> Callable[[], None]:
    """Takes at least `block` steps, `calls` per call; the metrics of each call are read while the next one runs.

    stack: closes the batches
    """
    import jax

    from tinygen import build
    from tinygen.training import batches as feed
    from tinygen.training.program import make_program

    quiet = dict(steps=10**9, steps_per_call=calls, eval_every=0, preview_every=0, checkpoint_every=0)
    config = config_lib.change(config, dict(train=quiet, optim=dict(decay_steps=config.optim.decay_steps or config.train.steps)))
    parts = build.parts(config, source.codec)
    program = make_program(config, parts)
    with jax.set_mesh(parts.layout.mesh):
        call, state = program.compiled(), program.initialise()
    spans, batches = feed.calls(config, 0), stack.enter_context(feed.device_calls(config, source, parts, 0, 0))

    def run() -> None:
        nonlocal state
        done, previous = 0, None
        while done < block:
            done += len(next(spans))
            state, metrics = call(state, next(batches))
            jax.device_get(previous)
            previous = metrics
        jax.block_until_ready(state)

    return run


def table(result: dict[str, Any]) -> str:
    one, several = (1000 * statistics.median(seconds) / result["block"] for seconds in result["seconds"])
    return "\n".join(
        [
            head(result["machine"]),
            f"{result['recipe']}: blocks of {result['block']} steps, medians of {len(result['seconds'][0])} rounds",
            f"1 step per call   {one:10.3f} ms per step",
            f"{result['calls']:<2d} steps per call {several:10.3f} ms per step: {result['speed']:.2f}x as fast",
            *caution(result["busy_before"]),
        ]
    )
