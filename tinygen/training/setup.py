"""The set-up shared by `train` and `check`: the program, the initial state, the record, an overview of the data."""

import contextlib
import dataclasses
import json
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import jax
import numpy as np
from absl import logging
from etils import epath

from tinygen import build
from tinygen import config as config_lib
from tinygen.checkpoints import store
from tinygen.checkpoints.saver import Saves
from tinygen.config import Config
from tinygen.data.codec import Codec
from tinygen.data.source import DataSource
from tinygen.distributed import processes
from tinygen.errors import UserError
from tinygen.nn.flops import flops, products_of
from tinygen.pretrained import latents
from tinygen.profiling import footprint
from tinygen.train_step import TrainState
from tinygen.training import program
from tinygen.training.batches import bounded
from tinygen.training.program import Program
from tinygen.workdir import files, manifest
from tinygen.workdir.logger import RunLogger


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """What `train` and `check` have before the first state.

    fed: the configuration with steps_per_call lowered to the run's longest call
    """

    config: Config
    fed: Config
    source: DataSource
    parts: build.Parts
    program: Program
    workdir: epath.Path
    saves: Saves


def set_up(config: Config, workdir: epath.Path, source: DataSource, parts: build.Parts, saves: Saves) -> Run:
    fed = bounded(config)
    own = program.make_program(fed, parts)
    return Run(config=config, fed=fed, source=source, parts=parts, program=own, workdir=workdir, saves=saves)


def state_at(run: Run, step: int) -> tuple[TrainState, dict[str, Any]]:
    """(state of the checkpoint at `step`, or the initial state at step 0; facts about a warm start for the start event)."""
    abstract, shardings = run.program.abstract, run.program.shardings
    if step:
        return store.restore(run.saves.manager, step, abstract, shardings), {}
    weights, noted = initial_weights(run.config, abstract, shardings) if run.config.init.ckpt else (None, {})
    return run.program.initialise(weights), noted


def begin_compiling(run: Run) -> Future[jax.stages.Compiled] | None:
    """Starts compiling the step if any is left to take, and makes the manifest from what is known so far."""
    saves, traced = run.saves, run.program.traced()
    operations = flops(products_of(traced.jaxpr))
    compiling = program.compiled_aside(traced) if saves.newest < run.config.train.steps else None
    saves.manifest = manifest.make_manifest(run.source.fingerprint, store.count(run.program.abstract.params), operations)
    return compiling


def compiled(run: Run, compiling: Future[jax.stages.Compiled] | None, record: RunLogger) -> Callable[..., Any]:
    """Waits for the compiled step, and logs and records its footprint."""
    if compiling is None:
        return run.program.step
    with record.watchdog.waiting_for("compiling"):
        take_step = compiling.result()
    taken = footprint.measure(take_step, run.program.layout, run.program.abstract)
    run.saves.manifest |= taken.facts()
    logging.info("%s", "\n".join(taken.lines()))
    return take_step


def open_record(run: Run, folder: epath.Path, *, start: int = 0, attempt: int = 0, stall: float = 0.0, bar: bool = True) -> RunLogger:
    """The run's logger in a folder. For the other arguments see `tinygen.workdir.logger.RunLogger`."""
    config = run.config
    train, noun, settings = config.train, run.source.codec.medium.noun, config_lib.flatten(config)
    return RunLogger(folder, start, train.steps, config.batch_size, noun, train.writers, settings, attempt, stall, bar)


def codec_so_far(config: Config, folder: epath.Path | None) -> Codec | None:
    """The codec of the run in that folder, or of its warm start, if tokens must keep their meaning; otherwise None."""
    if not (config.text.tokens or "tokenizer" in config.data):
        return None
    if folder is not None:
        for step in reversed(store.saved_steps(folder)):
            with contextlib.suppress(UserError):  # a damaged checkpoint, which is set aside later
                return Codec.from_json(store.item(folder, step, "codec"))
    return store.find(config.init.ckpt, option="config.init.ckpt").codec if config.init.ckpt else None


