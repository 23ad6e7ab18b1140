"""Logs a run's data, parameters, devices, plan and learning rates at its start."""

import jax
from absl import logging
from clu import parameter_overview

from tinygen import build, optim
from tinygen import config as config_lib
from tinygen.checkpoints import store
from tinygen.distributed import processes
from tinygen.train_step import TrainState
from tinygen.training.setup import Run


def announce(run: Run, state: TrainState, start: int) -> None:
    """Logs what will run."""
    for line in run.source.about():
        logging.info("%s", line)
    logging.info("\n%s", parameter_overview.get_parameter_overview(state.params, include_stats=False))
    devices, steps, workdir = jax.devices(), run.config.train.steps, run.workdir
    where = f"{len(devices)} x {devices[0].device_kind}" + (f" of {processes.count()} processes" if processes.count() > 1 else "")
    begun = f"resuming from step {start}" if start else "from the beginning"
    plan = f"{begun} to step {steps} in {workdir}" if start < steps else f"in {workdir}, which is at step {start}"
    logging.info("%s parameters on %s, %s", f"{store.count(state.params):,}", where, plan)
    if start < steps:
        announce_rates(run, start, int(state.guard["skipped"]))
    else:
        level = logging.WARNING if start > steps and processes.leads() else logging.INFO
        asked = f"this run is at step {start}, and config.train.steps={steps}"
        logging.log(level, "%s: there is nothing left to train. To continue, raise --config.train.steps=%d", asked, 2 * start)


def announce_rates(run: Run, start: int, skipped: int) -> None:
    """Logs the learning rates of the remaining steps, with warnings. skipped: as in `optim.outlook`"""
    if not processes.leads():
        return
    config, workdir = run.config, run.workdir
    keys, fresh = build.schedule_keys(config), True
    if start:  # an unchanged schedule was warned about before
        before = config_lib.from_tree(store.newest_item(workdir, "config"), f"the configuration in {workdir}")
        fresh = before.train.steps != config.train.steps or build.schedule_keys(before) != keys
    logging.info("%s", optim.outlook(start, config.train.steps, skipped, **keys))
    for line in optim.oddities(start, config.train.steps, skipped, fresh=fresh, **keys):
        logging.warning("%s", line)
