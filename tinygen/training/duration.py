"""Forecasts a run's duration from timings of its parts."""

from collections.abc import Mapping

from tinygen.config import Config
from tinygen.training.cadence import EVALUATION, PREVIEW, SCORES, cadences


def forecast(config: Config, start: int, step: float, asides: Mapping[str, float]) -> str:
    """How long a step takes, and all steps after `start` with the periodic work between them.

    step: seconds per step
    asides: {name of periodic work: seconds per execution}
    """
    steps, due = range(start + 1, config.train.steps + 1), cadences(config)
    times = {name: sum(map(due[name], steps)) if name in due else 0 for name in (EVALUATION, PREVIEW, SCORES)}
    whole = len(steps) * step + sum(times[name] * asides.get(name, 0.0) for name in times)
    said = f"{times[EVALUATION]} evaluations and {times[PREVIEW]} previews"
    said += f" and {times[SCORES]} times scores" if times[SCORES] else ""
    return f"steps take about {step:.3g} s, the run's {len(steps):,} about {span(whole)}, {said} included"


def span(seconds: float) -> str:
    """ "7 s", "12 min", "3.4 h"."""
    if seconds < 100:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
