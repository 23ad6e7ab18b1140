"""`tinygen check`: does everything that a run will do once, on a few examples, so that failures show before the run starts.

All files are written to a scratch folder beside the workdir, which is then deleted.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath
from rich.console import Console

from tinygen import build, optim
from tinygen import config as config_lib
from tinygen.checkpoints import checksums, store
from tinygen.checkpoints.saver import Saves
from tinygen.config import Config
from tinygen.distributed import processes
from tinygen.errors import UserError, duration, printable
from tinygen.profiling.footprint import bytes_held, placed, si
from tinygen.system import limits, runtime
from tinygen.train_step import TrainState
from tinygen.training.batches import calls, device_calls
from tinygen.training.held_out import held_out_size
from tinygen.training.nonfinite import Guard, Spikes
from tinygen.training.periodic import EVALUATION, PREVIEW, SCORES, Outcome, Periodic, cadences, make_periodic, programs
from tinygen.training.preflight import check_disk, check_memory, opened
from tinygen.training.setup import Run, check_same_data, open_record, set_up, show_data, state_at
from tinygen.training.step_log import StepLog, Taken
from tinygen.workdir.logger import RunLogger
from tinygen.workdir.scratch import beside

BATCHES = 2  # of the trial evaluation
FEW = 16  # samples of the trial scores
STEP_CURE = "config.batch_size, config.optim.accumulate, config.remat, config.scan or config.mesh.fsdp"
CURES = {
    "the training step": STEP_CURE,
    "the evaluation": "config.batch_size or config.mesh.fsdp",
    "the preview": "config.train.preview_num",
}


def main(config: Config, workdir: str) -> int:
    """Checks a run of `config` in `workdir`, one line per check. Raises UserError with the check's name if the run would fail."""
    runtime.listen(quiet=True)
    folder, checks = epath.Path(workdir), Checks()
    with checks("data and plan") as found:
        source, parts = opened(config, folder)
        check_same_data(folder, config, source)
        found += source.about()[:1]
    if not reached(folder):  # a resumed run has fixed its schedule, and warns at its start
        for line in optim.oddities(0, config.train.steps, 0, **build.schedule_keys(config)):
            checks.say(f"warning: {line}")
    with checks("room to write"), contextlib.ExitStack() as stack:
        place = stack.enter_context(beside(folder))
        leaving = stack.pop_all()
    with leaving, jax.set_mesh(parts.layout.mesh), Saves(place, config, source.codec) as saves:
        step, asides = rehearse(set_up(config, folder, source, parts, saves), checks)
        processes.wait_for_all("checked")
    checks.say(f"everything this run will do has been done once; {forecast(config, reached(folder), step, asides)}")
    return 0


class Checks:
    """Prints one line per check: name, seconds, findings. Errors raised inside a check become UserErrors with its name."""

    def __init__(self) -> None:
        self.console = Console(quiet=not processes.leads())
        self.aside = Console(stderr=True, quiet=not processes.leads())

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[list[str]]:
        found: list[str] = []
        began = time.perf_counter()
        try:
            with self.aside.status(name):
                yield found
        except UserError as error:
            raise UserError(f"check of {name}: {error}") from error
        except OSError as error:
            raise UserError(f"check of {name}: {error.filename or 'input/output'}: {error.strerror or error}") from error
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise UserError(f"check of {name}: out of device memory. Change {STEP_CURE}.") from error
        self.say(f"{name:<22} {time.perf_counter() - began:5.1f} s  {'; '.join(found)}")

    def say(self, line: str) -> None:
        self.console.print(printable(line.rstrip()), markup=False, highlight=False, soft_wrap=True)


def rehearse(run: Run, checks: Checks) -> tuple[float, dict[str, float]]:
    """Runs each branch of `train.run` once. Returns the seconds per step, and of each kind of periodic work by name."""
    with checks("compile the step") as found:
        step = run.program.compiled()
        abstract = run.program.abstract
        found += fits(step, "the training step", abstract, abstract, run.parts)
    jitted = compile_asides(run, checks)
    with checks("two calls of the step") as found:
        state, taken, seconds = take_two_calls(run, step)
        found.append(f"{seconds:.3g} s per step")
    state, size = save_and_restore(run, state, checks)
    num, few = len(run.source.splits["validation"]), run.parts.layout.padded(FEW)
    examples = min(num, run.config.train.eval_num or num)
    batches = min(examples, BATCHES * held_out_size(run.config, run.parts))
    small = config_lib.change(run.config, {"train": {"eval_num": batches}})
    works = make_periodic(small, run.source, run.parts, few=few, jitted=jitted)
    whole = {EVALUATION: examples / batches, SCORES: run.config.eval.num / few, PREVIEW: 1.0}  # the run's work in units of the trial's
    times = {}
    for work in works:
        if work.measures:
            with checks(work.name) as found:
                outcome, times[work.name] = tried(work, state)
                found.append(measured(work.name, outcome.values, few))
    with checks("preview and writers") as found, open_record(run, run.saves.workdir.root, bar=False) as record:
        write(run, record, taken)
        for work in works:
            if not work.measures:
                outcome, times[work.name] = tried(work, state)
                record.preview(1, outcome.media)
                found.append(f"{', '.join(outcome.media)} drawn in {times[work.name]:.3g} s")
        found.append("written: " + ", ".join(["metrics.jsonl", "TensorBoard", *filter(None, [run.config.train.writers])]))
    with checks("room for checkpoints") as found:
        check_disk(run.config, run.workdir, size)
        free = limits.free_bytes(run.workdir)
        found.append(f"{si(size, 1024)}B each" + (f", {si(free, 1024)}B free" if free is not None else ""))
    return seconds, {name: whole[name] * taken for name, taken in times.items()}


