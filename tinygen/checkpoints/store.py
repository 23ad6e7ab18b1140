"""Checkpoints with Orbax: the TrainState, and the config, codec and manifest that give it meaning.

`checkpoints/<step>/` holds four items: state, config, codec, manifest. Sampling needs nothing else.
"""

import contextlib
import dataclasses
import functools
import json
import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from tinygen import config as config_lib
from tinygen.checkpoints import checksums
from tinygen.checkpoints import restore as arrays
from tinygen.config import Config
from tinygen.data.codec import Codec
from tinygen.distributed.processes import leads
from tinygen.errors import UserError
from tinygen.train_step import TrainState, Tree
from tinygen.workdir.files import JSON, Folder, check_place

FEW = 8  # checkpoints named in a message
CHUNK = 2**20  # maximum bytes: with another sharding, a shard reads every chunk that it overlaps, whole
SLICE = 2**20  # minimum bytes of an array for replicas to write slices of it: slicing compiles a program per shape and device
STEP, LAST = re.compile("0|[1-9][0-9]*"), 2**31 - 1  # a step's folder; its number is an int32
CURE = "Was its config.json changed, or was it saved by another version of the model? Restore the matching config."


class Keep(NamedTuple):
    """Orbax preservation policy: the `newest` checkpoints, those whose step is a multiple of `every` (0: none), and those in `besides`."""

    newest: int
    every: int
    besides: Callable[[Sequence[int]], set[int]]

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        steps = [each.step for each in checkpoints]
        kept = {*steps[-self.newest :], *self.besides(steps), *(step for step in steps if self.every and step % self.every == 0)}
        return [step in kept for step in steps]


def make_manager(
    workdir: epath.Path,
    *,
    keep: int,
    keep_every: int,
    besides: Callable[[Sequence[int]], set[int]] = lambda steps: set(),
    when_written: Callable[[], None] | None = None,
) -> ocp.CheckpointManager:
    """A manager that saves asynchronously and keeps the newest `keep` checkpoints, multiples of `keep_every`, and those in `besides`.

    besides: selects steps to keep from the given ones
    when_written: called by a thread when all files of a checkpoint are written, before its folder is renamed
    """
    local = "://" not in str(workdir)  # a bucket cannot rename
    # if folders cannot be created in the background, threads wait for them and delay the exit by five minutes
    saving = ocp.AsyncOptions(post_finalization_callback=when_written, create_directories_asynchronously=False)
    check_place(workdir, "--workdir")
    checkpoints = checksums.checkpoints_of(workdir)
    checkpoints.make()  # refuses a link, which Orbax would follow
    options = ocp.CheckpointManagerOptions(
        preservation_policy=Keep(keep, keep_every, besides),
        cleanup_tmp_directories=True,
        async_options=saving,
        todelete_subdir=checksums.DELETED if local else None,
    )
    return ocp.CheckpointManager(checkpoints.path(), options=options, handler_registry=_handlers())


def _handlers() -> ocp.handlers.CheckpointHandlerRegistry:
    """Orbax's handlers for the items of a checkpoint."""
    types = ocp.type_handlers.create_type_handler_registry(
        (jax.Array, ocp.type_handlers.ArrayHandler(min_slice_bytes_for_replica_parallel=SLICE)),
        (np.ndarray, ocp.type_handlers.NumpyHandler()),
    )
    handlers = ocp.handlers.DefaultCheckpointHandlerRegistry()
    handlers.add("state", ocp.args.PyTreeSave, ocp.PyTreeCheckpointHandler(type_handler_registry=types))
    for item in ("config", "codec", "manifest"):
        handlers.add(item, ocp.args.JsonSave, ocp.JsonCheckpointHandler())
    return handlers


def save(
    manager: ocp.CheckpointManager,
    step: int,
    state: TrainState,
    config: Config,
    codec: Codec,
    manifest: dict[str, Any],
    sealed: bool = False,
) -> None:
    """Starts a save. The state may be donated as soon as this returns.

    sealed: whether it will have checksums
    """
    chunked = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=CHUNK), state)
    manager.save(
        step,
        args=ocp.args.Composite(
            state=ocp.args.PyTreeSave(state, save_args=chunked),
            config=ocp.args.JsonSave(config.to_dict()),
            codec=ocp.args.JsonSave(codec.to_json()),
            manifest=ocp.args.JsonSave({**manifest, checksums.SEALED: checksums.SUMS} if sealed else manifest),
        ),
        force=True,  # the loop decides when to save; Orbax would silently skip a step before its newest
    )


def restore(manager: ocp.CheckpointManager, step: int, abstract: TrainState, shardings: TrainState) -> TrainState:
    """The state of a step, restored directly to `shardings`, whatever devices it was saved from.

    Raises UserError if the step's arrays are not exactly those of `abstract`, or cannot be read.
    """
    workdir = epath.Path(manager.directory).parent
    advice = (
        "They were saved by another version of the model. Use another --workdir; "
        f"--config.init.ckpt={workdir} --config.init.partial=True warm-starts from the weights that match."
    )
    with _naming_damage(workdir, step):
        return arrays.read(workdir / "checkpoints" / str(step) / "state", abstract, shardings, advice=advice)


