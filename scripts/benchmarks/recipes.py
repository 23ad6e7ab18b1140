"""The training steps of several recipes side by side, on noise of one shape with ten labels."""

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks import ours, turns
from benchmarks.machine import caution, head
from tinygen import config as schema


def measure(recipes: Sequence[str], shape: Sequence[int], batch_size: int, rounds: int) -> dict[str, Any]:
    """Seconds of each recipe's step, round by round; `speed` is each one's to the first's."""
    codec = ours.noise_codec(shape, classes=10)
    steps = [ours.training_step(schema.change(schema.load(recipe), dict(batch_size=batch_size)), codec) for recipe in recipes]
    for step in steps:
        step.run()  # the first one touches its memory
    seconds = turns.take([turns.timed(step.run) for step in steps], rounds)
    return {
        "recipes": list(recipes),
        "parameters": [step.parameters for step in steps],
        "shape": list(shape),
        "batch_size": batch_size,
        "seconds": seconds,
        "speed": [1 / turns.ratio(seconds[0], own) for own in seconds],
    }


def table(result: dict[str, Any]) -> str:
    """What a person reads."""
    width = max(map(len, result["recipes"]))
    lines = [
        head(result["machine"]),
        f"batch {result['batch_size']} of {result['shape']}; medians of {len(result['seconds'][0])} rounds",
        f"{'recipe':<{width}}  parameters    steps/s   to the first",
    ]
    rows = zip(result["recipes"], result["parameters"], result["seconds"], result["speed"], strict=True)
    lines += [f"{name:<{width}}  {size:>10,} {1 / statistics.median(own):10.3f} {speed:13.2f}x" for name, size, own, speed in rows]
    return "\n".join([*lines, *caution(result["busy_before"])])