def forecast(config: Config, start: int, step: float, asides: Mapping[str, float]) -> str:
    """How long a step takes, and all steps after `start` with the periodic work between them.

    step: seconds per step
    asides: {name of periodic work: seconds per execution}
    """
    steps, due = range(start + 1, config.train.steps + 1), cadences(config)
    times = {name: sum(map(due[name], steps)) if name in due else 0 for name in (EVALUATION, PREVIEW, SCORES)}
    whole = len(steps) * step + sum(times[name] * asides.get(name, 0.0) for name in times)
    said = f"{times[EVALUATION]} evaluations and {times[PREVIEW]} previews"
    said += f" and {times[SCORES]} times scores" if times[SCORES] else ""
    return f"steps take about {step:.3g} s, the run's {len(steps):,} about {duration(whole)}, {said} included"


def take_two_calls(run: Run, step: Any) -> tuple[TrainState, list[Taken], float]:
    """(state after the run's first two calls of the compiled step, what they returned, seconds per step of the second call)."""
    state = run.program.initialise() if reached(run.workdir) else state_at(run, 0)[0]
    taken, seconds = [], 0.0
    with device_calls(run.fed, run.source, run.parts, 0, 0) as batches:
        for steps, batch in zip(list(calls(run.fed, 0))[:2], batches, strict=False):
            began = time.perf_counter()
            state, metrics = step(state, batch)
            jax.block_until_ready(state)
            seconds = (time.perf_counter() - began) / len(steps)
            taken.append(Taken(steps, jax.device_get(metrics), {}))
    return state, taken, seconds


def tried(work: Periodic, state: TrainState) -> tuple[Outcome, float]:
    """The outcome of the work, and its duration in seconds."""
    began = time.perf_counter()
    outcome = work.run(state) or Outcome()
    return outcome, time.perf_counter() - began


def measured(name: str, values: Mapping[str, float], few: int) -> str:
    """Summary of an evaluation (its losses) or of scores (all of them). few: samples that were scored"""
    if name == SCORES:
        return f"of {few} samples only: " + ", ".join(f"{name} {value:.4g}" for name, value in values.items())
    return "; ".join(f"{name} {value:.4g}" for name, value in values.items() if name.endswith("_loss") and "raw" not in name)


def write(run: Run, record: RunLogger, taken: Sequence[Taken]) -> None:
    """Writes the metrics of the steps and the overview of the data."""
    guard = Guard("stop", 0, 0, skipped=0, streak=0, attempt=0)
    log = StepLog(config=run.fed, objective=run.parts.objective, record=record, guard=guard, spikes=Spikes(0))
    for each in taken:
        log.write(each)
    show_data(record.workdir, run.source, run.config.train.preview_num)


def compile_asides(run: Run, checks: Checks) -> dict[str, Any]:
    """The jitted functions of the run's evaluation and preview by name, compiled for its shapes."""
    jitted = {}
    for name, (step, given, rest) in programs(run.config, run.parts, placed(run.program.abstract, run.parts.layout)).items():
        with checks(f"compile the {name}") as found:
            found += fits(step.lower(*given, *rest).compile(), f"the {name}", run.program.abstract, given, run.parts)
            jitted[name] = step
    return jitted


def fits(compiled: Any, what: str, state: TrainState, given: Any, parts: build.Parts) -> list[str]:
    """Reports the device memory that the state and a program need together. Raises UserError if a device has less.

    given: the part of the state that the program takes
    """
    plan = compiled.memory_analysis()
    if plan is None:  # this backend does not report it
        return []
    held = bytes_held(placed(state, parts.layout))
    batch = max(0, plan.argument_size_in_bytes - bytes_held(placed(given, parts.layout)))
    results = max(0, plan.output_size_in_bytes - plan.alias_size_in_bytes)
    needed = held + 2 * batch + plan.temp_size_in_bytes + results  # two: the next batch is prefetched
    check_memory(what, needed, CURES[what])
    return [f"needs {si(needed, 1024)}B of a device's {si(limits.device_bytes(), 1024)}B"]


def save_and_restore(run: Run, state: TrainState, checks: Checks) -> tuple[TrainState, int]:
    """(the state restored from a checkpoint, the checkpoint's size in bytes). Raises UserError unless it is bit-equal to `state`."""
    step, folder = int(state.step), run.saves.checkpoints.path()
    with checks("save") as found:
        run.saves.save(step, state, streak=0, pending=[], ready=lambda: None)
        run.saves.settle()
        run.saves.check()
        size = bytes_below(folder)
        found.append(f"{si(size, 1024)}B")
    with checks("restore") as found:
        if processes.leads() and (why := checksums.fault(run.saves.checkpoints / str(step))):
            raise UserError(f"{folder / str(step)} is damaged right after saving ({why}): is the disk faulty?")
        saved = shards(state)
        del state  # a run restores into empty devices
        restored = state_at(run, step)[0]
        if not all(same_bits(a, b) for a, b in zip(saved, shards(restored), strict=True)):
            raise UserError(f"the state restored from {folder} is not the one saved: is the disk faulty?")
        found.append(f"{len(jax.tree.leaves(restored))} arrays, the same bit for bit")
    return restored, size


def bytes_below(path: epath.Path) -> int:
    return sum(map(bytes_below, path.iterdir())) if path.is_dir() else path.stat().length


def shards(state: TrainState) -> list[np.ndarray]:
    """The shards of this process's devices, one replica of each, on the host."""
    return [np.array(shard.data) for leaf in jax.tree.leaves(state) for shard in leaf.addressable_shards if shard.replica_id == 0]


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def reached(workdir: epath.Path) -> int:
    """The step from which a run in the workdir resumes."""
    return max(store.saved_steps(workdir), default=0)
