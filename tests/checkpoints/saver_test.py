"""Runs whose checkpoints are damaged, or cannot be written."""

import errno
import json
import os
import resource
import shutil
import signal
import threading
import time

import pytest
from etils import epath

from tinygen import train
from tinygen.checkpoints import checksums, store
from tinygen.cli import main as cli
from tinygen.errors import UserError
from tinygen.training import periodic
from tinygen.workdir import logger
from tinygen.workdir.files import folder


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def largest(folder):
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def events_of(workdir):
    return [json.loads(line) for line in (workdir / "events.jsonl").read_text().splitlines()]


@pytest.fixture
def half(finished, tmp_path):
    """A copy of the shared run's folder, checkpoints at 10 and 20."""
    shutil.copytree(finished.workdir, tmp_path / "run")
    return tmp_path / "run"


def test_a_damaged_newest_checkpoint_is_set_aside_and_the_run_ends_as_if_nothing_had_been(half, finished, saved_arrays, metrics_of, caplog):
    expected, numbers = saved_arrays(half, 20), metrics_of(half)
    flip(largest(half / "checkpoints" / "20" / "state"))
    assert train.main(finished.config, str(half)) == 0
    assert (half / "checkpoints" / "set_aside" / "20-damaged" / "state").exists()
    assert [event["event"] for event in events_of(half)][-3:] == ["damaged", "start", "finished"]
    assert metrics_of(half) == numbers
    assert all((leaf == expected[name]).all() for name, leaf in saved_arrays(half, 20).items())


def test_where_all_checkpoints_are_damaged_nothing_is_moved_and_nothing_trained(half, finished):
    for step in (10, 20):
        largest(half / "checkpoints" / str(step) / "state").unlink()
    before = sorted(half.rglob("*"))
    with pytest.raises(UserError, match=r"no intact checkpoint \(20: .* is missing; 10: .* is missing\)") as refused:
        train.main(finished.config, str(half))
    assert len(str(refused.value).splitlines()) == 2
    assert [path for path in sorted(half.rglob("*")) if path.name != ".lock"] == [path for path in before if path.name != ".lock"]


def test_a_save_that_was_not_finished_is_named_and_set_aside(half, finished, saved_arrays):
    (half / "checkpoints" / "30.orbax-checkpoint-tmp" / "state").mkdir(parents=True)
    assert train.main(finished.config, str(half)) == 0
    assert [path.name for path in (half / "checkpoints" / "set_aside").iterdir()] == ["30-torn"]
    assert [event["folder"] for event in events_of(half) if event["event"] == "torn"] == ["30.orbax-checkpoint-tmp"]


def test_sampling_from_a_damaged_checkpoint_is_refused_and_names_the_file(half, capsys):
    damaged = largest(half / "checkpoints" / "20" / "state")
    flip(damaged)
    assert cli.main(["sample", f"--ckpt={half}", "--num=1"]) == 2
    said = capsys.readouterr().err
    assert f"{damaged.relative_to(half / 'checkpoints' / '20')} has changed since it was written" in said
    assert "Other checkpoints there: 10." in said
    assert cli.main(["sample", f"--ckpt={half}", "--num=1", "--step=10"]) == 0


def at_steps(monkeypatch, deeds):
    """Calls deeds[n] when step n of the next run has ended."""
    advance = logger.RunLogger.advance

    def acting(self, step):
        advance(self, step)
        deeds.get(step, lambda: None)()

    monkeypatch.setattr(logger.RunLogger, "advance", acting)


def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def wait_for(workdir, step):
    while not (workdir / "checkpoints" / str(step)).exists():
        time.sleep(0.01)


def limit_after(workdir, step, size):
    """The limit, once the checkpoint of a step is there."""
    wait_for(workdir, step)
    limit(size)


@pytest.fixture
def unlimited():
    yield
    limit(resource.RLIM_INFINITY)


@pytest.mark.slow
@pytest.mark.usefixtures("unlimited")
def test_saves_and_lines_without_room_cost_nothing_but_themselves(curve, tmp_path, monkeypatch, metrics_of, saved_arrays, caplog):
    def config():
        return curve(train=dict(steps=20, log_every=1, eval_every=10, preview_every=0, checkpoint_every=5, keep=9))

    train.main(config(), str(tmp_path / "straight"))
    workdir = tmp_path / "run"

    at_steps(monkeypatch, {6: lambda: limit_after(workdir, 5, 700), 12: lambda: limit(resource.RLIM_INFINITY)})
    assert train.main(config(), str(workdir)) == 0
    assert store.saved_steps(epath.Path(workdir)) == [5, 15, 20]
    assert [(event["event"], event["step"]) for event in events_of(workdir)] == [("start", 0), ("unsaved", 10), ("finished", 20)]
    assert metrics_of(workdir) == metrics_of(tmp_path / "straight")
    expected = saved_arrays(tmp_path / "straight", 20)
    assert all((leaf == expected[name]).all() for name, leaf in saved_arrays(workdir, 20).items())
    assert not checksums.unfinished(folder(workdir, "checkpoints"))


