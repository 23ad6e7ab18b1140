"""The work between steps and when it is due: evaluation, scores of samples, previews and checkpoints."""

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from tinygen import build
from tinygen.config import Config
from tinygen.data.source import DataSource
from tinygen.evaluation.during_training import make_scoring
from tinygen.media.preview import View
from tinygen.sampling.preview import make_preview, preview_size, preview_step
from tinygen.train_step import TrainState
from tinygen.training.held_out import Interrupted, held_out_size, held_out_step, make_held_out
from tinygen.training.program import held_out_shapes

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of periodic work.

    values: metrics for the step's line of metrics.jsonl
    rank: the first score of the averaged weights, signed so that less is better; None if nothing was scored
    media: pictures, texts or curves to log
    """

    values: Mapping[str, float] = dataclasses.field(default_factory=dict)
    rank: float | None = None
    media: Mapping[str, View] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Periodic:
    """One kind of periodic work.

    name: under which a checkpoint lists it as pending
    activity: its name in the progress bar and the watchdog
    due: step -> whether it is due after that step
    run: state -> Outcome; None if a signal interrupted it
    measures: whether it yields metrics, so that its step gets a line in metrics.jsonl
    optional: whether the run continues if it fails
    """

    name: str
    activity: str
    due: Callable[[int], bool]
    run: Callable[[TrainState], Outcome | None]
    measures: bool = True
    optional: bool = False


def programs(config: Config, parts: build.Parts, state: TrainState) -> dict[str, tuple[Any, Any, Any]]:
    """{name of enabled work: (its jitted function, its first arguments: parts of the state, the shapes of its other arguments)}."""
    found = {}
    if config.train.eval_every:
        batch = held_out_shapes(parts, held_out_size(config, parts))
        found[EVALUATION] = held_out_step(config, parts), (state.ema, state.buffers), (batch, 0)
    if config.train.preview_every:
        batch = held_out_shapes(parts, preview_size(config, parts))
        found[PREVIEW] = preview_step(config, parts), (state.params, state.ema, state.buffers), (batch,)
    return found


def make_periodic(
    config: Config,
    source: DataSource,
    parts: build.Parts,
    *,
    unwanted: Callable[[], bool] = lambda: False,
    few: int = 0,
    jitted: Mapping[str, Any] = MappingProxyType({}),
) -> list[Periodic]:
    """The run's periodic work, in the order in which it is done after a step.

    unwanted: polled during evaluation and scoring; True interrupts them
    few: score at most this many samples; 0 = as in config.eval
    jitted: the functions of `programs` by name, if already made
    """
    due, found = cadences(config), []
    if EVALUATION in due:
        held_out = make_held_out(config, source, parts, jitted.get(EVALUATION), unwanted)

        def evaluation(state: TrainState) -> Outcome | None:
            try:
                found = {"eval_": held_out(state.params, state.buffers), "eval_ema_": held_out(state.ema, state.buffers)}
            except Interrupted:
                return None
            return Outcome(values={f"{prefix}{name}": value for prefix, each in found.items() for name, value in each.items()})

        found.append(Periodic(name=EVALUATION, activity="evaluating", due=due[EVALUATION], run=evaluation))
    if SCORES in due:
        scoring = make_scoring(config, source, parts, unwanted, few=few)

        def scores(state: TrainState) -> Outcome | None:
            scored = scoring(state)
            return None if scored is None else Outcome(values=scored.values, rank=scored.rank)

        found.append(Periodic(name=SCORES, activity="scoring samples", due=due[SCORES], run=scores, optional=True))
    if PREVIEW in due:
        preview = make_preview(config, source, parts, jitted.get(PREVIEW))

        def shown(state: TrainState) -> Outcome:
            return Outcome(media=preview(state))

        found.append(Periodic(name=PREVIEW, activity="drawing samples", due=due[PREVIEW], run=shown, measures=False))
    return found
