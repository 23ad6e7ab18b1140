"""A run: what is made before its first step, its loop, and the way back where that fails. It never asks what it trains."""

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from absl import logging
from clu import parameter_overview
from etils import epath

from tinygen import build, optim
from tinygen import config as config_lib
from tinygen.checkpoints import store
from tinygen.checkpoints.best import Best
from tinygen.checkpoints.saver import Saves, recover
from tinygen.config import Config
from tinygen.data.source import DataSource
from tinygen.distributed import processes
from tinygen.errors import UserError
from tinygen.evaluation.during_training import by, make_scoring
from tinygen.nn.flops import flops, products_of
from tinygen.profiling import footprint
from tinygen.sampling.preview import make_preview
from tinygen.system import runtime
from tinygen.train_step import TrainState, init_state
from tinygen.training import program, resume
from tinygen.training.batches import bounded
from tinygen.training.held_out import make_evaluation
from tinygen.training.loop import Loop, catch_up, onward
from tinygen.training.nonfinite import Guard, RollBack, Spikes
from tinygen.training.setup import check_same_data, initial_weights, opened, show_data
from tinygen.workdir import files, lock
from tinygen.workdir import manifest as rundir
from tinygen.workdir.logger import RunLogger


def main(config: Config, workdir: str, origin: Mapping[str, Any] | None = None) -> int:
    """Trains in `workdir` until config.train.steps, from its newest checkpoint if it has one. Returns the exit status.

    origin: noted with the start: the `recipe`, and the keys `changed` on the command line
    """
    runtime.listen()
    folder = epath.Path(workdir)
    source, parts = opened(config, folder)
    with lock.own(folder) if processes.leads() else contextlib.nullcontext(), runtime.stop_on_signals() as stop:
        stop.idle = processes.count() == 1  # of several processes none may go alone
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
    after_step: Callable[[int, TrainState], None] | None = None,
    origin: Mapping[str, Any] | None = None,
) -> TrainState:
    """Everything between a claimed workdir and the final state. `after_step(step, state)` is for those who measure the loop."""
    train, layout, steps = config.train, parts.layout, config.train.steps
    init = functools.partial(init_state, parts.create, build.optimizer(config)[0], config.seed)
    abstract = jax.eval_shape(init)
    shardings = layout.shardings(abstract)
    place, fed = files.folder(workdir, held=True), bounded(config)
    jitted, argument = build.train_call(fed, parts, shardings)
    with jax.set_mesh(layout.mesh), Saves(workdir, config, source.codec) as saves:
        traced = program.traced_step(jitted, layout, abstract, argument)
        operations = flops(products_of(traced.jaxpr))
        compiling = program.compiled_aside(traced) if saves.newest < steps else None
        manifest = rundir.make_manifest(source.fingerprint, store.count(abstract.params), operations)
        start = saves.newest
        processes.agree("the newest checkpoint", str(start))
        weights_from: dict[str, Any] = {}

        def state_of(step: int) -> TrainState:
            """A checkpoint's state; at step 0 that of the beginning."""
            if step:
                return store.restore(saves.manager, step, abstract, shardings)
            weights, told = initial_weights(config, abstract, shardings) if config.init.ckpt else (None, {})
            weights_from.update(told)
            return jax.jit(init, donate_argnums=0, out_shardings=shardings)(weights)

        state = state_of(start)
        if start and (changed := rundir.other_versions(store.newest_item(workdir, "manifest"), manifest)):
            logging.warning("Resuming with other versions than saved step %d (%s): results may differ in the last bits", start, changed)
        guard = Guard(
            config.guard.policy, config.guard.skips, config.guard.rollbacks,
            skipped=int(state.guard["skipped"]), streak=saves.streak(start) if start else 0, attempt=int(state.guard["attempt"]),
        )  # fmt: skip
        unwanted = (lambda: bool(stop)) if processes.count() == 1 else lambda: False  # several would have to agree at every batch
        evaluate = make_evaluation(config, source, parts, unwanted=unwanted)
        preview = make_preview(config, source, parts)
        scoring = make_scoring(config, source, parts, unwanted) if config.eval.every else lambda state: None
        best = Best(place, by(config), start)
        saves.best = best.of if config.eval.best else saves.best
        with RunLogger(
            workdir, start, steps, config.batch_size, source.codec.medium.noun, train.writers, config_lib.flatten(config), guard.attempt,
            config.guard.stall,
        ) as record:  # fmt: skip
            announce(workdir, config, state, start, source)
            rundir.note(
                place, start, "start", device=f"{jax.device_count()} x {jax.devices()[0].device_kind}", **(origin or {}), **weights_from
            )
            show_data(place, source, train.preview_num)
            take_step = jitted
            if compiling is not None:
                with record.watchdog.waiting_for("compiling"):
                    take_step = compiling.result()  # once: what is described is what runs
                taken = footprint.measure(take_step, layout, abstract)
                manifest |= taken.facts()
                logging.info("%s", "\n".join(taken.lines()))
            rundir.describe_run(place, source.codec, manifest, start)
            loop = Loop(
                fed, source, parts, take_step, evaluate, preview, scoring, saves, best, record, guard, Spikes(config.guard.spike), manifest,
                stop, after_step,
            )  # fmt: skip
            owed = bool(start and saves.owes(start))
            if owed:
                catch_up(loop, state, start)
            while True:
                try:
                    state = onward(loop, state, start)
                    break
                except RollBack as error:
                    since = error.step  # of the error nothing else may stay: it holds a state
                start, failed = saves.back(), guard.attempt
                state = state_of(start)
                guard.begin(int(state.guard["skipped"]), failed + 1)
                attempt = jax.device_put(np.int32(guard.attempt), shardings.guard["attempt"])
                state = state._replace(guard={**state.guard, "attempt": attempt})
                record.roll_back(since, start, failed)
                best.go_back(start)
                rundir.note(place, since, "rollback", to=start)
    reached = int(state.step)
    if record.unwritten:
        raise UserError(f"{workdir}: step {reached} is saved, but the last {record.unwritten} lines of metrics.jsonl found no room")
    if stop.early:
        rundir.note(place, reached, "stopped", signal=stop.name)
        logging.info("Stopped by %s at step %d, which is saved. The same command goes on from there.", stop.name, reached)
    else:
        if reached > start or owed:
            rundir.note(place, reached, "finished")
        after = f"Samples: tinygen sample --ckpt={workdir}" if parts.objective.generates else f"To look: {workdir / 'samples'}"
        logging.info("Done: %d steps in %s. %s", reached, workdir, after)
    return state


