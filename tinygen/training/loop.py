"""The loop itself: step, log, preview, evaluate, save, from one state until the last step or a signal. It never asks what it trains."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging

from tinygen import build
from tinygen.checkpoints.best import Best
from tinygen.checkpoints.saver import Saves
from tinygen.config import Config
from tinygen.data.source import DataSource
from tinygen.distributed import processes
from tinygen.errors import UserError
from tinygen.evaluation.during_training import Scored
from tinygen.objectives.metrics import finalise
from tinygen.system.runtime import StopSignal
from tinygen.train_step import TrainState
from tinygen.training.batches import calls, device_calls, due, preview_due
from tinygen.training.nonfinite import Guard, Spikes
from tinygen.workdir import manifest as rundir
from tinygen.workdir.logger import RunLogger

EVALUATION, PREVIEW, SCORES = "evaluation", "preview", "scores"  # what a run that a signal ended may owe


class Loop(NamedTuple):
    """What the loop works with; all of it is there before the first step.

    config: with no more steps a call than its longest has
    take_step: the compiled step, or call of steps
    evaluate: state -> held-out metrics; None where a signal came meanwhile
    scoring: state -> scores of samples; likewise
    after_step: called with (step, state), for those who measure the loop
    """

    config: Config
    source: DataSource
    parts: build.Parts
    take_step: Callable[[TrainState, Any], tuple[TrainState, Any]]
    evaluate: Callable[[TrainState], dict[str, float] | None]
    preview: Callable[[TrainState], Any]
    scoring: Callable[[TrainState], Scored | None]
    saves: Saves
    best: Best
    record: RunLogger
    guard: Guard
    spikes: Spikes
    manifest: dict[str, Any]
    stop: StopSignal
    after_step: Callable[[int, TrainState], None] | None


class Pending(NamedTuple):
    """What a call gave, whose numbers are still on the device.

    metrics: of each step, [K], or of the only one
    extra: of the last step, from evaluation; None where there was none
    """

    steps: range
    metrics: Any
    extra: Mapping[str, float] | None


def onward(loop: Loop, state: TrainState, start: int) -> TrainState:
    """The state after the last step, or after the one in which a signal came; it is saved then.

    Raises RollBack where the run has to go back, and UserError where it has to end: both leave the checkpoints as they are.
    """
    with device_calls(loop.config, loop.source, loop.parts, loop.guard.attempt, start, loop.record.waiting) as batches:
        return take_steps(loop, state, start, batches)


def take_steps(loop: Loop, state: TrainState, start: int, batches: Iterator[Any]) -> TrainState:
    """`onward` with its batches."""
    config, record, saves, stop = loop.config, loop.record, loop.saves, loop.stop
    train, steps = config.train, config.train.steps
    pending: Pending | None = None
    signalled = processes.Largest(loop.parts.layout.mesh)
    for now in calls(config, start):
        done, step = now[0] - 1, now[-1]
        try:
            given = next(batches)
        except (UserError, OSError) as error:  # such as a file that has gone: what was learnt before is sound
            flush(loop, pending)
            saves.settle()
            # With several processes only this one knows, and the others cannot be made to save.
            if done > saves.newest and processes.count() == 1:
                save(loop, state, done)
            rundir.note(saves.workdir, done, "stopped", reason=str(error))
            raise
        state, metrics = loop.take_step(state, given)
        stop.idle = False  # from here on there is something to save
        # The previous call's numbers are read while this one runs: no accelerator ever waits for the host.
        flush(loop, pending)
        with record.watchdog.waiting_for("the other processes"):
            number = signalled(int(stop))
        if leaving := number > 0:
            stop.number = number  # whichever process has it: all leave after the same call
        pending, owes, better = Pending(now, metrics, None), [], False
        if due(step, train.eval_every) or (train.eval_every and step == steps):
            extra = None
            if not leaving:
                with record.aside("evaluating", state):
                    extra = loop.evaluate(state)
                leaving = extra is None
            owes += [EVALUATION] if leaving else []
            pending = pending._replace(extra=extra or {})
        if due(step, config.eval.every) or (config.eval.every and step == steps):
            scored = None if leaving else score(loop, state)
            leaving = scored is None
            owes += [SCORES] if leaving else []
            if scored is not None and scored.values and not loop.guard.streak:  # in a row of left-out updates nothing is saved
                better = loop.best.add(step, scored.rank) and config.eval.best
            pending = pending._replace(extra={**(pending.extra or {}), **(scored.values if scored else {})})
        if train.preview_every and (preview_due(step, train.preview_every) or step == steps):
            owes += [PREVIEW] if leaving else []
            if not leaving:
                draw(loop, state, step)
        stop.early = leaving and (step < steps or bool(owes))
        if due(step, train.checkpoint_every) or better or leaving or step == steps:
            flush(loop, pending)
            pending = None
            # In a row of updates that were left out there is nothing new, and the run may have to go back to before it.
            if leaving or step == steps or not loop.guard.streak:
                with record.aside("saving", state):
                    save(loop, state, step, owes)
        saves.look()
        if done == start:
            jax.block_until_ready(state)
            record.restart_clock(step)
        record.advance(step)
        if loop.after_step is not None:
            loop.after_step(step, state)
        if leaving:
            break
    saves.settle()
    return state


def catch_up(loop: Loop, state: TrainState, start: int) -> None:
    """Does at the step that the run goes on from what a signal kept it from."""
    owes = loop.saves.owes(start)
    if EVALUATION in owes:
        with loop.record.aside("evaluating", state):
            extra = loop.evaluate(state)
        if extra:
            loop.record.complete(start, extra)
    if SCORES in owes and (scored := score(loop, state)) and scored.values:
        if not loop.guard.streak:
            loop.best.add(start, scored.rank)
        loop.record.complete(start, scored.values)
    if PREVIEW in owes:
        draw(loop, state, start)


def score(loop: Loop, state: TrainState) -> Scored | None:
    """None where a signal came meanwhile; without values where it failed, which ends no run (of several processes it does)."""
    try:
        with loop.record.aside("scoring samples", state):
            return loop.scoring(state)
    except (UserError, OSError) as error:
        if processes.count() > 1:
            raise
        logging.warning("no scores: %s. The run goes on", error)
        return Scored({}, 0.0)


def draw(loop: Loop, state: TrainState, step: int) -> None:
    with loop.record.aside("drawing samples", state):
        loop.record.preview(step, loop.preview(state))


def save(loop: Loop, state: TrainState, step: int, owes: list[str] | None = None) -> None:
    if error := loop.record.write_waiting():  # a checkpoint ahead of them would lose those lines for good
        loop.saves.give_up(step, error)
        return
    ready = loop.record.later.up_to_here()
    loop.saves.save(step, state, loop.manifest, streak=loop.guard.streak, owes=owes or [], ready=ready)


def flush(loop: Loop, pending: Pending | None) -> None:
    """Writes the numbers of those steps of a call that are due, and what befell the others. Raises what ends a run that may not go on."""
    if pending is None:
        return
    steps, metrics, extra = pending
    every, last, guard, record = loop.config.train.log_every, loop.config.train.steps, loop.guard, loop.record
    counts, ratios, (total, weight) = jax.device_get((metrics["skipped"], metrics["update_ratio"], metrics["loss"]))
    left_out = guard.watch(steps, np.ravel(counts)[: len(steps)].tolist(), np.ravel(ratios)[: len(steps)].tolist())
    failed = guard.spoilt or max(left_out, default=0)
    taken = steps[: steps.index(failed) + 1] if guard.spent else steps
    losses = dict(zip(steps, (np.ravel(total) / np.maximum(np.ravel(weight), 1e-12)).tolist(), strict=False))
    for step, (loss, median) in loop.spikes({step: losses[step] for step in taken if step not in left_out}).items():
        logging.warning("step %d: the loss is %.4g, where it was about %.4g: a spike", step, loss, median)
        rundir.note(loop.saves.workdir, step, "spike", loss=loss, median=median)
    due_now = {step for step in taken if step in (1, last) or due(step, every) or (extra is not None and step == steps[-1])}
    if not (due_now or left_out or guard.spent):
        return
    fetched = jax.device_get(metrics)
    lines: dict[int, dict[str, Any]] = {}
    for step in sorted(due_now | left_out.keys() | ({failed} if guard.spent else set())):
        own = jax.tree.map(lambda values, at=step: np.ravel(values)[at - steps[0]], fetched)
        lines[step] = finalise(own, loop.parts.objective)
        if step in left_out:  # JSON has no such numbers
            bad = {name: str(lines[step].get(name, "nan")) for name in ("loss", "grad_norm")}
            lines[step] = {"event": "skipped", "in_a_row": left_out[step], **bad}
        elif step == guard.spoilt:
            lines[step] = {"event": "spoilt", "update_ratio": str(lines[step]["update_ratio"])}
        lines[step] |= (extra or {}) if step == steps[-1] else {}
        lines[step] |= {"attempt": guard.attempt} if guard.attempt else {}
    record.lines(lines, steps[-1])
    if guard.spent:
        end = guard.end(failed, lines[failed])
        if isinstance(end, UserError):
            rundir.note(loop.saves.workdir, failed, "stopped", reason=str(end))
        raise end
