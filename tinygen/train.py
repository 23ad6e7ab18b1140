"""The loop: restore, step, log, preview, evaluate, save. It never asks which model, objective or data set it runs."""

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from absl import logging
from clu import parameter_overview
from etils import epath

from tinygen import build, checkpoint, footprint, media, processes, runtime
from tinygen import config as schema
from tinygen.config import Config
from tinygen.data.base import DataSource, check_batch
from tinygen.errors import UserError
from tinygen.evaluate import make_evaluation
from tinygen.flops import flops, products
from tinygen.record import Record, finalise
from tinygen.sample import make_preview
from tinygen.state import TrainState, graph_of, init_state
from tinygen.writers import check_writers


def main(config: Config, workdir: str, origin: Mapping[str, Any] | None = None) -> int:
    """Trains in `workdir` until config.train.steps, from its newest checkpoint if it has one. Returns the exit status.

    origin: noted with the start: the `recipe`, and the keys `changed` on the command line
    """
    runtime.listen()
    folder = epath.Path(workdir)
    check_writers(config.train.writers)
    checkpoint.check_store(folder)
    if config.init.ckpt and not checkpoint.saved_steps(folder):
        checkpoint.find(config.init.ckpt, option="config.init.ckpt")  # before data are prepared
    with processes.lead_first("data"):
        source = build.data_source(config)
    processes.agree("the data", source.fingerprint)
    parts = build.parts(config, source.codec)
    build.check_batch_size(config, parts.layout)
    with runtime.own(folder) if processes.leads() else contextlib.nullcontext(), runtime.stop_on_signals() as stop:
        check_same_data(folder, source.fingerprint)
        config = checkpoint.claim_together(folder, config)
        state = run(config, folder, source, parts, stop, origin=origin)
        return stop.status if int(state.step) < config.train.steps else 0


