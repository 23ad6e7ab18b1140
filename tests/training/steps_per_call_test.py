"""Several steps a call: the same run as with one, cut where the loop has something to do."""

import contextlib
import gc
import itertools
import json
import threading

import jax
import numpy as np
import pytest

from tinygen import build, train
from tinygen import config as config_lib
from tinygen.cli import main as cli
from tinygen.errors import UserError
from tinygen.nn.flops import flops, products
from tinygen.profiling import footprint
from tinygen.training import batches as feed
from tinygen.training import program
from tinygen.workdir import logger

PATIENT = 60  # seconds that a test waits for a thread, at most


@pytest.fixture
def timeless(metrics_of, saved_arrays):
    """timeless(workdir, step): all that a run has learnt and told, but how long it took."""

    def read(workdir, step):
        pictures = {path.name: path.read_bytes() for path in (workdir / "samples").iterdir()}
        return metrics_of(workdir), sorted(path.name for path in (workdir / "checkpoints").iterdir()), pictures, saved_arrays(workdir, step)

    return read


def test_a_call_ends_where_the_loop_needs_the_state_and_is_no_longer_than_asked_for(curve):
    config = curve(train=dict(steps=30, steps_per_call=4, eval_every=9, preview_every=7, checkpoint_every=25))
    found = list(feed.calls(config, 0))
    assert list(itertools.chain(*found)) == list(range(1, 31))
    # the first alone; previews at 1, 2, 5, then every 7; evaluation every 9
    assert [steps[-1] for steps in found] == [1, 2, 5, 7, 9, 13, 14, 18, 21, 25, 27, 28, 30]
    assert [steps[-1] for steps in feed.calls(config, 10)] == [11, 14, 18, 21, 25, 27, 28, 30]


def test_with_one_step_a_call_every_step_is_a_call(curve):
    assert [list(steps) for steps in feed.calls(curve(train=dict(steps=5)), 2)] == [[3], [4], [5]]


def test_a_call_has_room_for_no_more_steps_than_its_longest_has(curve):
    train_keys = dict(steps=30, steps_per_call=1_000_000, eval_every=9, preview_every=0, checkpoint_every=0)
    assert feed.bounded(curve(train=train_keys)).train.steps_per_call == 9
    assert feed.bounded(curve(train=train_keys | dict(steps_per_call=4))).train.steps_per_call == 4
    assert feed.bounded(curve(train=train_keys | dict(eval_every=1))).train.steps_per_call == 1


def test_batches_of_a_call_stand_one_after_another_and_zeros_fill_it_up():
    batches = [{"x": np.full((2, 3), i, np.float32), "label": np.array([i, i], np.int32)} for i in (1, 2)]
    whole = feed.stacked(iter(batches), 3)
    assert {key: (array.shape, str(array.dtype)) for key, array in whole.items()} == {
        "x": ((3, 2, 3), "float32"),
        "label": ((3, 2), "int32"),
    }
    np.testing.assert_array_equal(whole["label"], [[1, 1], [2, 2], [0, 0]])


def same(one, other):
    assert one[:3] == other[:3]
    assert one[3].keys() == other[3].keys()
    for name, array in one[3].items():
        np.testing.assert_array_equal(other[3][name], array, err_msg=name, strict=True)


@pytest.mark.slow
def test_several_steps_a_call_change_no_bit_of_a_run(curve, machine_of, tmp_path, timeless):
    """On a mesh, with micro-batches, stopped and gone on with between two calls of the straight run."""
    machine_of(4)
    config = curve(optim=dict(accumulate=2), mesh=dict(fsdp=2), sharding=dict(min_size=8), train=dict(steps=23, log_every=3))
    several = config_lib.change(config, dict(train=dict(steps_per_call=4)))
    assert train.main(config, str(tmp_path / "one")) == 0
    assert train.main(several, str(tmp_path / "several")) == 0
    expected = timeless(tmp_path / "one", 23)
    assert [line["step"] for line in expected[0]] == [1, 3, 6, 9, 10, 12, 15, 18, 20, 21, 23]
    assert expected[1] == ["20", "23"]
    same(expected, timeless(tmp_path / "several", 23))
    for steps, size in ((13, 4), (23, 1)):  # how many a call takes may change when a run goes on
        train.main(config_lib.change(config, dict(train=dict(steps=steps, steps_per_call=size))), str(tmp_path / "resumed"))
    resumed = {line["step"]: line for line in timeless(tmp_path / "resumed", 23)[0]}
    losses = {line["step"]: line["loss"] for line in expected[0]}
    assert {step: resumed[step]["loss"] for step in losses} == losses


