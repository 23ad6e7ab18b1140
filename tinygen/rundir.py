"""What a run's folder holds beside its checkpoints: config.json, manifest.json, codec/, events.jsonl; and whose folder it is."""

import json
import os
import platform
import secrets
import subprocess
import time
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import jax
from absl import logging
from etils import epath

from tinygen import config as schema
from tinygen.checkpoint import newest_item, saved_steps
from tinygen.config import Config
from tinygen.data.codec import Codec
from tinygen.errors import UserError
from tinygen.processes import from_lead, leads, wait_for_all

PACKAGES = ("tinygen", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


def write_whole(path: epath.Path, text: str) -> None:
    """Writes a file in one piece: a process killed here, or a full disk, leaves the old one."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(text)
    fresh.replace(path)


def append(path: epath.Path, line: str) -> None:
    """Adds a line to a text file. Object stores (gs://) know only whole files: there it is read and written anew."""
    if "://" in str(path):
        path.write_text(f"{path.read_text() if path.exists() else ''}{line}\n")
        return
    with open(path, "ab+") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else f"\n{line}"  # after one that a killed process left torn
        file.write(f"{line}\n".encode())


def note(workdir: epath.Path, step: int, event: str, **facts: Any) -> bool:
    """One line of events.jsonl: what befell the run at `step`, beside its training. Process 0 writes it. Whether it could."""
    if not leads():
        return True
    try:
        append(workdir / "events.jsonl", json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%S"), "step": step, "event": event, **facts}))
    except OSError as error:
        logging.warning("events.jsonl cannot be written: %s", error.strerror)
        return False
    return True


def read_json(path: epath.Path) -> Any:
    """The content of a JSON file; None where there is none. Raises UserError where it is damaged."""
    try:
        return json.loads(path.read_text()) if path.exists() else None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}): put it back, or give another --workdir") from error


def claim_together(workdir: epath.Path, config: Config) -> Config:
    """`claim` by process 0 for all of them. Raises UserError where they were started differently, or don't see the same folder."""
    theirs = schema.from_json(from_lead("configuration", lambda: schema.to_json(config)))
    differing = [f"{key}: {a} -> {b}" for key, (a, b) in schema.difference(theirs, config).items() if key != "distributed"]
    if differing:
        raise UserError(f"the processes of this run have different configurations (process 0 -> this one: {'; '.join(differing[:6])})")
    wait_for_all("compared")  # before anything is written
    token, mark = from_lead("token", lambda: secrets.token_hex(8)), workdir / ".processes"
    if leads() and jax.process_count() > 1:
        mark.write_text(token)
    claimed = schema.from_json(from_lead("claimed", lambda: schema.to_json(claim(workdir, config))))
    if not leads() and not (mark.exists() and mark.read_text() == token):
        raise UserError(f"--workdir={workdir} is not the folder that process 0 has: all save into one, on a file system that they share")
    return schema.change(claimed, {"distributed": config.distributed})


def claim(workdir: epath.Path, config: Config) -> Config:
    """The configuration to run with: the given one, unless the workdir holds another run's (one that got past its first step).

    Only [resume] keys may differ from the stored config.json; the changes are noted in events.jsonl.
    Raises UserError with the differences otherwise.
    """
    path = workdir / "config.json"
    metrics = workdir / "metrics.jsonl"
    steps = saved_steps(workdir)
    begun = steps or (metrics.exists() and metrics.read_bytes())
    stored = _stored(workdir, steps) if begun else None
    with config.unlocked():
        # A schedule's length is fixed by the run's first start: training longer must not bend what was already walked.
        config.optim.decay_steps = config.optim.decay_steps or (stored or config).optim.decay_steps or config.train.steps
    if stored is not None:
        changes = schema.difference(stored, config)
        refused = [f"{key}: {old} -> {new}" for key, (old, new) in changes.items() if not schema.may_change(key, config)]
        if refused:
            shown = "; ".join(refused[:6]) + (f"; and {len(refused) - 6} more" if len(refused) > 6 else "")
            raise UserError(
                f"{workdir} holds a run with another configuration ({shown}).\nGive another --workdir, or the same values to go on with it."
            )
        if changes:
            note(
                workdir, steps[-1] if steps else 0, "config", changes={key: {"from": old, "to": new} for key, (old, new) in changes.items()}
            )
    write_whole(path, schema.to_json(config))
    return config


def _stored(workdir: epath.Path, steps: Sequence[int]) -> Config | None:
    """The configuration of the run in a workdir: its newest checkpoint's, which has sums. Without one config.json's; None without either.

    What has been done to config.json since is told, and the file is written again.
    """
    path = workdir / "config.json"
    if not steps:
        tree = read_json(path)
        return None if tree is None else schema.from_tree(tree, str(path))
    sealed = schema.from_tree(newest_item(workdir, "config"), f"the configuration of the checkpoint of step {steps[-1]}")
    fault = ""
    try:
        tree = read_json(path)
        found = sealed if tree is None else schema.from_tree(tree, str(path))
        changes = schema.difference(sealed, found).items()
        odd = [f"{key}: {old} -> {new}" for key, (old, new) in changes if not schema.may_change(key, found)]
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


def described(workdir: epath.Path) -> bool:
    """Whether what `describe_run` writes is there."""
    try:
        return all(isinstance(read_json(workdir / name), dict) for name in ("manifest.json", "codec/codec.json"))
    except UserError:
        return False


def describe_run(workdir: epath.Path, codec: Codec, manifest: dict[str, Any]) -> None:
    """Writes manifest.json and codec/: with config.json, what explains a workdir to a reader without this program. Process 0 does."""
    if not leads():
        return
    write_whole(workdir / "manifest.json", json.dumps(manifest, indent=2) + "\n")
    (workdir / "codec").mkdir(exist_ok=True)
    write_whole(workdir / "codec" / "codec.json", json.dumps(codec.to_json(), indent=2) + "\n")


def _revision() -> str:
    try:
        here = epath.Path(__file__).parent
        return subprocess.run(
            ["git", "-C", here, "describe", "--always", "--dirty"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
