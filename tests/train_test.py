import contextlib
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from PIL import Image

import tinygen
from tinygen import build, train
from tinygen import config as config_lib
from tinygen.checkpoints import store
from tinygen.checkpoints.weights import load
from tinygen.data.source import ArrayExamples
from tinygen.errors import UserError
from tinygen.media import image
from tinygen.sampling.preview import make_preview
from tinygen.system import runtime
from tinygen.training import cadence
from tinygen.workdir import lock
from tinygen.workdir.files import folder
from tinygen.workdir.manifest import describe_run, make_manifest

STOP = 20


@pytest.fixture(scope="module")
def runs(tiny, tmp_path_factory, stop_during):
    """Two workdirs: `straight` went 40 steps at once; `resumed` was stopped by a SIGTERM during step 20 and started again."""
    folder = tmp_path_factory.mktemp("runs")
    straight, resumed = folder / "straight", folder / "resumed"
    config = dict(train=dict(steps=40, checkpoint_every=0))  # so that only the signal and the end save
    assert train.main(tiny(**config), str(straight)) == 0
    with pytest.MonkeyPatch.context() as patch:
        stop_during(patch, STOP)
        statuses = [train.main(tiny(**config), str(resumed))]
    at_stop = sorted(path.name for path in (resumed / "checkpoints").iterdir())
    statuses.append(train.main(tiny(**config), str(resumed)))
    return SimpleNamespace(straight=straight, resumed=resumed, statuses=statuses, at_stop=at_stop)


def steps_in(folder):
    return sorted(int(path.name) for path in (folder / "checkpoints").iterdir())


def test_a_stopped_run_saves_the_step_it_was_in_and_says_so_in_its_status(runs):
    assert runs.statuses == [128 + signal.SIGTERM, 0]
    assert runs.at_stop == [str(STOP)]


def test_stopping_and_resuming_changes_no_bit_of_the_state(runs, saved_arrays):
    straight, resumed = (saved_arrays(workdir, 40) for workdir in (runs.straight, runs.resumed))
    assert {name.split("/")[0] for name in straight} == {"step", "params", "ema", "opt_state", "guard"}
    assert straight["step"] == 40
    assert straight.keys() == resumed.keys()
    for name, array in straight.items():
        np.testing.assert_array_equal(resumed[name], array, err_msg=name, strict=True)


def test_stopping_and_resuming_changes_no_logged_number(runs, metrics_of):
    assert metrics_of(runs.resumed) == metrics_of(runs.straight)
    assert [line["step"] for line in metrics_of(runs.straight)] == [1, *range(5, 41, 5)]


def test_stopping_and_resuming_changes_no_preview(runs):
    straight, resumed = ({path.name: path.read_bytes() for path in (each / "samples").iterdir()} for each in (runs.straight, runs.resumed))
    assert sorted(straight) == [f"{step:06d}.png" for step in (1, 2, 5, 10, 20, 30, 40)]
    assert resumed == straight
    assert len(set(straight.values())) == len(straight)  # it learns


def test_a_workdir_explains_itself(finished):
    names = {path.name for path in finished.workdir.iterdir() if not path.name.startswith("events.out.tfevents")}
    files = {"config.json", "manifest.json", "metrics.jsonl", "events.jsonl", "data.png", "data.json", "data_files.json"}
    assert names == {*files, ".lock", "codec", "checkpoints", "samples"}
    assert config_lib.difference(config_lib.from_json((finished.workdir / "config.json").read_text()), finished.config) == {}
    source = build.data_source(finished.config)
    assert json.loads((finished.workdir / "codec" / "codec.json").read_text()) == json.loads(json.dumps(source.codec.to_json()))
    manifest = json.loads((finished.workdir / "manifest.json").read_text())
    assert manifest["data_fingerprint"] == source.fingerprint
    assert steps_in(finished.workdir) == [10, 20]
    items = {path.name for path in (finished.workdir / "checkpoints" / "20").iterdir() if path.is_dir()}
    assert items == {"state", "config", "codec", "manifest"}


def test_the_manifest_counts_the_parameters(finished, saved_arrays):
    arrays = saved_arrays(finished.workdir, 20)
    total = sum(array.size for name, array in arrays.items() if name.startswith("params/"))
    assert json.loads((finished.workdir / "manifest.json").read_text())["parameters"] == total > 1000


