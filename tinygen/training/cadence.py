"""After which steps a run does more than step: evaluate, score samples, draw a preview, save."""

from collections.abc import Callable

from tinygen.config import Config

EVALUATION, SCORES, PREVIEW, CHECKPOINT = "evaluation", "scores", "preview", "checkpoint"


def cadences(config: Config) -> dict[str, Callable[[int], bool]]:
    """{name: step -> whether that work follows the step}, without the work that the run never does. All of it follows the last step."""
    train = config.train
    every = {EVALUATION: train.eval_every, SCORES: config.eval.every, PREVIEW: train.preview_every, CHECKPOINT: train.checkpoint_every}
    regular = {name: preview_due if name == PREVIEW else due for name in every}

    def cadence(name: str, last: int = train.steps) -> Callable[[int], bool]:
        return lambda step: step == last or regular[name](step, every[name])

    return {name: cadence(name) for name in every if every[name] or name == CHECKPOINT}


def due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def preview_due(step: int, every: int) -> bool:
    """Often at first, when most changes: 1, 2, 5 x 10^k; then every `every` steps."""
    return due(step, every) or (step < every and str(step).rstrip("0") in ("1", "2", "5"))
