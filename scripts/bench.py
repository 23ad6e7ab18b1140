"""What the training loop costs beside the step that it runs, and how fast the steps of two recipes are side by side.

    python scripts/bench.py loop [--config=configs/dit_digits.py] [--steps=300] [--json=FILE]
    python scripts/bench.py steps --configs A.py:wide A.py:deep --shape=32,32,3 --batch_size=8 [--rounds=6] [--json=FILE]

`steps`: the jitted training steps of the recipes take turns, one step each, in an order that turns round every time, on noise
of the given shape with ten labels; each is compared with the first recipe's in the same round.

`loop`: blocks of the real loop (tinygen/train.py: data, logging at the recipe's cadence, progress bar; previews, evaluations and
saves off) take turns with blocks of the bare jitted step on one batch that stays on the device. Each block of the loop is
compared with the mean of the bare blocks before and after it, so that a machine that slows down or speeds up does not
count. Every block ends with a wait for the device. Goal: an overhead of at most 3 %.

A busy machine gives false numbers: the script measures first whether it is idle, and otherwise ends with status 2.
"""

import argparse
import functools
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
BUSY = 0.1  # share of the processors' time that others may use
GOAL = 0.03


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measures the training loop.")
    what = parser.add_subparsers(dest="what", required=True)
    loop = what.add_parser("loop", help="the loop's overhead over the bare jitted step")
    loop.add_argument("--config", default=str(REPOSITORY / "configs" / "dit_digits.py"), metavar="PATH[:VARIANT]", help="recipe")
    loop.add_argument("--steps", type=int, default=300, metavar="N", help="steps of the loop to time, in blocks of the recipe's log_every")
    loop.add_argument("--json", type=Path, metavar="FILE", help="also write every number here")
    loop.add_argument("--force", action="store_true", help="measure although the machine is busy")
    steps = what.add_parser("steps", help="the training steps of several recipes, side by side")
    steps.add_argument(
        "--configs", nargs="+", required=True, metavar="PATH[:VARIANT]", help="recipes; the first is what others are compared with"
    )
    steps.add_argument("--shape", default="32,32,3", metavar="H,W,C", help="of an example")
    steps.add_argument("--batch_size", type=int, default=8, metavar="B")
    steps.add_argument("--rounds", type=int, default=6, metavar="N", help="steps of each recipe to time")
    steps.add_argument("--json", type=Path, metavar="FILE", help="also write every number here")
    steps.add_argument("--force", action="store_true", help="measure although the machine is busy")
    arguments = parser.parse_args(argv)

    busy = busy_share()
    if busy > BUSY and not arguments.force:
        print(f"bench: others use {busy:.0%} of this machine's processors: numbers would be false (--force to measure)", file=sys.stderr)
        return 2
    if arguments.what == "loop":
        result = {**measure_loop(arguments.config, arguments.steps), "busy_before": round(busy, 3)}
        print(table(result))
    else:
        shape = tuple(map(int, arguments.shape.split(",")))
        result = {**measure_steps(arguments.configs, shape, arguments.batch_size, arguments.rounds), "busy_before": round(busy, 3)}
        print(steps_table(result))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def busy_share(seconds: float = 2.0) -> float:
    """The share of all processors' time in use, over the next seconds; by the load of the last minute where Linux's counters are not."""
    if not Path("/proc/stat").exists():
        return os.getloadavg()[0] / (os.cpu_count() or 1)

    def ticks() -> tuple[int, int]:
        counts = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(counts), counts[3] + counts[4]  # all; idle and waiting for a disk

    all_before, idle_before = ticks()
    time.sleep(seconds)
    all_after, idle_after = ticks()
    return 1 - (idle_after - idle_before) / max(1, all_after - all_before)


