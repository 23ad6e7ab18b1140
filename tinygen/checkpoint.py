"""Checkpoints, by Orbax: the whole TrainState beside the config, the codec and the manifest that give it meaning.

`checkpoints/<step>/` holds four items: state, config, codec, manifest. Nothing else is needed to sample from it.
"""

import contextlib
import dataclasses
import importlib
import json
import platform
import secrets
import subprocess
import time
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from tinygen import arrays
from tinygen import config as schema
from tinygen.config import Config
from tinygen.data.codec import Codec
from tinygen.errors import UserError
from tinygen.processes import from_lead, leads, wait_for_all
from tinygen.state import TrainState, Tree

CHUNK = 2**20  # bytes, at most: a shard that is another part of an array than was saved reads all chunks that it touches, whole
READING = ocp.CheckpointManagerOptions(create=False)
CURE = "Was its config.json changed, or its checkpoint saved by another version of the model? It needs those that belong to it."
PACKAGES = ("tinygen", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


def make_manager(workdir: epath.Path, *, keep: int, keep_every: int) -> ocp.CheckpointManager:
    """Saves asynchronously; keeps the newest `keep` checkpoints and those whose step is a multiple of `keep_every`."""
    options = ocp.CheckpointManagerOptions(max_to_keep=keep, keep_period=keep_every or None, cleanup_tmp_directories=True)
    return open_manager(workdir / "checkpoints", options)


def open_manager(checkpoints: epath.Path, options: ocp.CheckpointManagerOptions) -> ocp.CheckpointManager:
    check_store(checkpoints)
    return ocp.CheckpointManager(_absolute(checkpoints), options=options)


def _absolute(path: epath.Path) -> epath.Path:
    """Orbax wants absolute paths, and says so only when it saves."""
    return path if "://" in str(path) else path.resolve()


def check_store(path: epath.Path) -> None:
    """Raises UserError for a path in a bucket where what Orbax needs for one is not installed."""
    if str(path).startswith("gs://"):
        try:
            importlib.import_module("google.cloud.storage")
        except ImportError as error:
            raise UserError(f"{path}: Google's client for buckets is not installed: pip install 'tinygen[gcs]'") from error


def save(manager: ocp.CheckpointManager, step: int, state: TrainState, config: Config, codec: Codec, manifest: dict[str, Any]) -> None:
    """Begins a save; the state may be donated as soon as this returns."""
    chunked = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=CHUNK), state)
    manager.save(
        step,
        args=ocp.args.Composite(
            state=ocp.args.StandardSave(state, save_args=chunked),
            config=ocp.args.JsonSave(config.to_dict()),
            codec=ocp.args.JsonSave(codec.to_json()),
            manifest=ocp.args.JsonSave(manifest),
        ),
    )


def restore(manager: ocp.CheckpointManager, step: int, abstract: TrainState, shardings: TrainState) -> TrainState:
    """The state of a step, straight onto the devices that `shardings` names, whatever it was saved from.

    Raises UserError where the step's arrays are not exactly those of `abstract`, or cannot be read.
    """
    checkpoints = epath.Path(manager.directory)
    advice = (
        "They were saved by another version of the model. Give another --workdir; "
        f"with --config.init.ckpt={checkpoints.parent} --config.init.partial=True it begins from the weights that fit."
    )
    with _naming_damage(checkpoints, step):
        return arrays.read(checkpoints / str(step) / "state", abstract, shardings, advice=advice)


@dataclasses.dataclass(frozen=True)
class Saved:
    """A checkpoint found on disk. `workdir` is the run it belongs to."""

    workdir: epath.Path
    step: int
    config: Config
    codec: Codec
    manifest: dict[str, Any]

    def restore_weights(self, abstract: Tree, shardings: Tree, advice: str = CURE) -> Tree:
        """Some of the state's branches ({"ema": ..., "buffers": ...}), exactly; the others are never read."""
        with _naming_damage(self.checkpoints, self.step):
            return arrays.read(self.state, abstract, shardings, branches=abstract, advice=advice)

    def restore_fitting(self, abstract: Tree, shardings: Tree) -> tuple[Tree, arrays.Differences]:
        """Those arrays of the branches that fit, and what does not."""
        with _naming_damage(self.checkpoints, self.step):
            return arrays.read_fitting(self.state, abstract, shardings)

    @property
    def checkpoints(self) -> epath.Path:
        return self.workdir / "checkpoints"

    @property
    def state(self) -> epath.Path:
        return _absolute(self.checkpoints) / str(self.step) / "state"


