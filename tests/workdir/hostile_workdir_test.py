"""A workdir from somebody else: nothing outside it is read or written, nothing waits for ever or fills the memory."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from confinement import confined

from tinygen import config
from tinygen.cli import main as cli

SECRET = "the content of a private file"
STEP = "checkpoints/3"
PATIENCE = 400  # seconds on a busy machine; what waits for ever takes longer
HUGE = 3 * 2**30  # bytes of a file that takes no room on the disk


class Stuck(BaseException):
    """The command waits for something that never comes. Nothing that handles errors may take it for one."""


@pytest.fixture
def run(released, tmp_path):
    """A copy of it, to be made hostile."""
    run = Path(shutil.copytree(released, tmp_path / "run"))
    (run / "samples").mkdir(exist_ok=True)
    return run


@pytest.fixture
def outside(tmp_path):
    """What belongs to the user, beside the run."""
    folder = tmp_path / "private"
    for name in ("secret", "0-torn/secret", "00001.png", "3/secret"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(SECRET)
    return folder


@pytest.fixture
def recipe(run, tmp_path):
    """The run's own recipe, of one step more."""
    tree = json.loads((run / "config.json").read_text())
    tree["train"] |= {"steps": 4, "preview_num": 2, "preview_every": 1}
    path = tmp_path / "recipe.py"
    path.write_text(f"from tinygen.config import base\n\ndef get_config(variant=''):\n    return base(**{tree!r})\n")
    config.load(str(path))
    return path


def listing(folder):
    """Every file below a folder with its content and what else a write or a deletion would change."""
    paths = sorted(folder.rglob("*"))
    return [(str(path), path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in paths]


@pytest.fixture
def tinygen(run, recipe, outside, caplog, capfd):
    """tinygen(command): its exit status and what it printed, having left the outside as it was and shown nothing of it."""
    words = {
        "train": ["train", f"--config={recipe}", f"--workdir={run}"],
        "check": ["check", f"--config={recipe}", f"--workdir={run}"],
        "sample": ["sample", f"--ckpt={run}", "--num=2", "--nfe=4"],
        "eval": ["eval", f"--ckpt={run}"],
        "eval-fid": ["eval-fid", f"--ckpt={run}", "--num=8", "--nfe=4", "--features=efflite0", "--force"],
        "report": ["report", f"--workdir={run}"],
        "compare": ["eval-fid", "--compare", str(run), str(run)],
    }

    def give_up(number, frame):
        raise Stuck

    def call(command):
        before, handler = listing(outside), signal.signal(signal.SIGALRM, give_up)
        signal.alarm(PATIENCE)
        try:
            with confined():
                status = cli.main(words[command])
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, handler)
        assert listing(outside) == before
        for path in run.rglob("*"):
            assert path.is_symlink() or not path.is_file() or path.stat().st_size > HUGE // 2 or SECRET.encode() not in path.read_bytes()
        printed = "".join(capfd.readouterr()) + caplog.text
        assert SECRET not in printed
        assert "Traceback" not in printed
        return status, printed

    return call


def link(name, to="secret"):
    """The run with a symbolic link to what belongs to the user in the place of a file or a folder."""

    def plant(run, outside):
        path = run / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(outside / to if to != "/dev/zero" else to)

    return plant


def pipe(name):
    """The run with a pipe in the place of a file, whose other end nobody opens."""

    def plant(run, outside):
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)

    return plant


def huge(name):
    """The run with a file of zeros that is larger than the memory that the command has."""

    def plant(run, outside):
        with (run / name).open("ab") as file:
            file.truncate(HUGE)

    return plant


def many_lines(name):
    """The run with a small file of more lines than anyone waits for."""
    return lambda run, outside: (run / name).write_text("{}\n" * 1_000_001)


def data_elsewhere(run, outside):
    """The run with a checkpoint whose data are to be made among the user's."""
    path = run / STEP / "config" / "metadata"
    data = dict(name="avatars", style="micah", num=40, size=8, label="", flip=False, data_dir=str(outside), overfit=0)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"data": data}))


