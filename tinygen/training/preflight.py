"""Checks before a run's first step and before any file is written; `opened` is the entry point."""

import contextlib
import dataclasses
import functools
import math
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager as ContextManager
from pathlib import Path
from typing import Any

import jax
from etils import epath

from tinygen import build
from tinygen import config as config_lib
from tinygen.checkpoints import store
from tinygen.checkpoints.weights import EVERYWHERE
from tinygen.config import Config
from tinygen.data.codec import Codec
from tinygen.data.source import DataSource, check_batch
from tinygen.distributed import processes
from tinygen.distributed.mesh import Layout
from tinygen.errors import UserError
from tinygen.evaluation.during_training import check_scoring
from tinygen.media.preview import Preview
from tinygen.nn.layers import Output
from tinygen.pretrained import latents
from tinygen.profiling.footprint import bytes_held, placed, si
from tinygen.rng import stream
from tinygen.sampling.draw import BATCH, sample_step
from tinygen.system import limits
from tinygen.train_step import TrainState, Tree, merge
from tinygen.training import warm_start
from tinygen.training.held_out import held_out_size
from tinygen.training.periodic import PREVIEW, programs
from tinygen.training.program import batch_shapes, make_program
from tinygen.training.setup import codec_so_far
from tinygen.workdir.files import check_place
from tinygen.workdir.writers import check_writers

FOREIGN = ("jax", "flax", "contextlib", "functools", "numpy")  # packages whose frames do not locate the error


def opened(config: Config, workdir: epath.Path) -> tuple[DataSource, build.Parts]:
    """The data and parts of a run after all checks, cheapest first, before anything is written to the workdir. Raises UserError.

    Two checks are elsewhere: `config.check` refuses invalid values before heavy imports; `check_same_data` and `claim` check that the
    workdir holds this run once it is locked.
    """
    check_writers(config.train.writers)
    check_place(workdir, "--workdir")
    warm = config.init.ckpt and not store.saved_steps(workdir)
    earlier = store.find(config.init.ckpt, option="config.init.ckpt") if warm else None
    if earlier is not None:
        warm_start.check_model(config, earlier)  # before data are prepared
    with processes.lead_first("data"):
        source = build.data_source(config, codec_so_far(config, workdir))
    processes.agree("the data", source.fingerprint)
    if earlier is not None:
        warm_start.check_data(config, source.codec, earlier)
    parts = build.parts(config, source.codec)  # checks that they fit each other, the data and the mesh
    preflight(config, workdir, source, parts)
    return source, parts


def preflight(config: Config, workdir: epath.Path, source: DataSource, parts: build.Parts) -> None:
    """The checks that need data and parts. Nothing is compiled. Raises UserError for what would end the run later."""
    check_batch_size(config, parts.layout)
    if max(store.saved_steps(workdir), default=0) < config.train.steps:  # else there is nothing left to train
        abstract = make_program(config, parts).abstract
        if processes.leads():
            check_disk(config, workdir, sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(abstract)))
        check_memory("the state", bytes_held(placed(abstract, parts.layout)), "config.model, or config.mesh.fsdp")
        check_programs(config, parts, abstract)
        check_splits(config, source, parts)
    latents.check(source.codec.domain)
    check_scoring(config, source, parts)


def check_batch_size(config: Config, layout: Layout) -> None:
    """Raises UserError if the batch does not split evenly over the devices."""
    micro, multiple = config.batch_size // config.optim.accumulate, layout.batch_multiple
    if micro % multiple:
        parts = config.optim.accumulate
        what = f"config.batch_size={config.batch_size}" + (f" / optim.accumulate={parts}" if parts > 1 else "")
        raise UserError(f"{what} is not a multiple of the {multiple} devices of mesh.data x mesh.fsdp that split a batch")


def check_disk(config: Config, workdir: epath.Path, size: int) -> None:
    """Raises UserError if the disk has no room for the checkpoints to come.

    size: bytes per checkpoint
    """
    free = limits.free_bytes(workdir)
    present = store.saved_steps(workdir)
    num = max(1, most_checkpoints(config) - len(present))
    if free is not None and num * size > free:
        train = config.train
        keys = ", ".join(f"config.train.{key}={train[key]}" for key in ("keep", "keep_every", "checkpoint_every"))
        raise UserError(
            f"--workdir={workdir}: {si(free, 1024)}B are free there, but {num} more checkpoints at once take {si(num * size, 1024)}B.\n"
            f"Make room, give a --workdir on another disk, or keep fewer: {keys}."
        )


def most_checkpoints(config: Config) -> int:
    """The most checkpoints on the disk at once: those kept, and one being written before an old one is deleted."""
    train = config.train
    every, keep = train.checkpoint_every, train.keep
    regular = range(every, train.steps, every) if every else range(0)
    newest = min(keep, len(regular) + 1)  # the last step's among them
    multiples = 0
    if train.keep_every and regular:
        both, older = math.lcm(every, train.keep_every), regular[: len(regular) - (newest - 1)]
        multiples = older[-1] // both if older else 0
    return min(len(regular) + 1, newest + multiples + 1)