def initial_weights(config: Config, abstract: TrainState, shardings: TrainState) -> tuple[tuple[Any, Any], dict[str, Any]]:
    """((params, buffers) of the checkpoint that config.init names, facts about them for the start event).

    The parameters are the averaged ones, with which that run is sampled and evaluated; its moments belong to the raw ones.
    """
    saved = store.find(config.init.ckpt, option="config.init.ckpt")
    wanted = {"ema": abstract.params, "buffers": abstract.buffers}
    places = {"ema": shardings.params, "buffers": shardings.buffers}
    noted: dict[str, Any] = {"ckpt": str(saved.workdir), "step": saved.step}
    if config.init.partial:
        tree, differences = saved.restore_fitting(wanted, places)
        taken, total = len(jax.tree.leaves(tree)), len(jax.tree.leaves(wanted))
        if not taken:
            raise UserError(f"config.init.ckpt={config.init.ckpt}: none of its arrays fits this model\n" + "\n".join(differences.lines(3)))
        logging.info("\n".join([f"{taken} of {total} arrays begin as those of {saved.state}", *differences.lines(50)]))
        noted |= {"taken": taken, "of": total, **{kind: names for kind, names in differences._asdict().items() if names}}
    else:
        tree = saved.restore_weights(
            wanted, places, "Give a model of the same shape, or take the arrays that fit: --config.init.partial=True"
        )
        logging.info("The weights begin as the averaged ones of %s", saved.state)
    return (tree.get("ema", {}), tree.get("buffers", {})), {"init": noted}


def check_same_data(workdir: epath.Path, config: Config, source: DataSource) -> None:
    """Raises UserError, with what has changed, if the workdir's run began on other data."""
    if not store.saved_steps(workdir):
        return
    found = store.newest_item(workdir, "manifest")
    before = found.get("data_fingerprint") if isinstance(found, dict) else None
    if before == source.fingerprint:
        return
    stored = config_lib.from_tree(store.newest_item(workdir, "config"), f"the configuration in {workdir}")
    keys = [f"{key}: {a} -> {b}" for key, (a, b) in config_lib.difference(stored, config).items() if key.startswith("data.")]
    why = manifest.data_difference(files.folder(workdir), before, source, keys)
    raise UserError(f"{workdir}: the data have changed since this run began ({why}).\nRestore them, or give another --workdir.")


def show_data(workdir: files.Folder, source: DataSource, num: int) -> None:
    """Writes an overview of the data: data.png or data.txt, training examples spread over the split; data.json, their files, captions
    and labels; prompts.txt, the captions of every preview; and the list of what the data consist of.
    """
    manifest.keep_contents(workdir, source)
    if not processes.leads():
        return
    codec, examples, held_out = source.codec, source.splits["train"], source.splits["validation"]
    if words := [word for each in codec.conditions for word in each.preview(num, held_out)[1]]:
        workdir.write("prompts.txt", "\n".join(words) + "\n")
    if not codec.medium.sheet_suffix:
        return
    indices = np.linspace(0, len(examples) - 1, min(num, len(examples))).astype(int)  # the split may be sorted by label
    batch = examples.take(indices)
    items = codec.medium.of_batch(batch, lambda batch: latents.to_medium(codec.domain, batch[codec.domain.key]))
    workdir.write(f"data.{codec.medium.sheet_suffix}", codec.medium.encode(codec.medium.overview(items)))
    labels = [codec.labels[label] for label in batch.get("label", [])] if codec.labels else []
    about = {"file": examples.names(indices), "caption": examples.captions(indices), "label": labels}
    known = {what: dict(zip(indices.tolist(), values, strict=False)) for what, values in about.items()}
    rows = [{"index": each, **{what: found[each] for what, found in known.items() if found.get(each)}} for each in indices.tolist()]
    workdir.write("data.json", json.dumps(rows, indent=1) + "\n")
