"""What a run has before its first step, and a rehearsal of it: its program, its first state, a look at its data."""

import dataclasses
import json
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import jax
import numpy as np
from absl import logging
from etils import epath

from tinygen import build, media
from tinygen import config as config_lib
from tinygen.checkpoints import store
from tinygen.checkpoints.saver import Saves
from tinygen.config import Config
from tinygen.data.captions.embeddings import Embedded
from tinygen.data.captions.tokenizer import Text, normal
from tinygen.data.codec import Codec
from tinygen.data.source import DataSource
from tinygen.data.text.packing import shown
from tinygen.data.text.vocabulary import Vocabulary
from tinygen.distributed import processes
from tinygen.errors import UserError
from tinygen.nn.flops import flops, products_of
from tinygen.pretrained import latents
from tinygen.profiling import footprint
from tinygen.train_step import TrainState
from tinygen.training import program, warm_start
from tinygen.training.batches import bounded
from tinygen.training.program import Program
from tinygen.workdir import data_contents, files
from tinygen.workdir import manifest as rundir
from tinygen.workdir.logger import Record


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """What a run has before its first state, and a check of one as well.

    fed: the configuration with no more steps a call than the run's longest call has
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
    """The state of a checkpoint, or at step 0 that before the first step; and what is noted of weights that come from another run."""
    abstract, shardings = run.program.abstract, run.program.shardings
    if step:
        return store.restore(run.saves.manager, step, abstract, shardings), {}
    weights, noted = initial_weights(run.config, abstract, shardings) if run.config.init.ckpt else (None, {})
    return run.program.initialise(weights), noted


def begin_compiling(run: Run) -> Future[jax.stages.Compiled] | None:
    """Begins to compile the step, if any is to be taken, and sets what is knrun by now of the manifest."""
    saves, traced = run.saves, run.program.traced()
    operations = flops(products_of(traced.jaxpr))
    compiling = program.compiled_aside(traced) if saves.newest < run.config.train.steps else None
    saves.manifest = rundir.make_manifest(run.source.fingerprint, store.count(run.program.abstract.params), operations)
    return compiling


def compiled(run: Run, compiling: Future[jax.stages.Compiled] | None, record: Record) -> Callable[..., Any]:
    """The step, once it is compiled: what is described is what runs."""
    if compiling is None:
        return run.program.step
    with record.watchdog.waiting_for("compiling"):
        take_step = compiling.result()
    taken = footprint.measure(take_step, run.program.layout, run.program.abstract)
    run.saves.manifest |= taken.facts()
    logging.info("%s", "\n".join(taken.lines()))
    return take_step


def open_record(run: Run, folder: epath.Path, *, start: int = 0, attempt: int = 0, stall: float = 0.0) -> Record:
    """The run's record in a folder. The other arguments are described in `tinygen.workdir.logger.Record`."""
    config = run.config
    train, noun, settings = config.train, run.source.codec.kind, config_lib.flatten(config)
    return Record(folder, start, train.steps, config.batch_size, noun, train.writers, settings, attempt, stall)


def words_so_far(config: Config, folder: epath.Path) -> Text | Embedded | Vocabulary | None:
    """How a run has read its text, or the one that it begins from."""
    for step in reversed(store.saved_steps(folder)) if warm_start.reads(config) else ():
        try:
            return Codec.from_json(store.item(folder, step, "codec")).words
        except UserError:  # a torn checkpoint, which is set aside later
            continue
    return warm_start.words(config)


def initial_weights(config: Config, abstract: TrainState, shardings: TrainState) -> tuple[tuple[Any, Any], dict[str, Any]]:
    """(params, buffers) of the checkpoint that config.init names, and what is noted of them.

    The parameters are its averaged ones: what that run is sampled and judged by. Its moments belong to the raw ones.
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
    """Raises UserError where a run that has saved a checkpoint began on other data. It says what has changed."""
    if not store.saved_steps(workdir):
        return
    manifest = store.newest_item(workdir, "manifest")
    before = manifest.get("data_fingerprint") if isinstance(manifest, dict) else None
    if before == source.fingerprint:
        return
    stored = config_lib.from_tree(store.newest_item(workdir, "config"), f"the configuration in {workdir}")
    keys = [f"{key}: {a} -> {b}" for key, (a, b) in config_lib.difference(stored, config).items() if key.startswith("data.")]
    why = data_contents.difference(files.folder(workdir), before, source, keys)
    raise UserError(
        f"{workdir}: the data have changed since this run began ({why}).\nPut them back as they were, or give another --workdir."
    )


def show_data(workdir: files.Folder, source: DataSource, num: int) -> None:
    """Writes data.png, a grid of training images as the model sees them, and data.json, what is known of each, or data.txt, the first
    windows of text; what the samples of every preview are asked to show; and what the data consist of, once.
    """
    data_contents.keep(workdir, source)
    codec, examples = source.codec, source.splits["train"]
    prompts = codec.prompts(num)
    if isinstance(codec.text, Embedded):  # whose previews are of held-out examples
        held_out = source.splits["validation"]
        prompts = list(map(normal, held_out.captions(np.arange(num) % len(held_out))))
    if prompts and processes.leads():
        workdir.write("prompts.txt", "\n".join(prompts) + "\n")
    if codec.vocabulary is not None and processes.leads():
        windows = shown(codec.vocabulary, examples.take(np.arange(min(num, len(examples)))))
        workdir.write("data.txt", "\n\n".join(windows) + "\n")
    if codec.kind != "image" or not processes.leads():
        return
    indices = np.linspace(0, len(examples) - 1, min(num, len(examples))).astype(int)  # all over the split: it may be sorted by label
    batch = examples.take(indices)
    workdir.write("data.png", media.png(media.grid(latents.pictures(codec, batch["x"]))))
    rows = [{"index": index} for index in indices.tolist()]
    known = {"file": examples.names(indices), "caption": examples.captions(indices)}
    known["label"] = [codec.labels[label] for label in batch.get("label", [])]
    for what, values in known.items():
        for row, value in zip(rows, values, strict=False):
            row |= {what: value} if value else {}
    workdir.write("data.json", json.dumps(rows, indent=1) + "\n")
