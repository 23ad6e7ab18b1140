"""Checkpoints, by Orbax: the whole TrainState beside the config, the codec and the manifest that give it meaning.

`checkpoints/<step>/` holds four items: state, config, codec, manifest. Nothing else is needed to sample from it.
"""

import contextlib
import dataclasses
import importlib
from collections.abc import Iterator
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
from tinygen.state import TrainState, Tree

CHUNK = 2**20  # bytes, at most: a shard that is another part of an array than was saved reads all chunks that it touches, whole
READING = ocp.CheckpointManagerOptions(create=False)
CURE = "Was its config.json changed, or its checkpoint saved by another version of the model? It needs those that belong to it."


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


def count(tree: Any) -> int:
    """Elements of all leaves."""
    return int(sum(np.prod(leaf.shape, dtype=np.int64) for leaf in jax.tree.leaves(tree)))
