"""The training loop: steps and the work between them, until the last step or a signal. Independent of model and objective."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging

from tinygen.checkpoints.best import Best
from tinygen.distributed import processes
from tinygen.errors import UserError
from tinygen.system.runtime import StopSignal
from tinygen.train_step import TrainState
from tinygen.training.batches import calls, device_calls
from tinygen.training.nonfinite import RollBack
from tinygen.training.periodic import CHECKPOINT, Outcome, Periodic, cadences
from tinygen.training.setup import Run, state_at
from tinygen.training.step_log import StepLog, Taken
from tinygen.workdir import manifest


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loop:
    """Everything the loop needs, made before the first step.

    take_step: the compiled step, or call of several steps
    periodic: the work between steps, in order
    after_step: called with (step, state); a hook for benchmarks
    """

    run: Run
    take_step: Callable[[TrainState, Any], tuple[TrainState, Any]]
    periodic: Sequence[Periodic]
    best: Best
    log: StepLog
    stop: StopSignal
    after_step: Callable[[int, TrainState], None] = lambda step, state: None


def train_from(loop: Loop, state: TrainState, start: int) -> tuple[TrainState, int]:
    """Runs `take_steps`, rolling back as often as needed. Returns (final state, first step of the last attempt)."""
    while True:
        try:
            return take_steps(loop, state, start), start
        except RollBack as error:
            since = error.step  # keep no reference to the error: its traceback holds a state
        state, start = roll_back(loop, since)


def take_steps(loop: Loop, state: TrainState, start: int) -> TrainState:
    """The state after the last step, or after the step in which a signal came; it is saved in both cases.

    Raises RollBack if the run has to roll back and UserError if it has to end, leaving the checkpoints as they are.
    """
    run, log, config, record = loop.run, loop.log, loop.run.fed, loop.log.record
    checkpoint_due, last = cadences(config)[CHECKPOINT], config.train.steps
    signalled, taken = processes.Largest(run.parts.layout.mesh), None
    with device_calls(config, run.source, run.parts, log.guard.attempt, start, record.waiting) as batches:
        for steps in calls(config, start):
            done, step = steps[0] - 1, steps[-1]
            batch = next_batch(loop, batches, state, taken, done)
            state, metrics = loop.take_step(state, batch)
            loop.stop.idle = False  # from now on there is something to save
            log.write(taken)  # while this call runs, so the accelerator never waits for the host
            leaving = asked_to_leave(loop, signalled)
            extra, pending, better = between_steps(loop, state, step, leaving)
            leaving = leaving or bool(pending)
            taken = Taken(steps, metrics, extra)
            loop.stop.early = leaving and (step < last or bool(pending))
            if leaving or better or checkpoint_due(step):
                log.write(taken)
                taken = None
                # Consecutive skips change nothing, and the run may have to roll back to before them.
                if leaving or step == last or not log.guard.streak:
                    with record.aside("saving", state):
                        save(loop, state, step, pending)
            run.saves.look()
            if done == start:
                jax.block_until_ready(state)
                record.restart_clock(step)
            record.advance(step)
            loop.after_step(step, state)
            if leaving:
                break
        run.saves.settle()
    return state


def next_batch(loop: Loop, batches: Iterator[Any], state: TrainState, taken: Taken | None, done: int) -> Any:
    """The next batch. If it cannot be read, say because a file is gone, saves the state after step `done` and raises."""
    try:
        return next(batches)
    except (UserError, OSError) as error:
        loop.log.write(taken)
        saves = loop.run.saves
        saves.settle()
        # With several processes only this one knows of the error, and a save needs all.
        if done > saves.newest and processes.count() == 1:
            save(loop, state, done)
        manifest.note(saves.workdir, done, "stopped", reason=str(error))
        raise


def asked_to_leave(loop: Loop, signalled: Callable[[int], int]) -> bool:
    """Whether any process has received a signal: all leave after the same call."""
    with loop.log.record.watchdog.waiting_for("the other processes"):
        number = signalled(loop.stop.number)
    if number > 0:
        loop.stop.number = number
    return number > 0


class Between(NamedTuple):
    """extra: measurements for the step's line; None if none were due
    pending: names of the work that a signal interrupted or prevented
    better: whether the state scored best so far and is to be saved
    """

    extra: Mapping[str, float] | None
    pending: Sequence[str]
    better: bool


def between_steps(loop: Loop, state: TrainState, step: int, leaving: bool) -> Between:
    """Does the work that is due after a step."""
    extra: dict[str, float] | None = None
    pending: list[str] = []
    better = False
    for work in loop.periodic:
        if work.due(step):
            outcome, best = (None, False) if leaving or pending else perform(loop, work, state, step)
            pending += [] if outcome else [work.name]
            better |= best and loop.run.config.eval.best
            if work.measures:
                extra = {**(extra or {}), **(outcome.values if outcome else {})}
    return Between(extra, pending, better)


def catch_up(loop: Loop, state: TrainState, start: int) -> bool:
    """Does the work that is pending in the checkpoint from which the run resumes. Returns whether there was any."""
    pending = loop.run.saves.pending(start) if start else []
    for work in loop.periodic:
        outcome, _ = perform(loop, work, state, start) if work.name in pending else (None, False)
        if outcome and outcome.values:
            loop.log.record.complete(start, outcome.values)
    return bool(pending)


def perform(loop: Loop, work: Periodic, state: TrainState, step: int) -> tuple[Outcome | None, bool]:
    """Does the work, logs its previews and ranks a scored state.

    Returns (the outcome, None if a signal interrupted it; whether the state is the best so far).
    """
    log = loop.log
    try:
        with log.record.aside(work.activity, state):
            outcome = work.run(state)
            if outcome and outcome.media:
                log.record.preview(step, outcome.media)
    except (UserError, OSError) as error:
        if not work.optional or processes.count() > 1:
            raise
        logging.warning("no %s: %s. The run continues", work.name, error)
        return Outcome(), False
    if outcome is None or outcome.rank is None or log.guard.streak:  # nothing is saved during consecutive skips
        return outcome, False
    return outcome, loop.best.add(step, outcome.rank)


def save(loop: Loop, state: TrainState, step: int, pending: Sequence[str] = ()) -> None:
    saves, record = loop.run.saves, loop.log.record
    if error := record.journal.write():  # a checkpoint beyond unwritten lines would lose them for good
        saves.give_up(step, error)
        return
    saves.save(step, state, streak=loop.log.guard.streak, pending=pending, ready=record.later.up_to_here())


def roll_back(loop: Loop, since: int) -> tuple[TrainState, int]:
    """(state of the newest intact checkpoint or the initial state, its step), from which the next attempt starts."""
    run, guard, record = loop.run, loop.log.guard, loop.log.record
    start, failed = run.saves.back(), guard.attempt
    state, _ = state_at(run, start)
    guard.begin(int(state.guard["skipped"]), failed + 1)
    attempt = jax.device_put(np.int32(guard.attempt), run.program.shardings.guard["attempt"])
    state = state._replace(guard={**state.guard, "attempt": attempt})
    record.roll_back(since, start, failed)
    loop.best.go_back(start)
    manifest.note(run.saves.workdir, since, "rollback", to=start)
    return state, start
