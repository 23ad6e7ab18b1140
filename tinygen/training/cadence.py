"""The steps after which a run evaluates, scores samples, draws a preview or saves a checkpoint."""

from collections.abc import Callable

from tinygen.config import Config

EVALUATION, SCORES, PREVIEW, CHECKPOINT = "evaluation", "scores", "preview", "checkpoint"


def cadences(config: Config) -> dict[str, Callable[[int], bool]]:
    """{name: step -> whether that work is due after the step}, for the work that is enabled. All of it is due after the last step."""
    train = config.train
    every = {EVALUATION: train.eval_every, SCORES: config.eval.every, PREVIEW: train.preview_every, CHECKPOINT: train.checkpoint_every}
    regular = {name: preview_due if name == PREVIEW else due for name in every}

    def cadence(name: str, last: int = train.steps) -> Callable[[int], bool]:
        return lambda step: step == last or regular[name](step, every[name])

    return {name: cadence(name) for name in every if every[name] or name == CHECKPOINT}


def due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def preview_due(step: int, every: int) -> bool:
    """Steps 1, 2 and 5 x 10^k before the first multiple of `every`, while samples change fast; then the multiples."""
    return due(step, every) or (step < every and str(step).rstrip("0") in ("1", "2", "5"))