def test_a_signal_ends_a_run_after_the_call_in_which_it_comes(curve, tmp_path, stop_during, monkeypatch, timeless):
    config = curve(train=dict(steps=20, steps_per_call=4, eval_every=0, preview_every=0, checkpoint_every=0))
    with monkeypatch.context() as patch:
        stop_during(patch, 10)  # as step 9 is done
        assert train.main(config, str(tmp_path / "run")) == 143
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["13"]
    assert json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 10
    assert train.main(config, str(tmp_path / "run")) == 0


def test_an_update_that_is_not_finite_is_named_by_its_own_step(curve, tmp_path, metrics_of):
    settings = dict(steps=10, log_every=1, steps_per_call=6, preview_every=0, checkpoint_every=1000)
    config = curve(optim=dict(lr=1e30, schedule="constant"), guard=dict(policy="stop"), train=settings)
    with pytest.raises(UserError, match=r"^step 1: the update \(inf of the parameters\) is not finite"):
        train.main(config, str(tmp_path / "run"))
    assert [(line["step"], line.get("event")) for line in metrics_of(tmp_path / "run")] == [(1, "spoilt")]


def test_rates_are_of_all_steps_of_a_call(curve, tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(logger.RunLogger, "lines", lambda self, lines, reached: told.append((list(lines), reached)))
    train.main(curve(train=dict(steps=12, log_every=2, steps_per_call=5, eval_every=0, preview_every=0)), str(tmp_path / "run"))
    assert told == [([1], 1), ([2, 4, 6], 6), ([8, 10], 10), ([12], 12)]


def test_operations_and_the_state_are_described_a_step_whatever_a_call_takes(curve):
    found = []
    for size in (1, 4):
        config = curve(train=dict(steps_per_call=size))
        parts = build.parts(config, build.data_source(config).codec)
        made = program.make_program(config, parts)
        taken = footprint.measure(made.compiled(), parts.layout, made.abstract)
        with jax.set_mesh(parts.layout.mesh):
            found.append((flops(products(made.step, made.abstract, made.argument)), taken.program, taken.held))
    assert found[0] == found[1]
    assert found[0][0] > 0


@pytest.mark.parametrize("value", ["0", "-3", "2.5", "many"])
def test_a_number_of_steps_a_call_that_is_none_is_refused(value, tmp_path, capsys):
    assert (
        cli.main(["train", "--config=configs/fsdp_sine.py:smoke", f"--workdir={tmp_path}", f"--config.train.steps_per_call={value}"]) == 2
    )
    assert "steps_per_call" in capsys.readouterr().err


def reading_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith(("feed", "grain-prefetch"))]


@pytest.mark.parametrize("size", [1, 4])
def test_no_thread_reads_on_after_a_run_has_what_it_wants(curve, size):
    config = curve(train=dict(steps_per_call=size))
    source = build.data_source(config)
    parts = build.parts(config, source.codec)
    with feed.device_calls(config, source, parts, 0, 0) as batches:
        next(batches)
        began = reading_threads()
        assert {thread.name.partition("_")[0] for thread in began} >= {"feed", "grain-prefetch"}
    for thread in began:  # Grain's finish the batch that they are at
        thread.join(PATIENT)
    assert not {*began} & {*threading.enumerate()}


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_batches_that_are_garbage_collected_in_the_thread_that_reads_them_raise_nothing():
    """As happens where an exception has put them into a reference cycle and the collector runs in that thread."""
    dropped, collected = threading.Event(), threading.Event()

    def items():
        yield 1
        dropped.wait(PATIENT)
        gc.collect()
        collected.set()
        yield 2

    with feed._ahead(items(), contextlib.nullcontext) as batches:
        assert next(batches) == 1
        cycle = [batches]
        cycle.append(cycle)
        del batches, cycle
        dropped.set()
        assert collected.wait(PATIENT)
    gc.collect()
