"""Claiming a workdir for a run, and the configuration with which it resumes."""

import secrets
from collections.abc import Sequence

import jax
from absl import logging
from etils import epath

from tinygen import config as config_lib
from tinygen.checkpoints.store import newest_item, saved_steps
from tinygen.config import Config
from tinygen.distributed.processes import from_lead, leads, wait_for_all
from tinygen.errors import UserError
from tinygen.workdir.files import folder, read_json
from tinygen.workdir.manifest import note

MARK = ".processes"  # a file by which the processes of a run check that they share the workdir


def claim_together(workdir: epath.Path, config: Config) -> Config:
    """`claim` by the coordinator for all processes. Raises UserError if their configurations or their folders differ."""
    theirs = config_lib.from_json(from_lead("configuration", lambda: config_lib.to_json(config)))
    differing = [f"{key}: {a} -> {b}" for key, (a, b) in config_lib.difference(theirs, config).items() if key != "distributed"]
    if differing:
        raise UserError(f"the processes of this run have different configurations (process 0 -> this one: {'; '.join(differing[:6])})")
    wait_for_all("compared")  # before anything is written
    token, place = from_lead("token", lambda: secrets.token_hex(8)), folder(workdir)
    if leads() and jax.process_count() > 1:
        place.write(MARK, token)
    claimed = config_lib.from_json(from_lead("claimed", lambda: config_lib.to_json(claim(workdir, config))))
    if not leads() and place.read(MARK, len(token)) != token.encode():
        raise UserError(f"--workdir={workdir} is not the folder of process 0: all processes need the same one, on a shared file system")
    return config_lib.change(claimed, {"distributed": config.distributed})


def claim(workdir: epath.Path, config: Config) -> Config:
    """The configuration to run with: the given one, unless the workdir holds another run's (one that got past its first step).

    Only [resume] keys may differ from the stored config.json; the changes are noted in events.jsonl.
    Raises UserError with the differences otherwise.
    """
    place, steps = folder(workdir), saved_steps(workdir)
    begun = steps or any(entry.name == "metrics.jsonl" and entry.size for entry in place.entries())
    stored = _stored(workdir, steps) if begun else None
    with config.unlocked():
        # The first start fixes the schedule's length: training longer must not change the rates of past steps.
        config.optim.decay_steps = config.optim.decay_steps or (stored or config).optim.decay_steps or config.train.steps
    if stored is not None:
        changes = config_lib.difference(stored, config)
        refused = [f"{key}: {old} -> {new}" for key, (old, new) in changes.items() if not config_lib.may_change(key, config)]
        if refused:
            shown = "; ".join(refused[:6]) + (f"; and {len(refused) - 6} more" if len(refused) > 6 else "")
            raise UserError(
                f"{workdir} holds a run with another configuration ({shown}).\nGive another --workdir, or the same values to resume it."
            )
        if changes:
            noted = {key: {"from": old, "to": new} for key, (old, new) in changes.items()}
            note(place, steps[-1] if steps else 0, "config", changes=noted)
    place.write("config.json", config_lib.to_json(config))
    return config


def _stored(workdir: epath.Path, steps: Sequence[int]) -> Config | None:
    """The configuration of the run in a workdir, from its newest checkpoint (which has checksums), or else config.json, or None.

    Warns if config.json has been changed since; `claim` rewrites it.
    """
    path, place = workdir / "config.json", folder(workdir)
    if not steps:
        tree = read_json(place, "config.json")
        return None if tree is None else config_lib.from_tree(tree, str(path))
    sealed = config_lib.from_tree(newest_item(workdir, "config"), f"the configuration of the checkpoint of step {steps[-1]}")
    fault = ""
    try:
        tree = read_json(place, "config.json")
        found = sealed if tree is None else config_lib.from_tree(tree, str(path))
        changes = config_lib.difference(sealed, found).items()
        odd = [f"{key}: {old} -> {new}" for key, (old, new) in changes if not config_lib.may_change(key, found)]
        fault = f"{path} is gone" if tree is None else f"{path} has changed ({'; '.join(odd[:6])})" if odd else ""
    except UserError as error:
        fault = str(error).splitlines()[0]
    if fault:
        logging.warning("%s: it is taken from the checkpoint of step %d", fault, steps[-1])
    return sealed
