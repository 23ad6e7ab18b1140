import json
import threading
from types import SimpleNamespace

import pytest
from etils import epath

from tinygen.workdir import logger


class Clock:
    """Time that passes only when told."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now

    def passes(self, seconds):
        self.now += seconds


class Computing:
    """A state that is ready `seconds` after somebody begins to wait for it."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds = clock, seconds

    def block_until_ready(self):
        self.clock.passes(self.seconds)
        return self


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(logger, "time", clock)
    return clock


@pytest.fixture
def kept(clock, monkeypatch, tmp_path):
    """A record of a run from step 0, and what it wrote; its other writers are left out."""
    silent = SimpleNamespace(write_scalars=lambda step, values: None, write_images=lambda step, images: None, close=lambda: None)
    monkeypatch.setattr(logger, "make_writers", lambda *_: [silent])
    with logger.RunLogger(epath.Path(tmp_path), 0, 100, 8, "image", "", {}) as made:
        yield made, lambda: [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]


def test_a_rate_is_of_the_steps_since_the_last_line(kept, clock):
    made, lines = kept
    clock.passes(4)
    made.lines({10: {"loss": 1.0}}, 10)
    clock.passes(2)
    made.lines({20: {"loss": 1.0}}, 20)
    assert [line["steps_per_s"] for line in lines()] == [2.5, 5.0]


def test_work_aside_is_no_training_time_but_the_step_that_it_waits_for_is(kept, clock):
    made, lines = kept
    clock.passes(1)
    with made.aside("evaluating", Computing(clock, 3)):
        clock.passes(50)
    clock.passes(1)
    made.lines({10: {"loss": 1.0}}, 10)
    assert lines()[0]["steps_per_s"] == 10 / (1 + 3 + 1)


def test_the_share_of_time_spent_waiting_for_data_is_logged(kept, clock):
    made, lines = kept
    for _ in range(2):
        with made.waiting():
            clock.passes(1)
        clock.passes(3)
    made.lines({2: {"loss": 1.0}}, 2)
    clock.passes(1)
    made.lines({3: {"loss": 1.0}}, 3)
    assert [line["data_wait"] for line in lines()] == [0.25, 0.0]


def test_the_time_left_is_what_the_steps_so_far_took_with_all_that_is_done_between_them(kept, clock):
    made, _ = kept
    clock.passes(30)  # compilation
    assert made.seconds_left(1) is None
    made.restart_clock(1)
    clock.passes(6)
    with made.aside("evaluating", Computing(clock, 1)):
        clock.passes(3)
    made.lines({11: {"loss": 1.0}}, 11)
    assert made.seconds_left(11) == (6 + 1 + 3) / 10 * 89
    made.roll_back(11, to=1, attempt=0)
    assert made.seconds_left(1) is None


def test_what_came_before_the_clock_was_restarted_counts_for_nothing(kept, clock):
    made, lines = kept
    with made.waiting():
        clock.passes(30)
    made.restart_clock(1)
    clock.passes(2)
    made.lines({5: {"loss": 1.0}}, 5)
    assert (lines()[0]["steps_per_s"], lines()[0]["data_wait"]) == (2.0, 0.0)


def test_memory_is_that_of_the_fullest_device_or_of_the_process(monkeypatch):
    devices = [SimpleNamespace(memory_stats=lambda size=size: {"peak_bytes_in_use": size}) for size in (2**30, 3 * 2**30)]
    monkeypatch.setattr(logger.jax, "local_devices", lambda: devices)
    assert logger.memory_gib() == 3.0
    monkeypatch.setattr(logger.jax, "local_devices", lambda: [SimpleNamespace(memory_stats=lambda: None)])
    assert 0.05 < logger.memory_gib() < 1000


def test_lines_of_a_call_have_the_rate_of_all_its_steps(kept, clock):
    made, lines = kept
    clock.passes(5)
    made.lines({5: {"loss": 1.0}, 10: {"loss": 1.0}}, 12)
    clock.passes(2)
    made.lines({20: {"loss": 1.0}}, 20)
    assert [line["steps_per_s"] for line in lines()] == [12 / 5, 12 / 5, 4.0]


def test_what_is_written_in_the_background_keeps_its_order_and_is_there_at_the_end():
    done = []
    with logger.Background(most=2) as later:
        for number in range(10):
            later(done.append, number)
    assert done == list(range(10))


def test_the_background_takes_no_more_than_it_may_keep_waiting():
    begun, held, waiting = threading.Event(), threading.Event(), []

    def block():
        begun.set()
        assert held.wait(60)

    with logger.Background(most=2) as later:
        later(block)
        assert begun.wait(60)
        for number in range(2):
            later(waiting.append, number)  # returns: there is room

        def one_more():
            later(waiting.append, 2)

        caller = threading.Thread(target=one_more)
        caller.start()
        caller.join(0.05)
        assert caller.is_alive()  # there is none
        held.set()
        caller.join(60)
        assert not caller.is_alive()
    assert waiting == [0, 1, 2]


def write(errors, most):
    """Has the errors raised in the background, one after another, and the last in the foreground."""
    *behind, ahead = errors

    def fail(error):
        if error is not None:
            raise error

    with logger.Background(most) as later:
        for error in behind:
            later(fail, error)
        fail(ahead)


def test_an_error_in_the_background_comes_out_at_the_end_and_what_comes_after_it_is_done():
    full = OSError(28, "No space left on device", "samples/1.png")
    with pytest.raises(OSError, match="No space left") as found:
        write([full, None], 4)
    assert found.value is full

    def fail():
        raise full

    written = []
    later = logger.Background(most=0)
    later(fail)
    later(written.append, 1)  # waits for the one before it, there being no room for two
    later(written.append, 2)
    with pytest.raises(OSError, match="No space left"):
        later.__exit__(None)
    assert written == [1, 2]


def test_an_error_in_the_background_does_not_hide_the_one_that_ended_the_run():
    with pytest.raises(ValueError, match="the first"):
        write([OSError("the second"), ValueError("the first")], 4)
