"""A workdir belongs to one run, and its lock says which; one that was killed is in nobody's way."""

import errno
import fcntl
import json
import os
import re
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest
from etils import epath

from tinygen.errors import UserError
from tinygen.workdir import lock

HOLDER = """
import sys
from etils import epath
from tinygen.workdir import lock
with lock.own(epath.Path(sys.argv[1])):
    print("in", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the workdir."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "in\n"
        yield process
        process.kill()


def facts(**changes):
    now = datetime.now(UTC).astimezone().isoformat(timespec="seconds")
    return {"pid": os.getpid(), "host": socket.gethostname(), "since": now, "command": "tinygen train", **changes}


def take(workdir):
    with lock.own(epath.Path(workdir)):
        return json.loads((workdir / ".lock").read_text())


def test_a_second_run_is_refused_and_told_who_is_there(holder, tmp_path):
    who = rf"another process is training there: pid {holder.pid} on {re.escape(socket.gethostname())} since \d\d:\d\d$"
    with pytest.raises(UserError, match=who):
        take(tmp_path)
    assert json.loads((tmp_path / ".lock").read_text())["pid"] == holder.pid  # the refused one left it as it was


def test_a_killed_run_is_in_nobodys_way_and_is_told_of_in_one_line(holder, tmp_path, caplog):
    holder.kill()
    holder.wait()
    with caplog.at_level("INFO"):
        assert take(tmp_path)["pid"] == os.getpid()
    [line] = caplog.messages
    assert f"(pid {holder.pid} on " in line
    assert "did not exit normally" in line


def test_a_run_that_left_in_order_is_not_told_of(holder, tmp_path, caplog):
    holder.communicate("")
    assert (tmp_path / ".lock").read_text() == ""
    with caplog.at_level("INFO"):
        take(tmp_path)
    assert not caplog.messages


def test_the_file_is_emptied_when_the_run_fails_too(tmp_path):
    with pytest.raises(ZeroDivisionError), lock.own(epath.Path(tmp_path)):
        raise ZeroDivisionError
    assert (tmp_path / ".lock").read_bytes() == b""


def test_the_file_says_who_where_since_when_and_by_what_command(tmp_path):
    held = take(tmp_path)
    assert held.keys() == {"pid", "host", "since", "command"}
    assert abs(datetime.fromisoformat(held["since"]).timestamp() - time.time()) < 60
    assert sys.argv[0] in held["command"]


DAMAGED = [
    b"\xff\x00",
    b"[]",
    b'{"pid": 1}',
    b"[" * 4000,
    b" " * 10**6,
    *(json.dumps(facts(**each)).encode() for each in ({"pid": "1"}, {"pid": 10**30}, {"pid": -1}, {"since": "noon"}, {"host": 3})),
    json.dumps(facts(host="a\x1b[2J")).encode(),
]


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_file_is_no_obstacle(content, tmp_path, caplog):
    (tmp_path / ".lock").write_bytes(content)
    with caplog.at_level("INFO"):
        assert take(tmp_path)["pid"] == os.getpid()
    assert not caplog.messages


def test_a_day_is_named_that_is_not_today():
    assert str(lock.Owner(**facts(pid=7, host="far", since="2020-02-03T12:31:00+00:00"))).startswith("pid 7 on far since 2020-02-03 ")


@pytest.fixture
def no_locks(monkeypatch):
    """A file system that knows no locks."""

    def refuse(file, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_without_locks_a_run_that_is_alive_on_this_machine_is_refused_with_what_to_delete(holder, tmp_path, no_locks):
    with pytest.raises(UserError, match=f"pid {holder.pid} on .*\n.*delete .*/.lock") as refused:
        take(tmp_path)
    assert len(str(refused.value).splitlines()) == 2
    holder.kill()
    holder.wait()
    assert take(tmp_path)["pid"] == os.getpid()


def test_without_locks_a_process_that_began_after_the_owner_is_another(tmp_path, no_locks):
    (tmp_path / ".lock").write_text(json.dumps(facts(since="2020-02-03T12:31:00+00:00")))
    assert take(tmp_path)["pid"] == os.getpid()


@pytest.mark.parametrize(("age", "refused"), [(10, True), (3600, False)])
def test_without_locks_a_run_on_another_machine_is_refused_while_its_file_is_fresh(age, refused, tmp_path, no_locks):
    path = tmp_path / ".lock"
    path.write_text(json.dumps(facts(host="elsewhere")))
    os.utime(path, (time.time() - age,) * 2)
    if refused:
        with pytest.raises(UserError, match="on elsewhere since"):
            take(tmp_path)
    else:
        assert take(tmp_path)["host"] == socket.gethostname()


def test_without_locks_an_owner_keeps_its_file_fresh(tmp_path, no_locks, monkeypatch):
    monkeypatch.setattr(lock, "BEAT", 0.01)
    path = tmp_path / ".lock"
    with lock.own(epath.Path(tmp_path)):
        os.utime(path, (0, 0))
        deadline = time.monotonic() + 30
        while path.stat().st_mtime == 0:
            assert time.monotonic() < deadline, "its file was left to grow old"
            time.sleep(0.01)