def run(
    config: Config,
    workdir: epath.Path,
    source: DataSource,
    parts: build.Parts,
    stop: runtime.StopSignal,
    after_step: Callable[[int, TrainState], None] | None = None,
    origin: Mapping[str, Any] | None = None,
) -> TrainState:
    """Everything between a claimed workdir and the final state. `after_step(step, state)` is for those who measure the loop."""
    train, layout, steps = config.train, parts.layout, config.train.steps
    init = functools.partial(init_state, parts.create, build.optimizer(config)[0], config.seed)
    abstract = jax.eval_shape(init)
    shardings = layout.shardings(abstract)
    graphdef = graph_of(parts.create)
    jitted, batch_shapes = build.train_step(config, parts, graphdef, shardings), build.abstract_batch(source.codec, config.batch_size)
    with jax.set_mesh(layout.mesh), checkpoint.make_manager(workdir, keep=train.keep, keep_every=train.keep_every) as manager:
        operations = flops(products(jitted, abstract, batch_shapes))
        manifest = checkpoint.make_manifest(source.fingerprint, checkpoint.count(abstract.params), operations)
        start = manager.latest_step() or 0
        processes.agree("the newest checkpoint", str(start))
        given, weights_from = initial_weights(config, abstract, shardings) if config.init.ckpt and not start else (None, {})
        fresh = jax.jit(init, donate_argnums=0, out_shardings=shardings)
        state = checkpoint.restore(manager, start, abstract, shardings) if start else fresh(given)
        evaluate = make_evaluation(config, source, parts, graphdef)
        preview = make_preview(config, source, parts, graphdef)
        skipped = int(state.guard["skipped"])
        with Record(workdir, start, steps, config.batch_size, source.codec.kind, train.writers, schema.flatten(config)) as record:
            batches = device_batches(config, source, parts, int(state.guard["attempt"]), start, record.waiting)
            announce(workdir, state, start, steps, source)
            checkpoint.note(
                workdir, start, "start", device=f"{jax.device_count()} x {jax.devices()[0].device_kind}", **(origin or {}), **weights_from
            )
            show_data(workdir, source, train.preview_num)
            take_step = jitted
            if start < steps:
                take_step = footprint.compiled_step(jitted, layout, abstract, batch_shapes)  # once: what is described is what runs
                taken = footprint.measure(take_step, layout, abstract)
                manifest |= taken.facts()
                logging.info("%s", "\n".join(taken.lines()))
            if not start:
                checkpoint.describe_run(workdir, source.codec, manifest)
            pending: tuple[int, Any, dict[str, float]] | None = None
            signalled = processes.Largest(layout.mesh)
            for step in range(start + 1, steps + 1):
                try:
                    batch = next(batches)
                except UserError as error:  # such as a file that has gone: what was learnt before is sound
                    flush(record, pending, skipped, train.log_every, steps)
                    # With several processes only this one knows, and the others cannot be made to save.
                    if step - 1 > (manager.latest_step() or 0) and processes.count() == 1:
                        checkpoint.save(manager, step - 1, state, config, source.codec, manifest)
                    checkpoint.note(workdir, step - 1, "stopped", reason=str(error))
                    raise
                state, metrics = take_step(state, batch)
                # The previous step's numbers are read while this one runs: the device never waits for the host.
                flush(record, pending, skipped, train.log_every, steps)
                extra: dict[str, float] = {}
                if number := signalled(int(stop)):
                    stop.number = number  # whichever process got it: all leave after the same step
                leaving = bool(number) or step == steps
                if due(step, train.eval_every) or (train.eval_every and step == steps):
                    with record.aside("evaluating", state):
                        extra = evaluate(state)
                pending = (step, metrics, extra)
                if train.preview_every and (preview_due(step, train.preview_every) or step == steps):
                    with record.aside("drawing samples", state):
                        show(record, workdir, step, preview(state), source.codec)
                if due(step, train.checkpoint_every) or leaving:
                    flush(record, pending, skipped, train.log_every, steps)
                    pending = None
                    with record.aside("saving", state):
                        checkpoint.save(manager, step, state, config, source.codec, manifest)
                if step == start + 1:
                    jax.block_until_ready(state)
                    record.restart_clock(step)
                record.advance(step)
                if after_step is not None:
                    after_step(step, state)
                if leaving:
                    break
            manager.wait_until_finished()
        reached = int(state.step)
        if reached < steps:
            checkpoint.note(workdir, reached, "stopped", signal=stop.name)
            logging.info("Stopped by %s at step %d, which is saved. The same command goes on from there.", stop.name, reached)
        else:
            if reached > start:
                checkpoint.note(workdir, reached, "finished")
            after = f"Samples: tinygen sample --ckpt={workdir}" if hasattr(parts.objective, "sample") else f"To look: {workdir / 'samples'}"
            logging.info("Done: %d steps in %s. %s", reached, workdir, after)
    return state


def initial_weights(config: Config, abstract: TrainState, shardings: TrainState) -> tuple[tuple[Any, Any], dict[str, Any]]:
    """(params, buffers) of the checkpoint that config.init names, and what is noted of them.

    The parameters are its averaged ones: what that run is sampled and judged by. Its moments belong to the raw ones.
    """
    saved = checkpoint.find(config.init.ckpt, option="config.init.ckpt")
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


