"""`tinygen train`: opens and claims the workdir, runs the loop with its rollbacks, and records how the run ended."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
from absl import logging
from etils import epath

from tinygen import build
from tinygen.checkpoints import store
from tinygen.checkpoints.best import Best
from tinygen.checkpoints.saver import Saves, recover
from tinygen.config import Config
from tinygen.data.source import DataSource
from tinygen.distributed import processes
from tinygen.errors import UserError
from tinygen.evaluation.during_training import by
from tinygen.system import runtime
from tinygen.train_step import TrainState
from tinygen.training import resume
from tinygen.training.announce import announce
from tinygen.training.loop import Loop, catch_up, train_from
from tinygen.training.nonfinite import Guard, Spikes
from tinygen.training.periodic import make_periodic
from tinygen.training.preflight import opened
from tinygen.training.setup import Run, begin_compiling, check_same_data, compiled, open_record, set_up, show_data, state_at
from tinygen.training.step_log import StepLog
from tinygen.workdir import lock, manifest


def main(config: Config, workdir: str, origin: Mapping[str, Any] | None = None) -> int:
    """Trains in `workdir` until config.train.steps, from its newest checkpoint if it has one. Returns the exit status.

    origin: the `recipe` and the keys `changed` on the command line, for the start event
    """
    runtime.listen(quiet=not processes.leads())
    folder = epath.Path(workdir)
    source, parts = opened(config, folder)
    with lock.own(folder) if processes.leads() else contextlib.nullcontext(), runtime.stop_on_signals() as stop:
        stop.idle = processes.count() == 1  # with several processes, all must leave together
        if processes.leads():
            recover(folder)
        check_same_data(folder, config, source)
        config = resume.claim_together(folder, config)
        run(config, folder, source, parts, stop, origin=origin)
        return stop.status if stop.early else 0


def run(
    config: Config,
    workdir: epath.Path,
    source: DataSource,
    parts: build.Parts,
    stop: runtime.StopSignal,
    after_step: Callable[[int, TrainState], None] = lambda step, state: None,
    origin: Mapping[str, Any] | None = None,
) -> TrainState:
    """Trains in a claimed workdir and returns the final state. `after_step(step, state)` is a hook for benchmarks."""
    with jax.set_mesh(parts.layout.mesh), Saves(workdir, config, source.codec) as saves:
        own = set_up(config, workdir, source, parts, saves)
        compiling = begin_compiling(own)
        start = saves.newest
        processes.agree("the newest checkpoint", str(start))
        state, weights_from = state_at(own, start)
        skipped, attempt = int(state.guard["skipped"]), int(state.guard["attempt"])
        rules = {key: config.guard[key] for key in ("policy", "skips", "rollbacks")}
        guard = Guard(**rules, skipped=skipped, streak=saves.streak(start) if start else 0, attempt=attempt)
        unwanted = (lambda: bool(stop)) if processes.count() == 1 else lambda: False  # several processes would have to agree at every batch
        periodic = make_periodic(config, source, parts, unwanted=unwanted)
        best = Best(saves.workdir, by(config), start)
        saves.best = best.of if config.eval.best else saves.best
        with open_record(own, workdir, start=start, attempt=guard.attempt, stall=config.guard.stall) as record:
            announce(own, state, start)
            note_start(own, start, {**(origin or {}), **weights_from})
            show_data(saves.workdir, source, config.train.preview_num)
            take_step = compiled(own, compiling, record)
            manifest.describe_run(saves.workdir, source.codec, saves.manifest, start)
            spikes = Spikes(config.guard.spike)
            log = StepLog(config=own.fed, objective=parts.objective, record=record, guard=guard, spikes=spikes)
            loop = Loop(run=own, take_step=take_step, periodic=periodic, best=best, log=log, stop=stop, after_step=after_step)
            caught_up = catch_up(loop, state, start)
            state, start = train_from(loop, state, start)
    finish(own, state, stop, unwritten=len(record.journal.waiting), new=caught_up or int(state.step) > start)
    return state


def note_start(own: Run, start: int, facts: Mapping[str, Any]) -> None:
    """Records the start, and warns if other versions of JAX or tinygen saved the checkpoint."""
    if start and (changed := manifest.other_versions(store.newest_item(own.workdir, "manifest"), own.saves.manifest)):
        logging.warning("Step %d was saved by other versions (%s): results may differ in the last bits", start, changed)
    manifest.note(own.saves.workdir, start, "start", device=f"{jax.device_count()} x {jax.devices()[0].device_kind}", **facts)


def finish(own: Run, state: TrainState, stop: runtime.StopSignal, *, unwritten: int, new: bool) -> None:
    """Records how the run ended and logs how to continue. Raises UserError if metrics could not be written.

    unwritten: number of lines of metrics.jsonl that could not be written
    new: whether any work was done
    """
    reached, workdir, place = int(state.step), own.workdir, own.saves.workdir
    if unwritten:
        raise UserError(f"{workdir}: step {reached} is saved, but the last {unwritten} lines of metrics.jsonl could not be written")
    if stop.early:
        manifest.note(place, reached, "stopped", signal=stop.name)
        logging.info("Stopped by %s at step %d, which is saved. The same command resumes from there.", stop.name, reached)
        return
    if new:
        manifest.note(place, reached, "finished")
    after = f"Samples: tinygen sample --ckpt={workdir}" if own.parts.objective.generates else f"To look: {workdir / 'samples'}"
    logging.info("Done: %d steps in %s. %s", reached, workdir, after)