REPORTED = {
    "a link for a text": (link("samples/000030.txt"), "samples/000030.txt cannot be shown: a symbolic link"),
    "a link for a picture": (link("samples/000030.png"), "samples/000030.png cannot be shown: a symbolic link"),
    "a link for data.png": (link("data.png"), "data.png cannot be shown: a symbolic link"),
    "a link for prompts.txt": (link("prompts.txt"), "prompts.txt cannot be read: a symbolic link"),
    "a link for data.json": (link("data.json"), "data.json cannot be read: a symbolic link"),
    "a link for config.json": (link("config.json"), "config.json cannot be read: a symbolic link"),
    "a link for manifest.json": (link("manifest.json"), "manifest.json cannot be read: a symbolic link"),
    "a link for eval.jsonl": (link("eval.jsonl"), "eval.jsonl cannot be read: a symbolic link"),
    "a link for samples": (link("samples", to="."), "samples cannot be read: a symbolic link"),
    "a link for checkpoints": (link("checkpoints", to="."), "checkpoints cannot be read: a symbolic link"),
    "a link for report.html": (link("report.html"), "report.html"),
    "a link for report.html.new": (link("report.html.new"), "report.html"),
    "a pipe for a text": (pipe("samples/000030.txt"), "samples/000030.txt cannot be shown: a pipe"),
    "a pipe for prompts.txt": (pipe("prompts.txt"), "prompts.txt cannot be read: a pipe"),
    "a pipe for metrics.jsonl": (pipe("metrics.jsonl"), "metrics.jsonl cannot be read: a pipe"),
    "a pipe for events.jsonl": (pipe("events.jsonl"), "events.jsonl cannot be read: a pipe"),
    "a device for a text": (link("samples/000030.txt", to="/dev/zero"), "samples/000030.txt cannot be shown: a symbolic link"),
    "a device for prompts.txt": (link("prompts.txt", to="/dev/zero"), "prompts.txt cannot be read: a symbolic link"),
    "an endless picture": (huge("samples/000030.png"), "samples/000030.png cannot be shown: larger than 64 MiB"),
    "an endless text": (huge("samples/000030.txt"), "report.html"),  # of which the page shows the beginning
    "a metrics.jsonl of many lines": (many_lines("metrics.jsonl"), "metrics.jsonl cannot be read: more than 1,000,000 lines"),
    "an endless config.json": (huge("config.json"), "config.json cannot be read: larger than 1 MiB"),
    "an endless metrics.jsonl": (huge("metrics.jsonl"), "metrics.jsonl"),
    "an endless data.json": (huge("data.json"), "data.json cannot be read: larger than 1 MiB"),
}


@pytest.mark.parametrize("name", REPORTED)
def test_a_report_shows_nothing_from_outside_and_names_what_it_left_out(name, run, outside, tinygen):
    plant, words = REPORTED[name]
    plant(run, outside)
    status, printed = tinygen("report")
    assert (status, words in printed) == (0, True), printed
    assert not (run / "report.html").is_symlink()


