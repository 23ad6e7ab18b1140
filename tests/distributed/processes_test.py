"""Several processes on this machine, joined by JAX's own runtime. Each test starts real ones; they meet on a free port."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tinygen.cli import main as cli
from tinygen.config import cluster
from tinygen.distributed import processes
from tinygen.distributed.mesh import make_mesh
from tinygen.errors import UserError

ROOT = Path(__file__).parents[2]

LIMIT = 240  # seconds, after which a test counts processes as hanging
PROGRAM = "import sys; from tinygen.cli import main as cli; {before}; sys.exit(cli.main(sys.argv[1:]))"


@pytest.fixture
def start(tmp_path):
    """start(index, *arguments, devices=4, before=""): process `index` of two, or the only one; `before` is run in it before the command.

    slurm: the variables by which Slurm tells a process where it is, in place of an address
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    started, logs = [], []

    def begin(index, *arguments, flag="--config.distributed", devices=4, before="pass", of=2, slurm=None):
        flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"  # the last one counts
        log = (tmp_path / f"{len(started)}.log").open("w+")
        logs.append(log)
        where = [f"{flag}={'auto' if slurm else f'{address},{of},{index}'}"] if of > 1 else []
        command = [sys.executable, "-c", PROGRAM.format(before=before), *arguments, *where]
        environment = {**os.environ, "XLA_FLAGS": flags, **(slurm or {})}
        child = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT)
        started.append(child)

        def wait():
            status = child.wait(LIMIT)
            log.seek(0)
            return SimpleNamespace(status=status, said=log.read())

        return SimpleNamespace(wait=wait, kill=lambda number: child.send_signal(number), running=lambda: child.poll() is None)

    yield begin
    for child in started:
        child.kill()
        child.wait()
    for log in logs:
        log.close()


def quick(workdir, recipe="dit_pixel_faces", **settings):
    settings = dict(eval_every=0, preview_every=0, checkpoint_every=0, log_every=1, preview_num=4) | settings
    changes = [f"--config.train.{key}={value}" for key, value in settings.items()]
    return ["train", f"--config={ROOT / 'configs' / recipe}.py:smoke", f"--workdir={workdir}", *changes]


