"""Files of a workdir that describe the run: manifest.json, codec/, events.jsonl, data_files.json."""

import contextlib
import json
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import jax
from absl import logging
from etils import epath

from tinygen.data import contents
from tinygen.data.codec import Codec
from tinygen.data.contents import Contents
from tinygen.data.source import DataSource
from tinygen.distributed.processes import leads
from tinygen.errors import UserError, in_line
from tinygen.workdir.files import Folder, sound_json

PACKAGES = ("tinygen", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


def note(workdir: Folder, step: int, event: str, **facts: Any) -> bool:
    """Appends an event at `step` to events.jsonl, on process 0. Returns whether it was written."""
    if not leads():
        return True
    line = {"time": time.strftime("%Y-%m-%dT%H:%M:%S"), "step": step, "event": event, **facts}
    try:
        workdir.append("events.jsonl", json.dumps(line) + "\n")
    except OSError as error:
        logging.warning("events.jsonl cannot be written: %s", error.strerror)
        return False
    return True


def make_manifest(fingerprint: str, parameters: int, flops_per_step: int) -> dict[str, Any]:
    """The environment of the run: versions, revision, devices, data, size."""
    devices = jax.devices()
    versions = dict.fromkeys(PACKAGES, "unknown")
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):  # tinygen, run from a source tree
            versions[package] = metadata.version(package)
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
    """Writes manifest.json and codec/ on process 0; on resume, from step `start`, only files that are missing, damaged or edited.

    Together with config.json they document a workdir. manifest.json stays that of the first start.
    """
    if not leads():
        return
    if not start or not isinstance(sound_json(workdir, "manifest.json"), dict):
        workdir.write("manifest.json", json.dumps(manifest, indent=2) + "\n")
    name = "codec/codec.json"
    if start and (stored := sound_json(workdir, name)) is not None:
        try:
            if Codec.from_json(stored, name).to_json() == codec.to_json():
                return
        except UserError:
            pass
        logging.warning("%s is not what this run was trained with: rewriting it", workdir.path(name))
    workdir.make("codec")
    workdir.write(name, json.dumps(codec.to_json(), indent=2) + "\n")


def keep_contents(workdir: Folder, source: DataSource) -> None:
    """Writes data_files.json, the contents of a run's data, on process 0, unless it exists.

    It is written once per workdir, not in every checkpoint, since 100,000 files take 5 MB.
    """
    if source.contents and leads() and _contents(workdir, source.fingerprint) is None:
        workdir.write(contents.FILE, source.contents.kept(source.fingerprint))


def data_difference(workdir: Folder, before: str | None, source: DataSource, keys: Sequence[str] = ()) -> str:
    """How a run's data differs from that with fingerprint `before`, in one line; "" if it does not.

    Without data_files.json, as in workdirs of earlier versions, only the fingerprints can be shown.

    keys: the recipe's keys that have changed
    """
    if before == source.fingerprint:
        return ""
    return contents.difference(_contents(workdir, before), before, source.contents, source.fingerprint, keys)


def _contents(workdir: Folder, fingerprint: str | None) -> Contents | None:
    """The contents of the data with that fingerprint; None if unknown."""
    return Contents.of(sound_json(workdir, contents.FILE), fingerprint)


def other_versions(before: Any, now: Mapping[str, Any]) -> str:
    """The package versions that differ between a checkpoint's manifest and this process, in one line; "" if none do."""
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