REFUSED = {
    ("train", "a link for .lock"): (link(".lock"), ".lock: a symbolic link, not a file"),
    ("train", "a pipe for .lock"): (pipe(".lock"), ".lock: a pipe, not a file"),
    ("train", "a link for config.json"): (link("config.json"), "config.json: a symbolic link"),
    ("train", "a link for metrics.jsonl"): (link("metrics.jsonl"), "metrics.jsonl: a symbolic link"),
    ("train", "an endless metrics.jsonl"): (huge("metrics.jsonl"), "metrics.jsonl: larger than 128 MiB"),
    ("train", "a metrics.jsonl of many lines"): (many_lines("metrics.jsonl"), "metrics.jsonl: more than 1,000,000 lines"),
    ("train", "a link for codec"): (link("codec", to="."), "codec: a symbolic link"),
    ("train", "a link for checkpoints"): (link("checkpoints", to="."), "checkpoints: a symbolic link"),
    ("train", "a link for a checkpoint"): (link(STEP, to="3"), "is a link, not a checkpoint's folder"),
    ("check", "a link for checkpoints"): (link("checkpoints", to="."), "checkpoints: a symbolic link"),
    ("sample", "a link for sampled"): (link("sampled", to="."), "sampled: a symbolic link"),
    ("sample", "a link for a checkpoint"): (link(STEP, to="3"), "is a link, not a checkpoint's folder"),
    ("sample", "a pipe in a checkpoint"): (pipe(f"{STEP}/config/metadata"), "config/metadata is neither a file nor a folder"),
    ("sample", "an endless config"): (huge(f"{STEP}/config/metadata"), "almost none of them on the disk"),
    ("sample", "an endless list of arrays"): (huge(f"{STEP}/state/_METADATA"), "almost none of them on the disk"),
    ("eval", "a link for eval.jsonl"): (link("eval.jsonl"), "eval.jsonl: a symbolic link"),
    ("eval", "a device in a checkpoint"): (link(f"{STEP}/manifest/metadata", to="/dev/zero"), "is neither a file nor a folder"),
    ("eval", "data to be made elsewhere"): (data_elsewhere, "a checkpoint is untrusted"),
    ("eval-fid", "data to be made elsewhere"): (data_elsewhere, "a checkpoint is untrusted"),
    ("eval-fid", "a link for a checkpoint"): (link(STEP, to="3"), "is a link, not a checkpoint's folder"),
    ("compare", "a link for eval.jsonl"): (link("eval.jsonl"), "eval.jsonl: a symbolic link"),
    ("compare", "a pipe for eval.jsonl"): (pipe("eval.jsonl"), "eval.jsonl: a pipe"),
}


@pytest.mark.parametrize(("command", "name"), REFUSED)
def test_what_would_lead_outside_or_never_end_is_refused_in_a_line(command, name, run, outside, tinygen):
    plant, words = REFUSED[command, name]
    plant(run, outside)
    status, printed = tinygen(command)
    assert (status, words in printed) == (2, True), printed
    assert len([line for line in printed.splitlines() if line.startswith("tinygen: ")]) == 1


@pytest.mark.slow
def test_a_run_continues_beside_links_and_does_not_write_to_their_targets(run, outside, tinygen):
    stale = ("config.json.new", "metrics.jsonl.new", "data.png.new", "manifest.json.new")  # names of temporary files that can be guessed
    for name in (*stale, "data.png", "data.json", "manifest.json", "prompts.txt", "events.jsonl", "best.json"):
        link(name)(run, outside)
    link("samples", to=".")(run, outside)
    link("checkpoints/set_aside", to=".")(run, outside)
    link("checkpoints/deleted", to=".")(run, outside)
    status, printed = tinygen("train")
    assert status == 0, printed
    assert "events.jsonl cannot be written: a symbolic link" in printed
    assert "samples/ cannot be written: a symbolic link" in printed
    assert [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()] == [1, 2, 3, 4]
    assert (run / "checkpoints" / "4").is_dir()


def test_what_was_torn_is_not_moved_through_a_link(run, outside, tinygen):
    link("checkpoints/set_aside", to=".")(run, outside)
    (run / "checkpoints" / "4.orbax-checkpoint-tmp").mkdir()
    status, printed = tinygen("train")
    assert (status, "set_aside: a symbolic link, not a folder" in printed) == (2, True), printed


def test_samples_replace_links_and_leave_their_targets(run, outside, tinygen):
    (run / "sampled" / "3").mkdir(parents=True)
    for name in ("grid.png", "00000.png", "samples.json", "00007.png"):
        (run / "sampled" / "3" / name).symlink_to(outside / "secret")
    status, printed = tinygen("sample")
    assert status == 0, printed
    assert sorted(path.name for path in (run / "sampled" / "3").iterdir()) == ["00000.png", "00001.png", "grid.png", "samples.json"]
    assert not any(path.is_symlink() for path in (run / "sampled" / "3").iterdir())


@pytest.mark.slow
def test_a_link_of_the_users_own_to_a_workdir_is_followed(run, outside, tinygen):
    moved = run.rename(run.with_name("elsewhere"))
    run.symlink_to(moved)
    assert tinygen("report")[0] == tinygen("sample")[0] == tinygen("train")[0] == 0
    assert (moved / "checkpoints" / "4").is_dir()