def lines(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


SMALL = [f"--config.model.{key}={value}" for key, value in dict(patch=8, width=8, depth=1, heads=2, mlp_multiple=8).items()]

FACES = [*SMALL, "--config.objective.nfe=4"]
CASES = {  # recipe, mesh, devices of a process, settings
    "split": ("fsdp_sine", (1, 8, 1), 4, []),
    "all three": ("dit_pixel_faces", (2, 2, 2), 4, FACES),
    "one batch": ("dit_pixel_faces", (1, 1, 2), 1, FACES),  # tensor joins the processes: both read the whole batch
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_processes_train_like_one_and_a_single_process_with_eight_devices_resumes_the_run(start, tmp_path, case):
    (recipe, sizes, devices, changes), settings = CASES[case], dict(preview_every=12, eval_every=12)
    axes = [f"--config.mesh.{axis}={size}" for axis, size in zip(("data", "fsdp", "tensor"), sizes, strict=True)]
    changes = [*changes, "--config.optim.decay_steps=13", "--config.sharding.min_size=64"]
    command = [*quick(tmp_path / "two", recipe, steps=12, **settings), *changes]
    both = [start(index, *command, *axes, devices=devices) for index in (0, 1)]
    alone = start(0, *quick(tmp_path / "one", recipe, steps=13, **settings), *changes, of=1, devices=1)
    ended = [process.wait() for process in (*both, alone)]
    assert [each.status for each in ended] == [0, 0, 0], "\n".join(each.said for each in ended)
    assert "Done: 12 steps" in ended[0].said
    assert "Done" not in ended[1].said  # the log is process 0's
    assert len(lines(tmp_path / "two")) == 12  # and so is every file
    assert json.loads((tmp_path / "two" / "manifest.json").read_text())["process_count"] == 2
    assert any((tmp_path / "two" / "samples").glob("000012*.png"))
    assert cli.main([*command, "--config.mesh.data=8", "--config.mesh.fsdp=1", "--config.mesh.tensor=1", "--config.train.steps=13"]) == 0
    one, two = lines(tmp_path / "one"), lines(tmp_path / "two")
    for name in ("loss", "grad_norm"):
        np.testing.assert_allclose([line[name] for line in two], [line[name] for line in one], rtol=1e-5)
    assert two[11]["eval_ema_loss"] == pytest.approx(one[11]["eval_ema_loss"], rel=1e-5)


@pytest.mark.slow
def test_two_processes_score_samples_as_one_does_and_leave_one_line(start, finished, classifier, tmp_path, monkeypatch):
    runs = [shutil.copytree(finished.workdir, tmp_path / name) for name in ("one", "two")]
    words = ["--ref=validation", f"--features={classifier}", "--num=24", "--scores=fd,kid", "--batch_size=8"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cli.main(["eval-fid", f"--ckpt={runs[0]}", *words]) == 0
    both = [start(index, "eval-fid", f"--ckpt={runs[1]}", *words, flag="--distributed") for index in (0, 1)]
    assert [process.wait().status for process in both] == [0, 0]
    (one,), (two,) = (list(map(json.loads, (run / "eval.jsonl").read_text().splitlines())) for run in runs)
    assert one["fingerprint"] == two["fingerprint"]
    for score in ("fd_toy", "kd_toy"):
        assert two[score] == pytest.approx(one[score], rel=1e-3)


@pytest.mark.slow
def test_auto_joins_the_tasks_of_a_slurm_job(start, tmp_path):
    job = dict(SLURM_JOB_ID=str(os.getpid()), SLURM_STEP_NODELIST="127.0.0.1", SLURM_NTASKS="2")  # JAX's port follows from the job's number
    tasks = [job | dict(SLURM_PROCID=str(index), SLURM_LOCALID=str(index)) for index in (0, 1)]
    both = [start(index, *quick(tmp_path / "run", "fsdp_sine", steps=2), devices=1, slurm=task) for index, task in enumerate(tasks)]
    ended = [process.wait() for process in both]
    assert [each.status for each in ended] == [0, 0], "\n".join(each.said for each in ended)
    assert "on 2 x cpu of 2 processes" in ended[0].said


@pytest.mark.slow
def test_two_processes_are_rolled_back_together_and_end_together(start, tmp_path):
    """One update of such a size, and from then on nothing is finite."""
    diverging = ["--config.optim.lr=1e15", "--config.optim.schedule=constant", "--config.guard.skips=1", "--config.guard.rollbacks=2"]
    command = [*quick(tmp_path / "run", "fsdp_sine", steps=20), "--config.train.keep_every=1", *diverging]
    ended = [each.wait() for each in [start(index, *command, devices=1) for index in (0, 1)]]
    assert [each.status for each in ended] == [2, 2], "\n".join(each.said for each in ended)
    assert "after 2 rollbacks" in ended[0].said
    assert [line["step"] for line in lines(tmp_path / "run") if line.get("event") == "rollback"] == [3, 3]


@pytest.mark.slow
def test_a_signal_to_one_process_stops_both_after_the_same_step_from_which_they_go_on(start, tmp_path):
    fixed = [*SMALL, "--config.optim.decay_steps=100"]
    both = [start(index, *quick(tmp_path / "run", steps=1_000_000), *fixed) for index in (0, 1)]
    reached(tmp_path / "run", both, 2)
    both[1].kill(signal.SIGTERM)
    assert [process.wait().status for process in both] == [143, 143]
    step = lines(tmp_path / "run")[-1]["step"]
    assert (tmp_path / "run" / "checkpoints" / str(step)).exists()
    both = [start(index, *quick(tmp_path / "run", steps=step + 2), *fixed) for index in (0, 1)]
    ended = [process.wait() for process in both]
    assert [each.status for each in ended] == [0, 0], "\n".join(each.said for each in ended)
    assert [line["step"] for line in lines(tmp_path / "run")] == list(range(1, step + 3))


def reached(workdir, running, step):
    """Waits until the run has written `step` lines."""
    until = time.monotonic() + LIMIT
    while not (workdir / "metrics.jsonl").exists() or len((workdir / "metrics.jsonl").read_text().splitlines()) < step:
        assert time.monotonic() < until
        assert all(process.running() for process in running), running[0].wait().said
        time.sleep(0.1)


FAILING = """
from tinygen.data import examples
from tinygen.errors import UserError
take = examples.ArrayExamples.take
def failing(self, indices, calls=[]):
    calls.append(1)
    if len(calls) > 9: raise UserError("picture 7 has gone")
    return take(self, indices)
examples.ArrayExamples.take = failing
"""


@pytest.mark.slow
def test_a_process_whose_data_fail_takes_the_others_with_it_and_they_say_why(start, tmp_path):
    command = [*quick(tmp_path / "run", steps=1_000_000), *SMALL]
    both = [start(0, *command), start(1, *command, before=f"exec({FAILING!r})")]
    ended = [process.wait() for process in both]
    assert [each.status for each in ended] == [2, 2], "\n".join(each.said for each in ended)
    assert "tinygen: picture 7 has gone" in ended[1].said
    assert "tinygen: process 1 of 2 failed: picture 7 has gone" in ended[0].said


@pytest.mark.slow
def test_a_killed_process_is_missed_within_the_time_given(start, tmp_path):
    both = [start(index, *quick(tmp_path / "run", steps=1_000_000), *SMALL, "--config.distributed_timeout=15") for index in (0, 1)]
    reached(tmp_path / "run", both, 1)
    both[1].kill(signal.SIGKILL)
    ended = both[0].wait()
    assert ended.status == 1, ended.said
    assert "lost another process" in ended.said or "lost process 1: no heartbeat for 15 s" in ended.said
    assert "Traceback (most recent call last)" not in ended.said
    assert ended.said.count("tinygen: ") == 1


@pytest.mark.slow
def test_processes_with_different_settings_refuse_and_name_them(start, tmp_path):
    command = quick(tmp_path / "run", steps=5)
    both = [start(0, *command), start(1, *command, "--config.optim.lr=0.5")]
    ended = [process.wait() for process in both]
    assert [each.status for each in ended] == [2, 2]
    assert "different configurations (process 0 -> this one: optim.lr: 0.002 -> 0.5)" in ended[1].said
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.slow
def test_processes_with_other_flags_refuse(start, tmp_path):
    both = [start(index, "sample", f"--ckpt={tmp_path}", f"--seed={index}", flag="--distributed") for index in (0, 1)]
    ended = [process.wait() for process in both]
    assert [each.status for each in ended] == [2, 2]
    assert re.search("started differently: the command is .*--seed=0 .* on process 0, .*--seed=1 .* on 1", ended[1].said)


@pytest.mark.slow
def test_processes_with_other_folders_refuse_and_name_theirs(start, tmp_path):
    command, other = ([*quick(tmp_path / name, steps=5), *SMALL] for name in ("run", "other"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{}")
    ended = [process.wait() for process in (start(0, *command), start(1, *other))]
    assert [each.status for each in ended] == [2, 2]
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    assert f"--workdir={tmp_path / 'other'} is not the folder of process 0" in ended[1].said


@pytest.mark.slow
def test_a_process_told_of_another_number_of_them_refuses(start, tmp_path):
    command = quick(tmp_path / "run", steps=5)
    both = [start(0, *command), start(1, *command, of=3)]
    ended = [process.wait() for process in both]
    assert [each.status for each in ended] == [2, 2]
    assert "the number of processes is 2 on process 0, 3 on 1" in ended[1].said


def test_a_process_that_waits_in_vain_says_so_within_the_time_given(start, tmp_path):
    late = start(1, *quick(tmp_path / "run", steps=5), "--config.distributed_timeout=2")
    ended = late.wait()
    assert ended.status == 2
    assert "not all processes connected within 2 s" in ended.said
    assert "Traceback" not in ended.said


def test_without_a_cluster_auto_says_what_to_do(start, tmp_path):
    child = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before="pass"), *quick(tmp_path / "run"), "--config.distributed=auto"],
        capture_output=True, text=True, timeout=LIMIT, cwd=ROOT,
    )  # fmt: skip
    assert child.returncode == 2
    assert "JAX finds no cluster here" in child.stderr
    assert len(child.stderr.strip().splitlines()) <= 2


@pytest.mark.parametrize("distributed", ["here", "host:1,2", "host,2,0", "host:99999,2,0", "host:1,2,0,5", "a b:1,2,0"])
def test_a_place_that_is_none_is_refused_with_an_example(distributed):
    with pytest.raises(UserError, match=r"neither auto nor HOST:PORT,PROCESSES,PROCESS, for example 10.0.0.1:9876,4,0"):
        cluster.parse(distributed)


def test_processes_are_numbered_from_zero():
    assert cluster.parse("10.0.0.1:80,2,1") == cluster.Cluster("10.0.0.1:80", 2, 1)
    with pytest.raises(UserError, match="numbered from 0 to 1"):
        cluster.parse("10.0.0.1:80,2,2")


def test_a_process_alone_leads_and_agrees_with_itself():
    assert cluster.parse("") is None
    assert processes.leads()
    assert processes.from_lead("question", lambda: "answer") == "answer"
    processes.agree("anything", "at all")
    largest = processes.Largest(make_mesh(dict(data=-1, fsdp=1, tensor=1)))
    assert [largest(number) for number in (0, 15, 0)] == [0, 15, 0]  # at once