@dataclasses.dataclass(frozen=True)
class Saved:
    """A checkpoint on disk. `workdir` is the run it belongs to."""

    workdir: epath.Path
    step: int
    config: Config
    codec: Codec
    manifest: dict[str, Any]

    def restore_weights(self, abstract: Tree, shardings: Tree, advice: str = CURE) -> Tree:
        """Some branches of the state ({"ema": ..., "buffers": ...}), which must match exactly; others are not read."""
        with _naming_damage(self.workdir, self.step):
            return arrays.read(self.state, abstract, shardings, branches=abstract, advice=advice)

    def restore_fitting(self, abstract: Tree, shardings: Tree) -> tuple[Tree, arrays.Differences]:
        """The arrays of the branches that match, and the differences."""
        with _naming_damage(self.workdir, self.step):
            return arrays.read_fitting(self.state, abstract, shardings)

    @property
    def folder(self) -> Folder:
        return folder_of(self.workdir, self.step)

    @property
    def state(self) -> epath.Path:
        return self.folder.path("state")

    @property
    def name(self) -> str:
        """The run's name: that of its folder, however the path was given."""
        return self.folder.root.name


def find(path: epath.PathLike, step: int | None = None, option: str = "--ckpt") -> Saved:
    """The checkpoint at `path`: a run's workdir, its checkpoints folder, or one checkpoint in it; the newest by default.

    option: the option that the path was given with
    Raises UserError if there is none.
    """
    check_place(path, option)
    place = epath.Path(path)
    if not place.exists():
        raise UserError(f"{option}={path}: there is no such folder")
    if STEP.fullmatch(place.name) and place.parent.name == "checkpoints":
        place, step = place.parent, int(place.name) if step is None else step
    workdir = place.parent if place.name == "checkpoints" else place
    steps = saved_steps(workdir)
    if not steps:
        raise UserError(f"{option}={path}: no checkpoint there; give the workdir of a run that has saved one")
    if step is not None and step not in steps:
        raise UserError(f"--step={step}: {path} has no such checkpoint; it has {', '.join(map(str, steps))}")
    step = steps[-1] if step is None else step
    with _naming_damage(workdir, step):
        saved = folder_of(workdir, step)
        if leads() and (why := checksums.fault(saved)):
            raise ValueError(why)
        listed = len(json.loads(saved.read("state/_METADATA", JSON) or b"{}")["tree_metadata"])
    stored, codec, manifest = (item(workdir, step, name) for name in ("config", "codec", "manifest"))
    inside = workdir / "checkpoints" / str(step)
    config, codec = config_lib.from_tree(stored, f"{inside / 'config'}"), Codec.from_json(codec, f"{inside / 'codec'}")
    for name, depth in config.model.items():  # before a model of that many blocks is created
        counts = depth if isinstance(depth, tuple) else (depth,)
        if "depth" in name and any(isinstance(each, int) and each > max(listed, 1000) for each in counts):
            raise UserError(f"{inside}: config.model.{name}={depth}, but it holds {listed} arrays.\n{CURE}")
    if isinstance(manifest, dict):
        manifest.pop(checksums.SEALED, None)
    return Saved(workdir, step, config, codec, manifest)


def newest_item(workdir: epath.Path, name: str) -> Any:
    """`item` of a run's newest checkpoint."""
    return item(workdir, saved_steps(workdir)[-1], name)


def item(workdir: epath.Path, step: int, name: str) -> Any:
    """The config, codec or manifest of a checkpoint as JSON, read by a single process, whereas Orbax would wait for all.

    Raises UserError if it cannot be read.
    """
    with _naming_damage(workdir, step):
        content = folder_of(workdir, step).read(f"{name}/metadata", JSON)
        if content is None:
            raise ValueError(f"{name} is missing")
        return json.loads(content)


def folder_of(workdir: epath.Path, step: int) -> Folder:
    return checksums.checkpoints_of(workdir) / str(step)


def saved_steps(workdir: epath.Path) -> list[int]:
    """The steps of a run's checkpoints, in order. Raises UserError for names that Orbax would take for a step but no run writes."""
    checkpoints = checksums.checkpoints_of(workdir)
    found = [entry for entry in checkpoints.entries() if STEP.fullmatch(entry.name)]
    for entry in found:
        name, path = entry.name, checkpoints.path(entry.name[:40])
        if len(name) > len(str(LAST)) or int(name) > LAST:
            raise UserError(f"{path}{'...' * (len(name) > 40)}: no run has as many steps. Remove this folder.")
        if entry.type != "folder":
            raise UserError(f"{path} is a {entry.type}, not a checkpoint's folder: not opened. Remove it.")
    return sorted(int(entry.name) for entry in found)


@functools.cache
def hide_late_errors() -> None:
    """Hides messages about Orbax's other reads and writes after one has failed: they end later, in threads where nothing can catch them."""
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    show = sys.unraisablehook
    sys.unraisablehook = lambda raised: None if str(raised.exc_value) == "Event loop is closed" else show(raised)


@contextlib.contextmanager
def _naming_damage(workdir: epath.Path, step: int) -> Iterator[None]:
    """Turns Orbax's errors over missing or torn files into a UserError that names the checkpoint and the others."""
    try:
        yield
    except (LookupError, ValueError, OSError, TypeError, AttributeError, RecursionError) as error:
        hide_late_errors()
        reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        steps = [str(other) for other in saved_steps(workdir) if other != step]
        others = ", ".join(["..."] * (len(steps) > FEW) + steps[-FEW:]) or "none"
        raise UserError(
            f"{workdir / 'checkpoints' / str(step)} cannot be read ({reason}).\n"
            f"Other checkpoints there: {others}. Sample from one with --step, or remove this folder to resume from the newest of them."
        ) from error


def count(tree: Any) -> int:
    """The number of elements of all leaves."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))
