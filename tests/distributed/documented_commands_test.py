"""The commands in docs/scale.md that start several processes, run as written, with stand-ins for tinygen, Slurm and gcloud."""

import os
import re
import shlex
import subprocess
import time
from pathlib import Path

import pytest

from tinygen.config import cluster

PAGE = (Path(__file__).parents[2] / "docs" / "scale.md").read_text("utf-8")
RUNNING = "trap 'echo got TERM; exit 143' TERM; echo told: $*; for ((i = 0; i < 600; i++)); do sleep 0.05; done"


def commands(title):
    """The shell commands that follow a title."""
    return re.search(rf"{re.escape(title)}.*?```sh\n(.*?)```", PAGE, re.DOTALL)[1]


@pytest.fixture
def put(tmp_path, monkeypatch):
    """put(name, body): a shell program of that name comes first in the PATH; commands run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (tmp_path / "bin").mkdir()

    def write(name, body):
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)

    return write


def run(text):
    return subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=60)


def wait_for(path, text):
    deadline = time.monotonic() + 30
    while not (path.exists() and text in path.read_text()):
        assert time.monotonic() < deadline, f"no {text!r} in {path}"
        time.sleep(0.01)


def test_local_processes_have_one_coordinator_and_a_number_each(put, tmp_path):
    put("tinygen", 'echo "$XLA_FLAGS $*"')
    done = run(commands("**Two processes on this machine**"))
    said = [done.stdout, (tmp_path / "two-1.log").read_text()]
    common, places = zip(*(line.rsplit(" --config.distributed=", 1) for line in said), strict=True)
    assert common[0] == common[1]
    assert [cluster.parse(place.strip()) for place in places] == [cluster.Cluster("127.0.0.1:9876", 2, number) for number in (0, 1)]


@pytest.mark.parametrize(
    ("status", "state", "requeued"),
    [(143, "RUNNING", True), (143, "COMPLETING", False), (143, "", False), (1, "RUNNING", False), (0, "RUNNING", False)],
)
def test_a_slurm_job_queues_again_only_if_its_time_limit_stopped_it(put, status, state, requeued):
    put("sbatch", "SLURM_JOB_ID=17 exec bash")  # a cluster that starts the job at once
    put("srun", f'echo "srun $*"; kill -s TERM $PPID; exit {status}')  # scancel signals the job's shell too
    put("squeue", f"echo {state}")
    put("scontrol", 'echo "scontrol $*"')
    done = run(commands("**Slurm**"))
    assert (done.returncode, done.stderr) == (status, "")
    assert re.match(r"srun --label --kill-on-bad-exit=1 tinygen train .* --config.distributed=auto\n", done.stdout)
    assert ("scontrol requeue 17\n" in done.stdout) == requeued


def test_the_options_of_a_slurm_job_precede_its_commands():
    options = re.search(r"<<'JOB'\n#!/bin/bash\n((?:#SBATCH --.*\n)+)", commands("**Slurm**"))[1]
    assert options.count("#SBATCH") == PAGE.count("#SBATCH")
    assert {"--requeue", "--signal=TERM@300"} <= set(shlex.split(options))


def test_a_tpu_run_is_installed_outlives_its_connection_is_followed_and_stopped(put, tmp_path):
    put("gcloud", 'case $4 in scp) cp "$5" "worker/${6#faces:}" ;; ssh) cd worker && bash -c "${!##--command=}" ;; *) echo "$4 $5" ;; esac')
    put("git", "tar -czf tinygen.tar.gz tinygen")
    put("python3", "mkdir -p venv/bin && cp ../bin/pip ../bin/tinygen venv/bin")
    put("pip", 'echo "pip $*" && [ -e "$3" ] && [ -d "${4%[*}" ]')
    put("tinygen", RUNNING)
    (tmp_path / "tinygen").mkdir()
    (tmp_path / "tinygen" / "constraints.txt").touch()
    (tmp_path / "worker").mkdir()
    started = run("set -e\n" + commands("**A Cloud TPU**"))
    assert (started.returncode, started.stderr) == (0, "")
    assert started.stdout == "create faces\npip install --constraint tinygen/constraints.txt ./tinygen[tpu,gcs]\n"
    wait_for(tmp_path / "worker" / "faces.log", "told: train ")
    follow, stop, delete = commands("Then follow it").splitlines()
    with subprocess.Popen(["bash", "-c", follow], stdout=subprocess.PIPE, text=True) as following:
        assert run(stop).returncode == 0
        told, ended = following.communicate(timeout=30)[0].splitlines()
    assert told.endswith(" --workdir=gs://BUCKET/faces --config.distributed=auto")
    assert ended == "got TERM"
    assert run(delete).stdout == "delete faces\n"


def test_a_run_in_the_background_outlives_its_shell_and_is_stopped_by_its_recorded_pid(put, tmp_path):
    put("tinygen", RUNNING)
    start, _, stop = commands("**In the background**").splitlines()
    assert run(start).returncode == 0
    wait_for(tmp_path / "faces.log", "told: train --config=dit_faces_80m")
    assert run(stop).returncode == 0
    wait_for(tmp_path / "faces.log", "got TERM")
