"""Signs of life of processes: who is missed, and who is not."""

import pytest

from tinygen.distributed import processes


class Store:
    """As much of JAX's key-value store as heartbeats use."""

    def __init__(self):
        self.kept = {}

    def key_value_set(self, key, value, allow_overwrite=False):
        assert allow_overwrite
        self.kept[key] = value

    def key_value_dir_get(self, prefix):
        return [(key, value) for key, value in self.kept.items() if key.startswith(f"{prefix}/")]

    def key_value_delete(self, key):
        del self.kept[key]


@pytest.fixture
def members(monkeypatch):
    """The heartbeats of three processes; `members.act(i)` lets process i act."""
    store, made = Store(), [processes.Heartbeats(timeout=10) for _ in range(3)]
    monkeypatch.setattr(processes, "_store", lambda: store)

    def act(index):
        monkeypatch.setattr(processes.jax, "process_index", lambda: index)
        return made[index]

    return act


def test_a_process_that_stops_beating_is_gone_after_the_time_given_and_not_before(members):
    for now in range(30):
        for index in (0, 1, 2) if now < 5 else (0, 1):
            members(index).beat()
        gone = members(0).lost(float(now))
        assert gone == (["2"] if now > 4 + 10 else []), now


def test_a_process_that_left_in_peace_is_not_missed(members):
    for index in range(3):
        members(index).beat()
    assert members(0).lost(0.0) == []
    members(2).stop()
    members(1).beat()
    assert members(0).lost(11.0) == ["0"]  # its own, which it has not given since: a process that hangs is gone to the others too
    members(0).beat()
    assert members(0).lost(20.0) == []


def test_a_process_that_comes_late_is_waited_for(members):
    members(0).beat()
    assert members(0).lost(100.0) == []
    members(2).beat()
    members(0).beat()
    assert members(0).lost(105.0) == []