def check_memory(what: str, needed: int, cure: str) -> None:
    """Raises UserError if `what` needs more bytes than a device has. cure: the keys that help"""
    limit = limits.device_bytes()
    if needed > limit:
        raise UserError(f"{what} needs {si(needed, 1024)}B on a device, which has {si(limit, 1024)}B.\nChange {cure}.")


def check_splits(config: Config, source: DataSource, parts: build.Parts) -> None:
    """Reads the first batch of each split. Raises UserError if one is empty or malformed."""
    layout, size = parts.layout, config.batch_size
    held_out = held_out_size(config, parts)
    firsts = {
        "train": lambda: source.batches("train", size, config.seed, rows=layout.rows(size), ahead=False),
        "validation": lambda: source.epoch("validation", held_out, config.train.eval_num, layout.rows(held_out)),
    }
    for split, batches in firsts.items():
        if not len(source.splits[split]):
            raise UserError(f"config.data.name={config.data.name}: its {split} split is empty")
        try:
            check_batch(next(iter(batches())), source.codec)
        except UserError as error:
            raise UserError(f"{split} split of config.data.name={config.data.name}: {error}") from error


def check_programs(config: Config, parts: build.Parts, abstract: TrainState) -> None:
    """Traces the functions of the run and of `tinygen sample`. Raises UserError if the parts do not fit together."""
    codec, layout = parts.codec, parts.layout
    fitting = functools.partial(_together, config, parts.objective)
    with jax.set_mesh(layout.mesh):
        with fitting("the loss"):  # the whole training step takes ten times as long to trace

            def loss(params: Tree, buffers: Tree, batch: Any) -> Any:
                return parts.objective.loss(merge(parts.graphdef, params, buffers), batch, stream(config.seed, "train"), train=True)

            jax.eval_shape(loss, abstract.params, abstract.buffers, batch_shapes(parts, config.batch_size))
        results = {}
        for name, (step, given, rest) in programs(config, parts, abstract).items():
            with fitting(f"the {name}"):
                results[name] = jax.eval_shape(step, *given, *rest)
    shown: Mapping[str, Preview] = results.get(PREVIEW, {})
    if unseen := [name for name, item in shown.items() if item.medium is None and not codec.medium.sheet_suffix]:
        raise UserError(
            f"config.objective.name={config.objective.name} previews {unseen[0]!r} of config.data.name={config.data.name}, "
            f"whose kind {codec.medium.name!r} has no picture.\nGive another of the two, or draw none: config.train.preview_every=0."
        )
    drawn_alike = "samples" in shown and not config_lib.difference(config, config_lib.change(config, EVERYWHERE))
    if parts.objective.generates and not drawn_alike:  # tracing takes a second
        check_sampling(config, codec, abstract, fitting)


def check_sampling(config: Config, codec: Codec, abstract: TrainState, fitting: Callable[[str], ContextManager]) -> None:
    """Traces `tinygen sample`, whose mesh and attention differ from the run's."""
    parts = build.parts(config_lib.change(config, EVERYWHERE), codec)
    size = parts.layout.padded(BATCH)
    with jax.set_mesh(parts.layout.mesh), fitting("tinygen sample"):
        cond = {name: leaf for name, leaf in batch_shapes(parts, size).items() if name in codec.condition_keys}
        jax.eval_shape(sample_step(parts, size, 0), abstract.ema, abstract.buffers, 0, cond)


@contextlib.contextmanager
def _together(config: Config, objective: Any, what: str) -> Iterator[None]:
    """Turns errors raised in the objective's own code, where it calls the model or uses its output, into a UserError that the two do
    not fit. Errors inside the model keep their traceback.
    """
    try:
        yield
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        frames = [(frame.f_globals.get("__name__", ""), frame, line) for frame, line in traceback.walk_tb(error.__traceback__)]
        module, frame, line = [each for each in frames if each[0].partition(".")[0] not in FOREIGN][-1]
        if module not in {each.__module__ for each in type(objective).__mro__}:
            raise
        names = " and ".join(f"config.{section}.name={config[section].name}" for section in ("data", "model", "objective"))
        where = f"{Path(frame.f_code.co_filename).name}, line {line}"
        said = next(iter(str(error).splitlines()), "")[:200]  # JAX writes more lines, about tracebacks
        reason = f"{type(error).__name__}: {said}{_hint(error)}"
        raise UserError(f"{names} do not go together: {what} fails in {where}.\n{reason}") from error


def _hint(error: Exception) -> str:
    """A hint at the interface of a denoiser, if the error looks like a violation of it."""
    fields = {field.name for field in dataclasses.fields(Output)}
    if isinstance(error, AttributeError) and error.name in fields and not isinstance(error.obj, Output):
        kind = "a bare array" if isinstance(error.obj, jax.Array) else repr(type(error.obj).__name__)
        return f". A denoiser returns tinygen.nn.layers.Output(pred), not {kind}"
    if isinstance(error, TypeError) and re.search(r"__call__\(\) missing .*'t'", str(error)):
        return ". The model is a denoiser, and this objective trains none"
    if isinstance(error, TypeError) and "__call__() " in str(error):
        return ". A denoiser's __call__ takes (x, t, *, cond, rngs=None), for MeanFlow (x, t, r, *, cond, rngs=None)"
    return ""
