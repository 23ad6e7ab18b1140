import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from etils import epath

import tinygen
from tinygen import build, check, media, train
from tinygen.errors import UserError
from tinygen.system import limits
from tinygen.workdir import scratch, writers

ALL = (
    "data and plan", "room to write", "compile the step", "compile the evaluation", "compile the preview", "two calls of the step", "save",
    "restore", "evaluation", "preview and writers", "room for checkpoints", "everything this run will do has been done once",
)  # fmt: skip


@pytest.fixture
def checked(tmp_path, capsys):
    """checked(config): the lines of its check; nothing is left beside the workdir, nor is the workdir made."""

    def run(config):
        before = sorted(tmp_path.iterdir())
        try:
            assert check.main(config, str(tmp_path / "run")) == 0
        finally:
            assert sorted(tmp_path.iterdir()) == before
        return capsys.readouterr().out.splitlines()

    return run


def test_a_line_a_check_is_printed_and_one_at_the_end(checked, curve):
    lines = checked(curve())
    assert [line.startswith(name) for line, name in zip(lines, ALL, strict=True)] == [True] * len(ALL)
    assert "48 examples to train on, 16 held out" in lines[0]
    assert "the same bit for bit" in lines[7]
    assert "curve drawn in" in lines[9]
    assert "TensorBoard" in lines[9]
    assert "the run's 20 about" in lines[11]
    assert "2 evaluations and 5 previews included" in lines[11]  # of steps 1, 2, 5, 10 and 20


def test_what_a_run_does_not_do_is_not_checked(checked, curve):
    names = [name for name in ALL if "preview" not in name and "evaluation" not in name]
    lines = checked(curve(train=dict(eval_every=0, preview_every=0)))
    assert len(lines) == len(names) + 1  # writers are there all the same
    assert "0 evaluations and 0 previews included" in lines[-1]


def test_several_steps_a_call_are_taken_as_the_loop_takes_them(checked, curve):
    assert len(checked(curve(train=dict(steps_per_call=4)))) == len(ALL)


@pytest.mark.slow
def test_a_run_that_has_begun_is_checked_beside_what_it_has(curve, tmp_path, capsys):
    train.main(curve(train=dict(steps=15)), str(tmp_path))
    before = sorted(tmp_path.rglob("*"))
    assert check.main(curve(), str(tmp_path)) == 0
    assert sorted(tmp_path.rglob("*")) == before
    assert "the run's 5 about" in capsys.readouterr().out


# Faults, each in the check that finds it


def test_a_picture_that_cannot_be_drawn_is_found(checked, curve, monkeypatch):
    monkeypatch.setattr(media.Curve, "overview", lambda self, items, columns: Path("no/such/font").read_text())
    with pytest.raises(UserError, match="check of preview and writers: no/such/font: No such file"):
        checked(curve())


class Refusing:
    """A service that lets nobody in."""

    def __init__(self, workdir, settings):
        raise UserError("service: who are you?")


def test_a_writer_that_cannot_begin_is_found(checked, curve, monkeypatch):
    monkeypatch.setitem(writers.WRITERS, "json", Refusing)  # a package of that name is there
    with pytest.raises(UserError, match=r"check of preview and writers: service: who are you\?"):
        checked(curve(train=dict(writers="json")))


def test_an_update_that_is_not_finite_is_found(checked, curve):
    with pytest.raises(UserError, match="check of preview and writers: step 1: the update"):
        checked(curve(optim=dict(lr=1e38, clip=0.0)))


def test_data_that_cannot_be_read_are_found(checked, curve, add_row):
    source = build.data_source(curve())

    class Torn:
        def __len__(self):
            return 64

        def take(self, indices):
            raise UserError("'7.png' can no longer be read")

    torn = dataclasses.replace(source, splits={**source.splits, "validation": Torn()})
    add_row("data", "toy_sine", lambda *, num: torn, dict(num=64))
    with pytest.raises(UserError, match=r"check of data and plan: validation split .*'7.png' can no longer be read"):
        checked(curve())


def test_a_program_that_a_device_has_no_room_for_is_found_before_it_runs(checked, curve, monkeypatch):
    monkeypatch.setattr(limits, "device_bytes", lambda: 1500)  # the state has less
    with pytest.raises(
        UserError, match=r"(?s)check of compile the step: the training step needs .*config.batch_size, config.optim.accumulate"
    ):
        checked(curve())


def test_a_workdir_that_cannot_be_made_is_found(curve, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"check of room to write: --workdir=.*file/run cannot be written: Not a directory"):
        check.main(curve(), str(tmp_path / "file" / "run"))


def test_a_disk_that_gives_back_other_bits_is_found():
    values = np.array([0.0, np.nan, 1.0], np.float32)
    assert check.same_bits(values, values.copy())
    assert not check.same_bits(values, np.array([-0.0, np.nan, 1.0], np.float32))
    assert not check.same_bits(values, values.astype(np.float64))


# What is left


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_check_that_is_interrupted_leaves_nothing(tmp_path, number, status):
    """The signal comes when the folder is there."""
    code = f"""
import os, sys
from tinygen import check
from tinygen.cli import main as cli
check.rehearse = lambda run, checks: os.kill(os.getpid(), {int(number)}) or __import__("time").sleep(30)
sys.exit(cli.main(sys.argv[1:]))
"""
    root = Path(tinygen.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code, "check", f"--config={root}/configs/fsdp_sine.py:smoke", f"--workdir={tmp_path}/run"],
        env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    assert "room to write" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_folder_lies_on_the_workdirs_file_system(tmp_path):
    with scratch.beside(epath.Path(tmp_path / "not" / "yet" / "run")) as place:
        assert place.parent == epath.Path(tmp_path)
    (tmp_path / "run").mkdir()
    with scratch.beside(epath.Path(tmp_path / "run")) as place:
        assert place.parent == epath.Path(tmp_path / "run")  # it may be the root of a file system