def find(path: epath.PathLike, step: int | None = None, option: str = "--ckpt") -> Saved:
    """The checkpoint that `path` means: a run's workdir, its checkpoints folder, or one checkpoint in it; the newest by default.

    option: what the path was given as
    Raises UserError where there is none.
    """
    folder = epath.Path(path)
    if not folder.exists():
        raise UserError(f"{option}={path}: there is no such folder")
    if folder.name.isdigit() and folder.parent.name == "checkpoints":
        folder, step = folder.parent, int(folder.name) if step is None else step
    checkpoints = folder if folder.name == "checkpoints" else folder / "checkpoints"
    steps = _steps(checkpoints)
    if not steps:
        raise UserError(f"{option}={path}: no checkpoint there; give the workdir of a run that has saved one")
    if step is not None and step not in steps:
        raise UserError(f"--step={step}: {path} has no such checkpoint; it has {', '.join(map(str, steps))}")
    step = steps[-1] if step is None else step
    names = ("config", "codec", "manifest")
    with _naming_damage(checkpoints, step), open_manager(checkpoints, READING) as manager:
        items = manager.restore(step, args=ocp.args.Composite(**{name: ocp.args.JsonRestore() for name in names}))
    config = schema.base(**items["config"])
    return Saved(checkpoints.parent, step, config, Codec.from_json(items["codec"]), items["manifest"])


def saved_steps(workdir: epath.Path) -> list[int]:
    """The steps of a run's checkpoints, in order."""
    return _steps(workdir / "checkpoints")


def _steps(checkpoints: epath.Path) -> list[int]:
    return sorted(int(each.name) for each in checkpoints.iterdir() if each.name.isdigit()) if checkpoints.exists() else []


@contextlib.contextmanager
def _naming_damage(checkpoints: epath.Path, step: int) -> Iterator[None]:
    """Turns what Orbax raises over missing or torn files into a line that says which checkpoint it is, and which others there are."""
    try:
        yield
    except (KeyError, ValueError, OSError) as error:
        reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        others = ", ".join(str(other) for other in _steps(checkpoints) if other != step) or "none"
        raise UserError(
            f"{checkpoints / str(step)} cannot be read ({reason}).\n"
            f"Other checkpoints there: {others}. Sample from one with --step, or take this folder away to train on from the newest of them."
        ) from error


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
    with path.open("a") as file:
        file.write(f"{line}\n")


def note(workdir: epath.Path, step: int, event: str, **facts: Any) -> None:
    """One line of events.jsonl: what befell the run at `step`, beside its training. Process 0 writes it."""
    if leads():
        append(workdir / "events.jsonl", json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%S"), "step": step, "event": event, **facts}))


def read_json(path: epath.Path) -> Any:
    """The content of a JSON file; None where there is none. Raises UserError where it is damaged."""
    try:
        return json.loads(path.read_text()) if path.exists() else None
    except ValueError as error:
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
    begun = steps or (metrics.exists() and metrics.read_text())
    tree = read_json(path) if begun else None
    stored = schema.base(**tree) if tree is not None else None
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


def describe_run(workdir: epath.Path, codec: Codec, manifest: dict[str, Any]) -> None:
    """Writes manifest.json and codec/: with config.json, what explains a workdir to a reader without this program. Process 0 does."""
    if not leads():
        return
    write_whole(workdir / "manifest.json", json.dumps(manifest, indent=2) + "\n")
    (workdir / "codec").mkdir(exist_ok=True)
    write_whole(workdir / "codec" / "codec.json", json.dumps(codec.to_json(), indent=2) + "\n")


def read_manifest(workdir: epath.Path) -> dict[str, Any] | None:
    return read_json(workdir / "manifest.json")


def count(tree: Any) -> int:
    """Elements of all leaves."""
    return int(sum(np.prod(leaf.shape, dtype=np.int64) for leaf in jax.tree.leaves(tree)))


def _revision() -> str:
    try:
        here = epath.Path(__file__).parent
        return subprocess.run(
            ["git", "-C", here, "describe", "--always", "--dirty"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
