"""The loop: restore, step, log, preview, evaluate, save. It never asks which model, objective or data set it runs."""

import contextlib
import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging
from clu import parameter_overview
from etils import epath

from tinygen import build, checkpoint, footprint, media, processes, rundir, runtime
from tinygen import config as schema
from tinygen.config import Config
from tinygen.data.base import DataSource
from tinygen.errors import UserError
from tinygen.evaluate import make_evaluation
from tinygen.feed import bounded, calls, device_calls, due, preview_due
from tinygen.flops import flops, products
from tinygen.preflight import preflight
from tinygen.record import Record, finalise
from tinygen.sample import make_preview
from tinygen.state import TrainState, graph_of, init_state
from tinygen.writers import check_writers


class Pending(NamedTuple):
    """What a call gave, whose numbers are still on the device.

    metrics: of each step, [K], or of the only one
    extra: of the last step, from evaluation
    """

    steps: range
    metrics: Any
    extra: dict[str, float]


def main(config: Config, workdir: str, origin: Mapping[str, Any] | None = None) -> int:
    """Trains in `workdir` until config.train.steps, from its newest checkpoint if it has one. Returns the exit status.

    origin: noted with the start: the `recipe`, and the keys `changed` on the command line
    """
    runtime.listen()
    folder = epath.Path(workdir)
    source, parts = opened(config, folder)
    with runtime.own(folder) if processes.leads() else contextlib.nullcontext(), runtime.stop_on_signals() as stop:
        check_same_data(folder, source.fingerprint)
        config = rundir.claim_together(folder, config)
        state = run(config, folder, source, parts, stop, origin=origin)
        return stop.status if int(state.step) < config.train.steps else 0


def opened(config: Config, folder: epath.Path) -> tuple[DataSource, build.Parts]:
    """The data and the parts of a run in that folder. Raises UserError, before anything is written there, for what would end it later."""
    check_writers(config.train.writers)
    checkpoint.check_store(folder)
    if config.init.ckpt and not checkpoint.saved_steps(folder):
        checkpoint.find(config.init.ckpt, option="config.init.ckpt")  # before data are prepared
    with processes.lead_first("data"):
        source = build.data_source(config)
    processes.agree("the data", source.fingerprint)
    parts = build.parts(config, source.codec)
    build.check_batch_size(config, parts.layout)
    preflight(config, folder, source, parts)
    return source, parts


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
    fed = bounded(config)
    jitted, argument = build.train_call(fed, parts, graphdef, shardings)
    with jax.set_mesh(layout.mesh), checkpoint.make_manager(workdir, keep=train.keep, keep_every=train.keep_every) as manager:
        operations = flops(products(jitted, abstract, argument))
        manifest = rundir.make_manifest(source.fingerprint, checkpoint.count(abstract.params), operations)
        start = manager.latest_step() or 0
        processes.agree("the newest checkpoint", str(start))
        weights, weights_from = initial_weights(config, abstract, shardings) if config.init.ckpt and not start else (None, {})
        fresh = jax.jit(init, donate_argnums=0, out_shardings=shardings)
        state = checkpoint.restore(manager, start, abstract, shardings) if start else fresh(weights)
        evaluate = make_evaluation(config, source, parts, graphdef)
        preview = make_preview(config, source, parts, graphdef)
        skipped = int(state.guard["skipped"])
        with Record(workdir, start, steps, config.batch_size, source.codec.kind, train.writers, schema.flatten(config)) as record:
            batches = device_calls(fed, source, parts, int(state.guard["attempt"]), start, record.waiting)
            announce(workdir, state, start, steps, source)
            rundir.note(
                workdir, start, "start", device=f"{jax.device_count()} x {jax.devices()[0].device_kind}", **(origin or {}), **weights_from
            )
            show_data(workdir, source, train.preview_num)
            take_step = jitted
            if start < steps:
                take_step = footprint.compiled_step(jitted, layout, abstract, argument)  # once: what is described is what runs
                taken = footprint.measure(take_step, layout, abstract)
                manifest |= taken.facts()
                logging.info("%s", "\n".join(taken.lines()))
            if not start:
                rundir.describe_run(workdir, source.codec, manifest)
            pending: Pending | None = None
            signalled = processes.Largest(layout.mesh)
            for now in calls(fed, start):
                done, step = now[0] - 1, now[-1]
                try:
                    given = next(batches)
                except UserError as error:  # such as a file that has gone: what was learnt before is sound
                    flush(record, pending, skipped, train.log_every, steps)
                    # With several processes only this one knows, and the others cannot be made to save.
                    if done > (manager.latest_step() or 0) and processes.count() == 1:
                        checkpoint.save(manager, done, state, config, source.codec, manifest)
                    rundir.note(workdir, done, "stopped", reason=str(error))
                    raise
                state, metrics = take_step(state, given)
                # The previous call's numbers are read while this one runs: no accelerator ever waits for the host.
                flush(record, pending, skipped, train.log_every, steps)
                extra: dict[str, float] = {}
                if number := signalled(runtime.FAULT if record.later.failure() else int(stop)):
                    stop.number = number  # whichever process has it: all leave after the same call
                leaving = bool(number) or step == steps
                if due(step, train.eval_every) or (train.eval_every and step == steps):
                    with record.aside("evaluating", state):
                        extra = evaluate(state)
                pending = Pending(now, metrics, extra)
                if train.preview_every and (preview_due(step, train.preview_every) or step == steps):
                    with record.aside("drawing samples", state):
                        record.pictures(step, preview(state), source.codec)
                if due(step, train.checkpoint_every) or leaving:
                    flush(record, pending, skipped, train.log_every, steps)
                    pending = None
                    with record.aside("saving", state):
                        checkpoint.save(manager, step, state, config, source.codec, manifest)
                if done == start:
                    jax.block_until_ready(state)
                    record.restart_clock(step)
                record.advance(step)
                if after_step is not None:
                    after_step(step, state)
                if leaving:
                    break
            manager.wait_until_finished()
            if stop.number == runtime.FAULT:  # what was learnt is saved; closing the record raises the error where it arose
                rundir.note(workdir, int(state.step), "stopped", reason=str(record.later.failure() or "another process cannot write"))
        if stop.number == runtime.FAULT:
            raise UserError("another process could not write what a run leaves, and says why. The state is saved.")
        reached = int(state.step)
        if reached < steps:
            rundir.note(workdir, reached, "stopped", signal=stop.name)
            logging.info("Stopped by %s at step %d, which is saved. The same command goes on from there.", stop.name, reached)
        else:
            if reached > start:
                rundir.note(workdir, reached, "finished")
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