def announce(workdir: epath.Path, config: Config, state: TrainState, start: int, source: DataSource) -> None:
    """What will run, once, at the start."""
    for line in source.about():
        logging.info("%s", line)
    logging.info("\n%s", parameter_overview.get_parameter_overview(state.params, include_stats=False))
    devices, steps = jax.devices(), config.train.steps
    where = f"{len(devices)} x {devices[0].device_kind}" + (f" of {processes.count()} processes" if processes.count() > 1 else "")
    begun = f"resuming from step {start}" if start else "from the beginning"
    plan = f"{begun} to step {steps} in {workdir}" if start < steps else f"in {workdir}, which is at step {start}"
    logging.info("%s parameters on %s, %s", f"{store.count(state.params):,}", where, plan)
    if start < steps:
        announce_rates(workdir, config, start, int(state.guard["skipped"]))
    else:
        level = logging.WARNING if start > steps and processes.leads() else logging.INFO
        asked = f"this run is at step {start}, and config.train.steps={steps}"
        logging.log(level, "%s: there is nothing left to train. To train on, give more: --config.train.steps=%d", asked, 2 * start)


def announce_rates(workdir: epath.Path, config: Config, start: int, skipped: int) -> None:
    """The learning rates of the steps that are left, and what is odd about them. skipped: of `optim.outlook`"""
    if not processes.leads():
        return
    keys, fresh = build.schedule_keys(config), True
    if start:  # what has not changed since the checkpoint was chosen then
        before = config_lib.from_tree(store.newest_item(workdir, "config"), f"the configuration in {workdir}")
        fresh = before.train.steps != config.train.steps or build.schedule_keys(before) != keys
    logging.info("%s", optim.outlook(start, config.train.steps, skipped, **keys))
    for line in optim.oddities(start, config.train.steps, skipped, fresh=fresh, **keys):
        logging.warning("%s", line)
