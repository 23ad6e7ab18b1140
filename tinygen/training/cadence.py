"""When a run evaluates, scores samples, draws a preview or saves a checkpoint, and how long it will take."""

from collections.abc import Callable, Mapping

from tinygen.config import Config
from tinygen.errors import duration

EVALUATION, SCORES, PREVIEW, CHECKPOINT = "evaluation", "scores", "preview", "checkpoint"


def cadences(config: Config) -> dict[str, Callable[[int], bool]]:
    """{name: step -> whether that work is due after the step}, for the work that is enabled. All of it is due after the last step."""
    train, last = config.train, config.train.steps
    rules = {
        EVALUATION: (due, train.eval_every),
        SCORES: (due, config.eval.every),
        PREVIEW: (preview_due, train.preview_every),
        CHECKPOINT: (due, train.checkpoint_every),
    }

    def cadence(rule: Callable[[int, int], bool], every: int) -> Callable[[int], bool]:
        return lambda step: step == last or rule(step, every)

    return {name: cadence(*rule) for name, rule in rules.items() if rule[1] or name == CHECKPOINT}


def due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def preview_due(step: int, every: int) -> bool:
    """Steps 1, 2 and 5 x 10^k before the first multiple of `every`, while samples change fast; then the multiples."""
    return due(step, every) or (step < every and str(step).rstrip("0") in ("1", "2", "5"))


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
    return f"steps take about {step:.3g} s, the run's {len(steps):,} about {duration(whole)}, {said} included"
