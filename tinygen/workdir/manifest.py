"""What a run's folder holds beside its checkpoints: config.json, manifest.json, codec/, events.jsonl; and whose folder it is."""

import json
import platform
import secrets
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import jax
from absl import logging
from etils import epath

from tinygen import config as config_lib
from tinygen.checkpoints.store import newest_item, saved_steps
from tinygen.config import Config
from tinygen.data.codec import Codec
from tinygen.distributed.processes import from_lead, leads, wait_for_all
from tinygen.errors import UserError
from tinygen.system.terminal import in_line
from tinygen.workdir.files import Folder, folder, read_json

MARK = ".processes"  # a file by which the processes of a run see that they have the same workdir
PACKAGES = ("tinygen", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


def note(workdir: Folder, step: int, event: str, **facts: Any) -> bool:
    """Adds a line to events.jsonl: what happened to the run at `step`. Process 0 writes it. Returns whether it could."""
    if not leads():
        return True
    line = {"time": time.strftime("%Y-%m-%dT%H:%M:%S"), "step": step, "event": event, **facts}
    try:
        workdir.append("events.jsonl", json.dumps(line) + "\n")
    except OSError as error:
        logging.warning("events.jsonl cannot be written: %s", error.strerror)
        return False
    return True


def claim_together(workdir: epath.Path, config: Config) -> Config:
    """`claim` by process 0 for all of them. Raises UserError where they were started differently, or don't see the same folder."""
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
        raise UserError(f"--workdir={workdir} is not the folder that process 0 has: all save into one, on a file system that they share")
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
        # A schedule's length is fixed by the run's first start: training longer must not bend what was already walked.
        config.optim.decay_steps = config.optim.decay_steps or (stored or config).optim.decay_steps or config.train.steps
    if stored is not None:
        changes = config_lib.difference(stored, config)
        refused = [f"{key}: {old} -> {new}" for key, (old, new) in changes.items() if not config_lib.may_change(key, config)]
        if refused:
            shown = "; ".join(refused[:6]) + (f"; and {len(refused) - 6} more" if len(refused) > 6 else "")
            raise UserError(
                f"{workdir} holds a run with another configuration ({shown}).\nGive another --workdir, or the same values to go on with it."
            )
        if changes:
            noted = {key: {"from": old, "to": new} for key, (old, new) in changes.items()}
            note(place, steps[-1] if steps else 0, "config", changes=noted)
    place.write("config.json", config_lib.to_json(config))
    return config


def _stored(workdir: epath.Path, steps: Sequence[int]) -> Config | None:
    """The configuration of the run in a workdir: its newest checkpoint's, which has sums. Without one config.json's; None without either.

    What has been done to config.json since is told, and the file is written again.
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


def make_manifest(fingerprint: str, parameters: int, flops_per_step: int) -> dict[str, Any]:
    """What the run was made with: versions, revision, devices, data, size."""
    devices = jax.devices()
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # run from a source tree that is not installed
            versions[package] = "unknown"
    return {
        "versions": {"python": platform.python_version(), **versions},
        "revision": _revision(),
        "device_kind": devices[0].device_kind,
        "device_count": len(devices),
        "process_count": jax.process_count(),
        "data_fingerprint": fingerprint,
        "parameters": parameters,
        "flops_per_step": flops_per_step,
    }


def describe_run(workdir: Folder, codec: Codec, manifest: dict[str, Any], start: int = 0) -> None:
    """Writes manifest.json and codec/; on resume, from step `start`, only what is missing, damaged or was edited. Process 0 does.

    With config.json they explain a workdir to a reader without this program. manifest.json stays that of the first start.
    """
    if not leads():
        return
    if not start or not isinstance(_sound(workdir, "manifest.json"), dict):
        workdir.write("manifest.json", json.dumps(manifest, indent=2) + "\n")
    name = "codec/codec.json"
    if start and (stored := _sound(workdir, name)) is not None:
        try:
            if Codec.from_json(stored, name).to_json() == codec.to_json():
                return
        except UserError:
            pass
        logging.warning("%s is not what this run was trained with: it is written again", workdir.path(name))
    workdir.make("codec")
    workdir.write(name, json.dumps(codec.to_json(), indent=2) + "\n")


def _sound(workdir: Folder, name: str) -> Any:
    """The content of a JSON file; None where there is none that can be read."""
    try:
        return read_json(workdir, name)
    except (UserError, OSError):
        return None


def other_versions(before: Any, now: Mapping[str, Any]) -> str:
    """The packages that differ between a checkpoint's manifest and this process's, in one line; "" where none does."""
    old = before.get("versions") if isinstance(before, dict) else None
    pairs = [(name, old.get(name), version) for name, version in now["versions"].items()] if isinstance(old, dict) else []
    return ", ".join(f"{name} {in_line(str(a)[:20])} -> {b}" for name, a, b in pairs if a not in (None, b) and "unknown" not in (a, b))


def _revision() -> str:
    try:
        here = epath.Path(__file__).parent
        return subprocess.run(
            ["git", "-C", here, "describe", "--always", "--dirty"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
