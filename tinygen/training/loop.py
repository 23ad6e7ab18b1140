"""The loop: steps, and what comes between them, from one state until the last step or a signal. It never asks what it trains."""

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
from tinygen.training.cadence import CHECKPOINT, cadences
from tinygen.training.nonfinite import RollBack
from tinygen.training.periodic import Outcome, Periodic
from tinygen.training.setup import Run, state_at
from tinygen.training.step_log import StepLog, Taken
from tinygen.workdir import manifest as rundir


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loop:
    """What the loop works with; all of it is there before the first step.

    take_step: the compiled step, or call of steps
    periodic: what is done between steps, in this order
    after_step: called with (step, state), for those who measure the loop
    """

    run: Run
    take_step: Callable[[TrainState, Any], tuple[TrainState, Any]]
    periodic: Sequence[Periodic]
    best: Best
    log: StepLog
    stop: StopSignal
    after_step: Callable[[int, TrainState], None] = lambda step, state: None


def train_from(loop: Loop, state: TrainState, start: int) -> tuple[TrainState, int]:
    """(the state that `take_steps` ends with, the step that it began from), after as many rollbacks as it takes."""
    while True:
        try:
            return take_steps(loop, state, start), start
        except RollBack as error:
            since = error.step  # of the error nothing else may stay: it holds a state
        state, start = roll_back(loop, since)


def take_steps(loop: Loop, state: TrainState, start: int) -> TrainState:
    """The state after the last step, or after the one in which a signal came; it is saved then.

    Raises RollBack where the run has to go back, and UserError where it has to end: both leave the checkpoints as they are.
    """
    run, log, config, record = loop.run, loop.log, loop.run.fed, loop.log.record
    checkpoint_due, last = cadences(config)[CHECKPOINT], config.train.steps
    signalled, taken = processes.Largest(run.parts.layout.mesh), None
    with device_calls(config, run.source, run.parts, log.guard.attempt, start, record.waiting) as batches:
        for steps in calls(config, start):
            done, step = steps[0] - 1, steps[-1]
            batch = next_batch(loop, batches, state, taken, done)
            state, metrics = loop.take_step(state, batch)
            loop.stop.idle = False  # from here on there is something to save
            log.write(taken)  # while this call runs: no accelerator ever waits for the host
            leaving = asked_to_leave(loop, signalled)
            extra, pending, better = between_steps(loop, state, step, leaving)
            leaving = leaving or bool(pending)
            taken = Taken(steps, metrics, extra)
            loop.stop.early = leaving and (step < last or bool(pending))
            if leaving or better or checkpoint_due(step):
                log.write(taken)
                taken = None
                # In a row of updates that were left out there is nothing new, and the run may have to go back to before it.
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
    """Where there is none, such as for a file that has gone, the state after the steps that are `done` is saved: it is sound."""
    try:
        return next(batches)
    except (UserError, OSError) as error:
        loop.log.write(taken)
        saves = loop.run.saves
        saves.settle()
        # With several processes only this one knows, and the others cannot be made to save.
        if done > saves.newest and processes.count() == 1:
            save(loop, state, done)
        rundir.note(saves.workdir, done, "stopped", reason=str(error))
        raise


def asked_to_leave(loop: Loop, signalled: Callable[[int], int]) -> bool:
    """Whether a signal has come, to whichever process: all leave after the same call."""
    with loop.log.record.watchdog.waiting_for("the other processes"):
        number = signalled(int(loop.stop))
    if number > 0:
        loop.stop.number = number
    return number > 0


class Between(NamedTuple):
    """extra: what was measured, for the step's line; None where nothing was due
    pending: names of the work that a signal interrupted or kept from beginning
    better: the state scored better than any before, and is to be saved
    """

    extra: Mapping[str, float] | None
    pending: Sequence[str]
    better: bool


def between_steps(loop: Loop, state: TrainState, step: int, leaving: bool) -> Between:
    """Does what is due after a step."""
    extra: dict[str, float] | None = None
    pending: list[str] = []
    better = False
    for work in loop.periodic:
        if not work.due(step):
            continue
        outcome = None if leaving or pending else perform(loop, work, state, step)
        if outcome is None:
            pending.append(work.name)
        if work.measures:
            extra = {**(extra or {}), **(outcome.values if outcome else {})}
        if ranked_best(loop, outcome, step):
            better = loop.run.config.eval.best
    return Between(extra, pending, better)


def catch_up(loop: Loop, state: TrainState, start: int) -> bool:
    """Does the work that is pending at the checkpoint from which the run resumes. Returns whether there was any."""
    pending = loop.run.saves.pending(start) if start else []
    for work in loop.periodic:
        outcome = perform(loop, work, state, start) if work.name in pending else None
        ranked_best(loop, outcome, start)
        if outcome is not None and outcome.values:
            loop.log.record.complete(start, outcome.values)
    return bool(pending)


def perform(loop: Loop, work: Periodic, state: TrainState, step: int) -> Outcome | None:
    """What came of it, shown; None where a signal interrupted it."""
    log = loop.log
    try:
        with log.record.aside(work.activity, state):
            outcome = work.run(state)
            if outcome is not None and outcome.media:
                log.record.preview(step, outcome.media)
    except (UserError, OSError) as error:
        if not work.optional or processes.count() > 1:
            raise
        logging.warning("no %s: %s. The run goes on", work.name, error)
        return Outcome()
    return outcome


def ranked_best(loop: Loop, outcome: Outcome | None, step: int) -> bool:
    """Ranks a state that was scored. Returns whether it is the best so far."""
    if outcome is None or outcome.rank is None or loop.log.guard.streak:  # in a row of updates that were left out nothing is saved
        return False
    return loop.best.add(step, outcome.rank)


def save(loop: Loop, state: TrainState, step: int, pending: Sequence[str] = ()) -> None:
    saves, record = loop.run.saves, loop.log.record
    if error := record.write_waiting():  # a checkpoint ahead of them would lose those lines for good
        saves.give_up(step, error)
        return
    saves.save(step, state, streak=loop.log.guard.streak, pending=pending, ready=record.later.up_to_here())


def roll_back(loop: Loop, since: int) -> tuple[TrainState, int]:
    """(the state of the newest good checkpoint or of the beginning, its step); the next attempt starts there."""
    run, guard, record = loop.run, loop.log.guard, loop.log.record
    start, failed = run.saves.back(), guard.attempt
    state, _ = state_at(run, start)
    guard.begin(int(state.guard["skipped"]), failed + 1)
    attempt = jax.device_put(np.int32(guard.attempt), run.program.shardings.guard["attempt"])
    state = state._replace(guard={**state.guard, "attempt": attempt})
    record.roll_back(since, start, failed)
    loop.best.go_back(start)
    rundir.note(run.saves.workdir, since, "rollback", to=start)
    return state, start
