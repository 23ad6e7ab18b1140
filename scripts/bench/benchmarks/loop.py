"""Overhead of the training loop over the step that it runs.

Blocks of the real loop (tinygen/train.py with data, logging at the recipe's interval and the progress bar, but no
previews, evaluations or saves) alternate with blocks of the bare jitted step on a batch that stays on the device. Each
block of the loop is compared with the mean of the bare blocks before and after it, which cancels drifts of the
machine's speed. Every block ends by waiting for the device.
"""

import itertools
import os
import statistics
import sys
import tempfile
import time
from typing import Any

from benchmarks.machine import caution, head

GOAL = 0.02


def measure(recipe: str, steps: int) -> dict[str, Any]:
    """Milliseconds per step of the bare step and of the loop for each block, and the overheads."""
    import jax
    from etils import epath

    from tinygen import build, train
    from tinygen import config as config_lib
    from tinygen.checkpoints import store
    from tinygen.system import runtime
    from tinygen.training import batches as feed
    from tinygen.training import program

    config = config_lib.load(recipe)
    block = config.train.log_every
    rounds = max(1, steps // block)
    # One block to warm up, `rounds` to time, and one more step for the final save.
    quiet = dict(steps=(rounds + 1) * block + 1, steps_per_call=1, preview_every=0, eval_every=0, checkpoint_every=0)
    config = config_lib.change(config, dict(train=quiet, optim=dict(decay_steps=config.optim.decay_steps or config.train.steps)))
    source = build.data_source(config)
    parts = build.parts(config, source.codec)
    with feed.device_calls(config, source, parts, 0, 0) as batches:
        batch = next(batches)
    bare: list[float] = []
    loop: list[float] = []
    own: Any = None  # state of the bare step
    take_step: Any = None
    began = 0.0

    def bare_block() -> float:
        nonlocal own
        start = time.perf_counter()
        for _ in range(block):
            own, _ = take_step(own, batch)
        jax.block_until_ready(own)
        return time.perf_counter() - start

    def take_turns(step: int, state: Any) -> None:
        nonlocal own, take_step, began
        if step % block:
            return
        jax.block_until_ready(state)
        if began:
            loop.append(time.perf_counter() - began)
        else:
            own = jax.tree.map(lambda leaf: leaf.copy(), state)
            take_step = program.make_program(config, parts).step
            bare_block()  # compiles
        bare.append(bare_block())
        began = time.perf_counter()

    with tempfile.TemporaryDirectory() as folder, runtime.stop_on_signals() as stop:
        state = train.run(config, epath.Path(folder), source, parts, stop, after_step=take_turns)
    if stop:
        sys.exit(stop.status)
    around = [(before + after) / 2 for before, after in itertools.pairwise(bare)]
    overheads = [looped / stepped - 1 for looped, stepped in zip(loop, around, strict=True)]
    return {
        "recipe": os.path.basename(recipe),
        "batch_size": config.batch_size,
        "parameters": store.count(state.params),
        "block": block,
        "bare_ms": [1000 * seconds / block for seconds in around],
        "loop_ms": [1000 * seconds / block for seconds in loop],
        "overheads": overheads,
        "overhead": statistics.median(overheads),
        "goal": GOAL,
    }


def table(result: dict[str, Any]) -> str:
    lines = [
        head(result["machine"]),
        f"{result['recipe']}: batch {result['batch_size']}, {result['parameters']:,} parameters; blocks of {result['block']} steps",
        "round    bare ms    loop ms   overhead",
    ]
    rows = zip(result["bare_ms"], result["loop_ms"], result["overheads"], strict=True)
    lines += [f"{number:5d} {bare:10.2f} {loop:10.2f} {overhead:+9.1%}" for number, (bare, loop, overhead) in enumerate(rows, 1)]
    bare, loop = statistics.median(result["bare_ms"]), statistics.median(result["loop_ms"])
    lines.append(f"median{bare:10.2f} {loop:10.2f} {result['overhead']:+9.1%}   (goal: at most {result['goal']:.0%})")
    return "\n".join([*lines, *caution(result["busy_before"])])