def test_every_logged_line_has_what_a_reader_plots(finished):
    lines = [json.loads(line) for line in (finished.workdir / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 5, 10, 15, 20]
    schedule = build.optimizer(finished.config)[1]
    for line in lines:
        expected = {"loss", "raw_loss", "lr", "grad_norm", "param_norm", "update_ratio", "skipped"}
        assert expected <= line.keys()
        assert all(math.isfinite(value) for value in line.values())
        assert line["skipped"] == 0
        assert min(line[name] for name in ("loss", "grad_norm", "param_norm", "update_ratio")) > 0
        # of the update that the line is about; compiled, it may differ by a rounding
        assert line["lr"] == pytest.approx(float(schedule(line["step"] - 1)), rel=1e-5)
    assert "steps_per_s" not in lines[0]  # the first step is compilation: it has no rate
    assert all(line["steps_per_s"] > 0 for line in lines[1:])
    assert all("eval_loss" not in line for line in lines[:-1])


def test_held_out_losses_of_raw_and_averaged_weights_are_logged(finished, metrics_of):
    last = metrics_of(finished.workdir)[-1]
    names = ["loss", "raw_loss", *(f"raw_loss_t{quarter}" for quarter in range(4))]
    assert {f"eval_{name}" for name in names} | {f"eval_ema_{name}" for name in names} == {key for key in last if key.startswith("eval_")}
    assert last["eval_loss"] != last["eval_ema_loss"]


def test_tensorboard_shows_the_same_numbers_and_the_grids(finished, metrics_of):
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util import tensor_util

    (path,) = finished.workdir.glob("events.out.tfevents*")
    values = [(event.step, value) for event in EventFileLoader(str(path)).Load() for value in event.summary.value]
    losses = {step: float(tensor_util.make_ndarray(value.tensor)) for step, value in values if value.tag == "loss"}
    assert losses == {line["step"]: np.float32(line["loss"]) for line in metrics_of(finished.workdir)}
    images = {step for step, value in values if value.metadata.plugin_data.plugin_name == "images" and value.tag == "samples"}
    assert images == {1, 2, 5, 10, 20}


def test_a_preview_is_a_grid_of_as_many_samples_as_asked_for(finished):
    picture = np.asarray(Image.open(finished.workdir / "samples" / "000020.png"))
    assert picture.shape == image.grid(np.zeros((8, 16, 16, 3), np.uint8), image.columns_for(6)).shape


def test_previews_are_drawn_with_the_averaged_weights(finished):
    source = build.data_source(finished.config)
    parts = build.parts(finished.config, source.codec)
    saved = store.find(finished.workdir)
    (ema, buffers), (raw, _) = (load(saved, parts, ema=averaged) for averaged in (True, False))
    with jax.set_mesh(parts.layout.mesh):
        preview = make_preview(finished.config, source, parts)
        shown = preview(SimpleNamespace(params=raw, ema=ema, buffers=buffers))["samples"]
    written = np.asarray(Image.open(finished.workdir / "samples" / "000020.png"))
    np.testing.assert_array_equal(shown.medium.overview(shown.items, shown.columns), written)


def test_previews_come_densely_at_first_then_every_so_many_steps():
    assert [step for step in range(1, 2001) if cadence.preview_due(step, 700)] == [1, 2, 5, 10, 20, 50, 100, 200, 500, 700, 1400]
    assert [step for step in range(1, 31) if cadence.preview_due(step, 8)] == [1, 2, 5, 8, 16, 24]


def test_zero_turns_previews_evaluations_and_regular_checkpoints_off(curve, tmp_path, metrics_of):
    config = curve(train=dict(steps=6, preview_every=0, eval_every=0, checkpoint_every=0))
    assert train.main(config, str(tmp_path / "run")) == 0
    assert not (tmp_path / "run" / "samples").exists()
    assert all("eval_loss" not in line for line in metrics_of(tmp_path / "run"))
    assert steps_in(tmp_path / "run") == [6]  # the last step is always saved


def test_a_run_goes_on_to_a_later_end_and_a_finished_one_is_left_alone(curve, tmp_path, metrics_of):
    workdir = tmp_path / "run"
    for steps, again in ((4, 6), (6, 6)):
        train.main(curve(train=dict(steps=steps, log_every=1)), str(workdir))
        before = (workdir / "metrics.jsonl").read_bytes()
        assert train.main(curve(train=dict(steps=again, log_every=1)), str(workdir)) == 0
        assert (workdir / "metrics.jsonl").read_bytes().startswith(before)
        assert [line["step"] for line in metrics_of(workdir)] == [1, 2, 3, 4, 5, 6]
    assert (workdir / "metrics.jsonl").read_bytes() == before
    assert steps_in(workdir) == [4, 6]


def test_lines_past_the_checkpoint_a_run_goes_on_from_are_dropped(curve, tmp_path, metrics_of):
    workdir = tmp_path / "run"
    train.main(curve(train=dict(steps=4, log_every=1)), str(workdir))
    expected = metrics_of(workdir)
    with (workdir / "metrics.jsonl").open("a") as file:  # as a run leaves them that was killed before it saved again
        file.write('{"step": 5, "loss": 9.0, "steps_per_s": 1.0}\n{"step": 6, "lo')
    train.main(curve(train=dict(steps=5, log_every=1)), str(workdir))
    lines = metrics_of(workdir)
    assert lines[:4] == expected
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert lines[4]["loss"] != 9.0


def test_an_update_that_is_not_finite_stops_the_run_names_the_step_and_is_not_saved(curve, tmp_path):
    config = curve(optim=dict(lr=1e30), guard=dict(policy="stop"), train=dict(steps=10, checkpoint_every=1))
    with pytest.raises(UserError, match=r"^step 1: the update \(inf of the parameters\) is not finite") as stopped:
        train.main(config, str(tmp_path / "run"))
    assert len(str(stopped.value).splitlines()) == 2
    assert steps_in(tmp_path / "run") == []


def test_a_batch_that_is_not_what_the_codec_promises_stops_the_run_before_its_first_step(curve, add_row, tmp_path):
    source = build.data_source(curve())
    wrong = {"x": np.linspace(0, 255, 64, dtype=np.float32)[:, None], "y": np.zeros((64, 1), np.float32)}
    broken = dataclasses.replace(source, splits={**source.splits, "train": ArrayExamples(wrong)})
    add_row("data", "toy_sine", lambda *, num: broken, dict(num=64))
    with pytest.raises(UserError, match=r"first batch: 'x' spans .*is its scale wrong"):
        train.main(curve(), str(tmp_path / "run"))
    assert not (tmp_path / "run" / "checkpoints").exists() or steps_in(tmp_path / "run") == []


def test_a_run_is_not_resumed_on_other_data(curve, add_row, tmp_path):
    train.main(curve(train=dict(steps=2)), str(tmp_path / "run"))
    other = dataclasses.replace(build.data_source(curve()), fingerprint="another sine")
    add_row("data", "toy_sine", lambda *, num: other, dict(num=64))
    said = r"\(their fingerprint was sine 64 and is another sine; data_files.json, which would list the earlier contents, is missing\)"
    with pytest.raises(UserError, match=f"the data have changed since this run began {said}"):
        train.main(curve(train=dict(steps=4)), str(tmp_path / "run"))
    assert steps_in(tmp_path / "run") == [2]


def test_a_workdir_whose_run_never_began_takes_other_data(curve, tmp_path):
    """As after an interrupted compilation: only the descriptions have been written."""
    workdir = tmp_path / "run"
    workdir.mkdir()
    source = build.data_source(curve())
    describe_run(folder(workdir), source.codec, make_manifest("other data", 1, 1))
    assert train.main(curve(train=dict(steps=2)), str(workdir)) == 0
    assert json.loads((workdir / "manifest.json").read_text())["data_fingerprint"] == source.fingerprint


def test_a_workdir_in_use_is_refused_until_it_is_free(curve, tmp_path):
    with lock.own(store.epath.Path(tmp_path / "run")), pytest.raises(UserError, match="another process is training there"):
        train.main(curve(), str(tmp_path / "run"))
    assert train.main(curve(train=dict(steps=1)), str(tmp_path / "run")) == 0


def test_the_first_signal_asks_and_only_a_second_ctrl_c_leaves_at_once(monkeypatch, capfd):
    left = []
    monkeypatch.setattr(os, "_exit", left.append)
    before = signal.getsignal(signal.SIGTERM)
    with runtime.stop_on_signals() as stop:
        assert not stop
        os.kill(os.getpid(), signal.SIGINT)
        assert (bool(stop), stop.name, stop.status, left) == (True, "SIGINT", 130, [])
        os.kill(os.getpid(), signal.SIGTERM)  # a scheduler may repeat itself: it is being obeyed
        assert left == []
        os.kill(os.getpid(), signal.SIGINT)
        assert left == [130]
    assert signal.getsignal(signal.SIGTERM) == before
    assert "SIGINT: saving after this step; Ctrl-C again quits at once." in capfd.readouterr().err


def test_a_ctrl_c_here_after_one_elsewhere_does_not_leave_at_once(monkeypatch):
    monkeypatch.setattr(os, "_exit", lambda status: pytest.fail("left"))
    with runtime.stop_on_signals() as stop:
        stop.number = signal.SIGINT  # another process of this run got it first, and all are saving
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.status == 130


@pytest.mark.slow
def test_a_process_that_is_told_to_stop_saves_leaves_with_143_and_can_be_followed(tiny, tmp_path, metrics_of):
    config, workdir = tiny(train=dict(steps=1_000_000, log_every=1)), tmp_path / "run"
    recipe = tmp_path / "recipe.py"
    recipe.write_text(f"from tinygen.config import base\n\ndef get_config(variant=''):\n    return base(**{config.to_dict()!r})\n")
    command = [sys.executable, "-c", "import sys; from tinygen.cli.main import main; sys.exit(main())"]
    process = subprocess.Popen(
        [*command, "train", f"--config={recipe}", f"--workdir={workdir}"],
        env={**os.environ, "PYTHONPATH": str(Path(tinygen.__file__).parents[1])}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        for _ in range(1200):  # two minutes at most
            if (workdir / "metrics.jsonl").exists() and (workdir / "metrics.jsonl").read_text():
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
                pytest.fail(process.stderr.read())
        with pytest.raises(UserError, match="another process is training there"):
            train.main(config, str(workdir))
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert process.returncode == 143
    step = steps_in(workdir)[-1]
    assert "SIGTERM: saving after this step" in said
    assert f"Stopped by SIGTERM at step {step}, which is saved. The same command resumes from there." in said
    assert "Traceback" not in said

    assert train.main(tiny(train=dict(steps=step + 2, log_every=1)), str(workdir)) == 0
    assert [line["step"] for line in metrics_of(workdir)] == list(range(1, step + 3))
