"""scripts/launch/background.sh: what becomes of the processes that it starts, and of those that it did not start."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts" / "launch"


def alive(pid):
    """Whether a process runs; a zombie, which only waits to be read, does not."""
    told = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True).stdout
    return bool(told.strip()) and not told.startswith("Z")


@pytest.mark.parametrize("proc", ["/proc", "/no-proc"], ids=["proc", "ps"])
def test_background_starts_shows_follows_and_stops(launch, tmp_path, monkeypatch, proc):
    folder = tmp_path / "scripts"
    shutil.copytree(SCRIPTS, folder)
    script = folder / "background.sh"
    assert "/proc/" in script.read_text()
    script.write_text(script.read_text().replace("/proc/", f"{proc}/"))
    monkeypatch.setenv("PLAN", "wait")
    started = launch(script, "start", "a", "--", launch.program, "two words", "0")
    pid = int(re.search(r"pid (\d+)", started.stdout)[1])
    launch.until((tmp_path / "0").exists)
    assert launch(script, "status", "a").returncode == 0
    again = launch(script, "start", "a", "--", launch.program, "0")
    assert again.returncode == 2
    assert "runs already" in again.stderr
    following = launch.begin(script, "follow", "a")
    assert following.stdout.readline() == "told: two words 0\n"
    stopped = launch(script, "stop", "a")
    assert stopped.returncode == 0
    assert f"SIGTERM sent to pid {pid}" in stopped.stdout
    assert stopped.stdout.endswith("a: ended\n")
    assert not alive(pid)
    assert following.communicate(timeout=30)[0] == "got TERM\n"
    assert launch(script, "status", "a").returncode == 1
    assert "nothing was signalled" in launch(script, "stop", "a").stdout


def test_background_lets_one_of_two_starts_at_once_have_the_name(launch, tmp_path):
    (tmp_path / "background" / "a.pid.starting").mkdir(parents=True)  # another one is about to
    told = launch("background.sh", "start", "a", "--", launch.program, "0")
    assert told.returncode == 2
    assert "a is being started by another process" in told.stderr
    (tmp_path / "background" / "a.pid.starting").rmdir()
    assert launch("background.sh", "start", "a", "--", launch.program, "0").returncode == 0
    assert not (tmp_path / "background" / "a.pid.starting").exists()


def test_background_follows_the_last_start_alone(launch):
    for word in ("first", "second"):
        launch("background.sh", "start", "a", "--", "echo", word)
        assert launch("background.sh", "follow", "a").stdout == f"{word}\n"


def test_background_signals_no_process_that_was_given_a_recorded_pid_later(launch, tmp_path, monkeypatch):
    monkeypatch.setenv("PLAN", "wait")
    launch("background.sh", "start", "a", "--", "true")
    launch("background.sh", "follow", "a")
    stranger = subprocess.Popen([launch.program, "0"], stdout=subprocess.PIPE, text=True)
    launch.until((tmp_path / "0").exists)
    record = tmp_path / "background" / "a.pid"
    record.write_text("\n".join([str(stranger.pid), *record.read_text().splitlines()[1:]]) + "\n")
    assert launch("background.sh", "status", "a").returncode == 1
    assert "nothing was signalled" in launch("background.sh", "stop", "a", "--kill", "--grace", 1).stdout
    assert stranger.poll() is None
    stranger.kill()
    stranger.communicate()


def test_background_kills_only_when_told_to(launch, tmp_path, monkeypatch):
    monkeypatch.setenv("PLAN", "stubborn")
    pid = int(re.search(r"pid (\d+)", launch("background.sh", "start", "a", "--", launch.program, "0").stdout)[1])
    launch.until((tmp_path / "0").exists)
    waiting = launch.begin("background.sh", "stop", "a", "--grace", 1)
    launch.until(lambda: "ignored TERM" in (tmp_path / "background" / "a.log").read_text())
    killed = launch("background.sh", "stop", "a", "--kill", "--grace", 2)
    assert f"SIGKILL sent to pid {pid}" in killed.stdout
    assert "SIGKILL" not in waiting.communicate(timeout=30)[0]  # its grace was over first


def test_background_prints_what_it_would_start(launch, tmp_path):
    told = launch("background.sh", "start", "a", "--dry-run", "--", "tinygen", "train", "--config.note=two words").stdout
    detach = "setsid nohup" if shutil.which("setsid") else "nohup"
    assert told == f"{detach} tinygen train '--config.note=two words' </dev/null >>{tmp_path}/background/a.log 2>&1 &\n"
    assert not (tmp_path / "background").exists()
