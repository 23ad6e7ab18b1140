"""How long a run will take, from what its parts have taken once."""

from typing import NamedTuple

from tinygen.config import Config
from tinygen.training.batches import due, preview_due


class Times(NamedTuple):
    """Seconds: of a step, of a whole evaluation, of a preview, of all scores."""

    step: float
    evaluation: float
    preview: float
    scores: float


def forecast(config: Config, start: int, times: Times) -> str:
    """How long the steps from `start` on will take, and all of them with what is done between them."""
    keys = config.train
    steps = range(start + 1, keys.steps + 1)
    evaluations = sum(due(step, keys.eval_every) for step in steps) if keys.eval_every else 0
    previews = sum(preview_due(step, keys.preview_every) for step in steps) if keys.preview_every else 0
    scores = sum(due(step, config.eval.every) for step in steps)
    whole = len(steps) * times.step + evaluations * times.evaluation + previews * times.preview + scores * times.scores
    asides = f"{evaluations} evaluations and {previews} previews" + (f" and {scores} times scores" if scores else "")
    run = f"the run's {len(steps):,} about {span(whole)}, {asides} included"
    return f"steps take about {times.step:.3g} s, {run}"


def span(seconds: float) -> str:
    """ "7 s", "12 min", "3.4 h"."""
    if seconds < 100:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