def measure_loop(recipe: str, steps: int) -> dict[str, Any]:
    """Milliseconds a step of the bare step and of the loop, block by block, and the overheads."""
    from tinygen import runtime

    runtime.keep_memory()  # as the command line does, before there are threads
    import jax
    from etils import epath

    from tinygen import build, checkpoint, train
    from tinygen import config as schema
    from tinygen.state import graph_of

    config = schema.load(recipe)
    block = config.train.log_every
    rounds = max(1, steps // block)
    # A block to warm up, `rounds` to time, and one step more for the save that ends every run.
    quiet = dict(steps=(rounds + 1) * block + 1, preview_every=0, eval_every=0, checkpoint_every=0)
    config = schema.change(config, dict(train=quiet, optim=dict(decay_steps=config.optim.decay_steps or config.train.steps)))
    source = build.data_source(config)
    parts = build.parts(config, source.codec)
    batch = next(train.device_batches(config, source, parts, 0, 0))
    bare: list[float] = []
    loop: list[float] = []
    own: Any = None  # the bare step's state
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
            shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
            take_step = build.train_step(config, parts, graph_of(parts.create), shardings)
            bare_block()  # compiles
        bare.append(bare_block())
        began = time.perf_counter()

    with tempfile.TemporaryDirectory() as folder, runtime.stop_on_signals() as stop:
        state = train.run(config, epath.Path(folder), source, parts, stop, after_step=take_turns)
    if stop:
        sys.exit(stop.status)
    around = [(before + after) / 2 for before, after in itertools.pairwise(bare)]
    overheads = [mine / theirs - 1 for mine, theirs in zip(loop, around, strict=True)]
    device = jax.devices()[0]
    return {
        "recipe": os.path.basename(recipe),
        "batch_size": config.batch_size,
        "parameters": checkpoint.count(state.params),
        "devices": f"{jax.device_count()} x {device.device_kind}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "jax": jax.__version__,
        "block": block,
        "bare_ms": [1000 * seconds / block for seconds in around],
        "loop_ms": [1000 * seconds / block for seconds in loop],
        "overheads": overheads,
        "overhead": statistics.median(overheads),
        "goal": GOAL,
    }


def measure_steps(recipes: list[str], shape: tuple[int, ...], batch_size: int, rounds: int) -> dict[str, Any]:
    """Seconds of each recipe's step, round by round."""
    from tinygen import runtime

    runtime.keep_memory()
    import jax
    import numpy as np

    from tinygen import build, checkpoint
    from tinygen import config as schema
    from tinygen.data.codec import Codec, Field
    from tinygen.state import graph_of, init_state

    spec = {"x": Field(shape=shape, dtype="float32", low=-1, high=1), "label": Field(shape=(), dtype="int32", low=0, high=9)}
    codec, noise = Codec(kind="image", spec=spec, labels=tuple("0123456789")), np.random.default_rng(0)
    x = noise.uniform(-1, 1, (batch_size, *shape)).astype(np.float32)
    label = noise.integers(0, 10, batch_size).astype(np.int32)

    def prepared(recipe: str) -> tuple[Callable[[Any], Any], Any, int]:
        """(state -> the next one, a state, its parameters), compiled and warm."""
        config = schema.change(schema.load(recipe), dict(batch_size=batch_size))
        parts = build.parts(config, codec)
        init = functools.partial(init_state, parts.create, build.optimizer(config)[0], config.seed)
        shardings = parts.layout.shardings(jax.eval_shape(init))
        take_step = build.train_step(config, parts, graph_of(parts.create), shardings)
        batch = parts.layout.share({"x": x, "label": label})

        def advance(state: Any) -> Any:
            with jax.set_mesh(parts.layout.mesh):
                return jax.block_until_ready(take_step(state, batch)[0])

        state = advance(jax.jit(init, out_shardings=shardings)())
        return advance, state, checkpoint.count(state.params)

    steps, states, sizes = map(list, zip(*map(prepared, recipes), strict=True))
    seconds: list[list[float]] = [[] for _ in recipes]
    for number in range(rounds):
        order = list(range(len(recipes)))
        for index in order if number % 2 == 0 else reversed(order):
            start = time.perf_counter()
            states[index] = steps[index](states[index])
            seconds[index].append(time.perf_counter() - start)
    return {
        "recipes": recipes,
        "parameters": sizes,
        "shape": shape,
        "batch_size": batch_size,
        "devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "jax": jax.__version__,
        "seconds": seconds,
        "speed": [statistics.median(a / b for a, b in zip(seconds[0], own, strict=True)) for own in seconds],
    }


def steps_table(result: dict[str, Any]) -> str:
    """What a person reads."""
    width = max(map(len, result["recipes"]))
    lines = [
        f"batch {result['batch_size']} of {result['shape']}, {result['devices']}, JAX {result['jax']}",
        f"{'recipe':<{width}}  parameters    steps/s   to the first   (medians of {len(result['seconds'][0])} rounds)",
    ]
    rows = zip(result["recipes"], result["parameters"], result["seconds"], result["speed"], strict=True)
    lines += [f"{name:<{width}}  {size:>10,} {1 / statistics.median(own):10.3f} {speed:13.2f}x" for name, size, own, speed in rows]
    if result["busy_before"] > BUSY:
        lines.append(f"FALSE NUMBERS: others used {result['busy_before']:.0%} of the processors before the run.")
    return "\n".join(lines)


def table(result: dict[str, Any]) -> str:
    """What a person reads."""
    lines = [
        f"{result['recipe']}: batch {result['batch_size']}, {result['parameters']:,} parameters, "
        f"{result['devices']} on {result['cores']} cores, JAX {result['jax']}; blocks of {result['block']} steps",
        "round    bare ms    loop ms   overhead",
    ]
    rows = zip(result["bare_ms"], result["loop_ms"], result["overheads"], strict=True)
    lines += [f"{number:5d} {bare:10.2f} {loop:10.2f} {overhead:+9.1%}" for number, (bare, loop, overhead) in enumerate(rows, 1)]
    bare, loop = statistics.median(result["bare_ms"]), statistics.median(result["loop_ms"])
    lines.append(f"median{bare:10.2f} {loop:10.2f} {result['overhead']:+9.1%}   (goal: at most {result['goal']:.0%})")
    if result["busy_before"] > BUSY:
        lines.append(f"FALSE NUMBERS: others used {result['busy_before']:.0%} of the processors before the run.")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