def flush(record: Record, pending: Pending | None, skipped: int, every: int, last: int) -> None:
    """Writes the numbers of those steps of a call that are due. Raises UserError if an update was not finite."""
    if pending is None:
        return
    steps, metrics, extra = pending
    left_out = np.ravel(jax.device_get(metrics["skipped"]))[: len(steps)] > skipped
    bad = steps[int(np.argmax(left_out))] if left_out.any() else None
    logged = [step for step in steps[: steps.index(bad) if bad else None] if step in (1, last) or due(step, every)]
    if extra and not bad:
        logged = sorted({*logged, steps[-1]})
    if not logged and not bad:
        return
    fetched = jax.device_get(metrics)

    def numbers(step: int) -> dict[str, float]:
        return finalise(jax.tree.map(lambda values: np.ravel(values)[step - steps[0]], fetched))

    if logged:
        record.scalars({step: numbers(step) | (extra if step == steps[-1] else {}) for step in logged}, steps[-1])
    if bad:
        loss, grad_norm = numbers(bad).get("loss", float("nan")), numbers(bad)["grad_norm"]
        raise UserError(
            f"step {bad}: the loss ({loss:g}) or its gradient ({grad_norm:g}) is not finite. "
            "Its update was left out; a checkpoint before it is good.\n"
            "Try config.precision=float32 if it is another, or in another --workdir a lower config.optim.lr or a longer warmup."
        )


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
    rundir.write_whole(workdir / "data.json", json.dumps(rows, indent=1) + "\n")


def check_same_data(workdir: epath.Path, fingerprint: str) -> None:
    """Raises UserError where a run that has saved a checkpoint began on other data."""
    stored = rundir.read_manifest(workdir) if checkpoint.saved_steps(workdir) else None
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
