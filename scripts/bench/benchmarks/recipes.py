"""Training steps or samples of several recipes side by side, on noise of one shape with ten labels."""

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks import ours, turns
from benchmarks.machine import caution, head
from tinygen import config as config_lib
from tinygen.errors import UserError


def measure(recipes: Sequence[str], shape: Sequence[int], batch_size: int, rounds: int, nfes: Sequence[int] = ()) -> dict[str, Any]:
    """Seconds of each recipe's step for each round; `speed` is relative to the first recipe.

    nfes: if given, time a batch of samples instead of a step, with each of these numbers of network evaluations
    """
    codec = ours.noise_codec(shape, classes=10)
    configs = [(recipe, config_lib.change(config_lib.load(recipe), dict(batch_size=batch_size))) for recipe in recipes]
    for recipe, config in configs if nfes else ():
        if "nfe" not in config.objective:
            raise UserError(f"{recipe}: objective {config.objective.name!r} has no number of network evaluations (nfe)")
    if nfes:
        settings = [
            (f"{recipe}, nfe {nfe}", config_lib.change(config, dict(objective=dict(nfe=nfe)))) for recipe, config in configs for nfe in nfes
        ]
        works = [(name, ours.sampler(config, codec)) for name, config in settings]
    else:
        works = [(recipe, ours.training_step(config, codec)) for recipe, config in configs]
    for _, work in works:
        work.run()  # warm up
    seconds = turns.take([turns.timed(work.run) for _, work in works], rounds)
    return {
        "recipes": [name for name, _ in works],
        "what": "images" if nfes else "steps",
        "parameters": [work.parameters for _, work in works],
        "shape": list(shape),
        "batch_size": batch_size,
        "seconds": seconds,
        "speed": [1 / turns.ratio(seconds[0], own) for own in seconds],
    }


def table(result: dict[str, Any]) -> str:
    width, what = max(map(len, result["recipes"])), result["what"]
    of_one = result["batch_size"] if what == "images" else 1
    lines = [
        head(result["machine"]),
        f"batch {result['batch_size']} of {result['shape']}; medians of {len(result['seconds'][0])} rounds",
        f"{'recipe':<{width}}  parameters {what + '/s':>10}vs the first",
    ]
    rows = zip(result["recipes"], result["parameters"], result["seconds"], result["speed"], strict=True)
    lines += [f"{name:<{width}}  {size:>10,} {of_one / statistics.median(own):10.3f} {speed:13.2f}x" for name, size, own, speed in rows]
    return "\n".join([*lines, *caution(result["busy_before"])])
