"""Kept files: one process at a time makes one and leaves no lock, and what is in use outlives the limit."""

import errno
import fcntl
import os
import threading
import time

import numpy as np
import pytest

from tinygen.system.cache import alone, hold, prune


@pytest.fixture
def aged(tmp_path):
    """aged(*names): files of 100 bytes, each used longer ago than the one before it."""

    def make(*names):
        for age, name in enumerate(names):
            (tmp_path / name).write_bytes(bytes(100))
            os.utime(tmp_path / name, (1e9 - age, 1e9 - age - 5))

    return make


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_the_least_recently_used_is_deleted_first(tmp_path, aged):
    aged("new", "old", "older", "oldest")
    os.utime(tmp_path / "older", (1e9 + 1, 1e9 - 50))  # read since
    assert prune(tmp_path, 250) == (2, 200)
    assert names(tmp_path) == {"new", "older"}
    assert prune(tmp_path, 250) == (0, 0)


def test_a_file_is_not_deleted_while_it_is_open_or_mapped(tmp_path, aged):
    aged("open", "mapped", "free")
    writer = (tmp_path / "open").open("r+b")
    hold(writer)
    with (tmp_path / "mapped").open("rb") as reader:
        hold(reader)
        array = np.memmap(reader, np.uint8, "r")
    assert prune(tmp_path, 0) == (1, 100)
    writer.close()
    assert prune(tmp_path, 0) == (1, 100)
    assert names(tmp_path) == {"mapped"}
    del array
    assert prune(tmp_path, 0) == (1, 100)


def test_one_at_a_time_is_admitted_and_none_waits_at_a_deleted_lock(tmp_path):
    lock, inside, most, waited = tmp_path / "made" / "a.lock", [], [], []

    def enter():
        with alone(lock, lambda: waited.append(None)) as locked:
            inside.append(locked)
            most.append(len(inside))
            time.sleep(0.01)  # so that the others come to wait
            inside.pop()

    threads = [threading.Thread(target=enter) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 6
    assert waited
    assert not lock.exists()


def test_the_lock_goes_when_the_block_fails_and_is_free_where_a_process_was_killed(tmp_path):
    lock = tmp_path / "a.lock"
    with pytest.raises(KeyboardInterrupt), alone(lock):
        raise KeyboardInterrupt
    assert not lock.exists()

    lock.touch()  # as a process leaves it that is killed: the kernel has let go of it
    with alone(lock, lambda: pytest.fail("waited")) as locked:
        assert locked
    assert not lock.exists()


def test_without_locks_all_are_admitted_and_the_limit_holds(tmp_path, aged, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", none)
    aged("a", "b")
    with alone(tmp_path / "a.lock") as one, alone(tmp_path / "a.lock") as other:
        assert not one
        assert not other
    assert prune(tmp_path, 100) == (1, 100)
    assert names(tmp_path) == {"a"}