def device_batches(
    config: Config,
    source: DataSource,
    parts: build.Parts,
    attempt: int,
    start: int,
    waiting: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> Iterator[dict[str, jax.Array]]:
    """Training batches from number `start` on, each already on its way to the devices when it is asked for.

    The first is checked at once, before anything is compiled for it.

    waiting: entered while a batch is awaited
    """
    rows = parts.layout.rows(config.batch_size)
    reading = source.batches("train", config.batch_size, config.seed, attempt, start, rows if len(rows) < config.batch_size else None)
    first = next(reading)
    check_batch(first, source.codec)

    def ahead() -> Iterator[dict[str, jax.Array]]:
        placed = parts.layout.put(first, config.batch_size)
        while True:
            with waiting():
                batch = next(reading)
            current, placed = placed, parts.layout.put(batch, config.batch_size)
            yield current

    return ahead()


def flush(record: Record, pending: tuple[int, Any, dict[str, float]] | None, skipped: int, every: int, last: int) -> None:
    """Writes a step's numbers if they are due. Raises UserError if its update was not finite."""
    if pending is None:
        return
    step, metrics, extra = pending
    if int(metrics["skipped"]) > skipped:
        numbers = finalise(metrics)
        raise UserError(
            f"step {step}: the loss ({numbers.get('loss', float('nan')):g}) or its gradient ({numbers['grad_norm']:g}) is not finite. "
            "Its update was left out; the last checkpoint is good.\n"
            "Try config.precision=float32, or in another --workdir a lower config.optim.lr or a longer warmup."
        )
    if step == 1 or step == last or due(step, every) or extra:
        record.scalars(step, finalise(metrics) | extra)


def show(record: Record, workdir: epath.Path, step: int, shown: Mapping[str, media.Media], codec: Any) -> None:
    """Writes a preview's pictures: `samples/<step>.png`, and `<step>-<name>.png` for what is not called samples. Process 0 does."""
    if not processes.leads():
        return
    folder = workdir / "samples"
    folder.mkdir(exist_ok=True)
    for name, item in shown.items():
        picture = media.picture(item, codec)
        media.save_png(folder / (f"{step:06d}.png" if name == "samples" else f"{step:06d}-{name}.png"), picture)
        record.image(step, name, picture)


def show_data(workdir: epath.Path, source: DataSource, num: int) -> None:
    """Writes data.png, a grid of training images as the model sees them, and data.json, what is known of each."""
    codec, examples = source.codec, source.splits["train"]
    if codec.kind != "image" or not processes.leads():
        return
    indices = np.linspace(0, len(examples) - 1, min(num, len(examples))).astype(int)  # all over the split: it may be sorted by label
    batch = examples.take(indices)
    media.save_png(workdir / "data.png", media.grid(codec.decode(batch["x"])))
    rows = [{"caption": caption} if caption else {} for caption in examples.captions(indices)]
    for row, label in zip(rows, batch.get("label", []), strict=False):
        row["label"] = codec.labels[label]
    checkpoint.write_whole(workdir / "data.json", json.dumps(rows, indent=1) + "\n")


def due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def preview_due(step: int, every: int) -> bool:
    """Often at first, when most changes: 1, 2, 5 x 10^k; then every `every` steps."""
    return due(step, every) or (step < every and str(step).rstrip("0") in ("1", "2", "5"))


def check_same_data(workdir: epath.Path, fingerprint: str) -> None:
    """Raises UserError where a run that has saved a checkpoint began on other data."""
    stored = checkpoint.read_manifest(workdir) if checkpoint.saved_steps(workdir) else None
    if stored is not None and stored["data_fingerprint"] != fingerprint:
        raise UserError(
            f"{workdir}: the data have changed since this run began ({stored['data_fingerprint']} -> {fingerprint}).\n"
            "Put them back as they were, or give another --workdir."
        )


def announce(workdir: epath.Path, state: TrainState, start: int, steps: int, source: DataSource) -> None:
    """What will run, once, at the start."""
    for line in source.about():
        logging.info("%s", line)
    logging.info("\n%s", parameter_overview.get_parameter_overview(state.params, include_stats=False))
    devices = jax.devices()
    where = f"{len(devices)} x {devices[0].device_kind}" + (f" of {processes.count()} processes" if processes.count() > 1 else "")
    begun = f"going on from step {start}" if start else "from the beginning"
    logging.info("%s parameters on %s, %s to step %d in %s", f"{checkpoint.count(state.params):,}", where, begun, steps, workdir)