def test_a_save_whose_folder_cannot_be_made_leaves_no_thread_that_waits_for_it(curve, tmp_path, monkeypatch):
    config = curve(train=dict(steps=20, log_every=1, eval_every=0, preview_every=0, checkpoint_every=5, keep=9))
    make, read_only = os.mkdir, []

    def mkdir(path, *arguments, **options):
        if read_only and "orbax-checkpoint-tmp" in str(path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        make(path, *arguments, **options)

    monkeypatch.setattr(os, "mkdir", mkdir)  # no permission keeps root from making folders, and tests may run as root
    before = set(threading.enumerate())

    def protect():
        while not (tmp_path / "run" / "checkpoints" / "5").exists():
            time.sleep(0.01)
        read_only.append(True)

    at_steps(monkeypatch, {6: protect, 12: read_only.clear})
    assert train.main(config, str(tmp_path / "run")) == 0
    assert store.saved_steps(epath.Path(tmp_path / "run")) == [5, 15, 20]
    assert not [thread for thread in threading.enumerate() if thread not in before and not thread.daemon and thread.is_alive()]


def test_no_checkpoint_is_ahead_of_lines_that_wait(curve, tmp_path, monkeypatch, metrics_of):
    config = curve(train=dict(steps=20, log_every=1, eval_every=0, preview_every=0, checkpoint_every=5, keep=9))
    path, away = tmp_path / "run" / "metrics.jsonl", tmp_path / "away"

    def take_away():
        path.rename(away)
        path.mkdir()

    def put_back():
        path.rmdir()
        away.rename(path)

    at_steps(monkeypatch, {6: take_away, 12: put_back})
    assert train.main(config, str(tmp_path / "run")) == 0
    assert store.saved_steps(epath.Path(tmp_path / "run")) == [5, 15, 20]
    assert [line["step"] for line in metrics_of(tmp_path / "run")] == list(range(1, 21))


@pytest.mark.usefixtures("unlimited")
def test_where_the_last_save_fails_the_run_says_so_and_can_be_finished_later(curve, tmp_path, monkeypatch, metrics_of):
    config = curve(train=dict(steps=12, log_every=1, eval_every=0, preview_every=0, checkpoint_every=5))
    with monkeypatch.context() as patch:
        at_steps(patch, {11: lambda: limit_after(tmp_path / "run", 10, 2000)})
        with pytest.raises(UserError, match=r"step 12 could not be saved: File too large.*\nThe checkpoint of step 10 is intact"):
            train.main(config, str(tmp_path / "run"))
    limit(resource.RLIM_INFINITY)
    assert train.main(config, str(tmp_path / "run")) == 0
    assert store.saved_steps(epath.Path(tmp_path / "run")) == [10, 12]
    assert [line["step"] for line in metrics_of(tmp_path / "run")] == list(range(1, 13))


@pytest.mark.slow
def test_a_signal_during_an_evaluation_leaves_at_once_and_the_evaluation_is_made_up_for(curve, tmp_path, monkeypatch, metrics_of):
    config = curve(train=dict(steps=20, log_every=4, eval_every=10, preview_every=10, checkpoint_every=10))
    train.main(config, str(tmp_path / "straight"))
    workdir = tmp_path / "run"
    with monkeypatch.context() as patch:
        original = periodic.make_held_out

        def make(*arguments, **options):
            evaluated = original(*arguments, **options)
            return lambda *weights: [os.kill(os.getpid(), signal.SIGTERM), evaluated(*weights)][1]

        patch.setattr(periodic, "make_held_out", make)
        assert train.main(config, str(workdir)) == 143
    assert store.saved_steps(epath.Path(workdir)) == [10]
    assert "eval_loss" not in metrics_of(workdir)[-1]
    assert not (workdir / "samples" / "000010-curve.png").exists()
    assert train.main(config, str(workdir)) == 0
    assert metrics_of(workdir) == metrics_of(tmp_path / "straight")
    assert sorted(os.listdir(workdir / "samples")) == sorted(os.listdir(tmp_path / "straight" / "samples"))


def in_pieces(curve):
    """A run of 20 steps that saves every five."""
    return curve(train=dict(steps=20, log_every=1, eval_every=0, preview_every=0, checkpoint_every=5, keep=9))


@pytest.mark.parametrize("deed", ["moved", "deleted"])
def test_a_workdir_that_disappears_under_a_run_is_noticed_and_not_recreated(deed, curve, tmp_path, monkeypatch, caplog):
    workdir, elsewhere = tmp_path / "run", tmp_path / "elsewhere"

    def take():
        wait_for(workdir, 5)
        workdir.rename(elsewhere) if deed == "moved" else shutil.rmtree(workdir)

    with monkeypatch.context() as patch:
        at_steps(patch, {6: take})
        with pytest.raises(UserError, match="step 20 could not be saved: the folder was moved or deleted"):
            train.main(in_pieces(curve), str(workdir))
    assert not workdir.exists()
    assert "metrics.jsonl cannot be written: the folder was moved or deleted" in caplog.text
    if deed == "moved":
        assert store.saved_steps(epath.Path(elsewhere)) == [5]
        assert train.main(in_pieces(curve), str(elsewhere)) == 0
        assert store.saved_steps(epath.Path(elsewhere)) == [5, 10, 15, 20]


@pytest.mark.slow
def test_a_workdir_that_comes_back_misses_nothing(curve, tmp_path, monkeypatch, metrics_of):
    workdir = tmp_path / "run"
    assert train.main(in_pieces(curve), str(tmp_path / "straight")) == 0
    at_steps(monkeypatch, {11: lambda: workdir.rename(tmp_path / "away"), 17: lambda: (tmp_path / "away").rename(workdir)})
    assert train.main(in_pieces(curve), str(workdir)) == 0
    assert metrics_of(workdir) == metrics_of(tmp_path / "straight")
    assert 20 in store.saved_steps(epath.Path(workdir))


def test_another_folder_in_the_workdirs_place_is_left_alone(curve, tmp_path, monkeypatch):
    workdir = tmp_path / "run"

    def exchange():
        wait_for(workdir, 5)
        workdir.rename(tmp_path / "away")
        workdir.mkdir()

    at_steps(monkeypatch, {6: exchange})
    with pytest.raises(UserError, match="and replaced by another one"):
        train.main(in_pieces(curve), str(workdir))
    assert not list(workdir.iterdir())
