"""A loop that stands still says so, with what it waits for and where; and once more when it moves again."""

import queue
import re
import threading
import time

import pytest

from tinygen.training import batches as feed
from tinygen.workdir.watchdog import HINTS, Watchdog, place

SHORT = 0.05 / 60  # minutes
PATIENT = 30  # seconds that a test waits for a message, at most


@pytest.fixture
def said():
    return queue.Queue()


def heard(said, words):
    """The next message with these words; on a busy machine others may come before it, again."""
    while words not in (message := said.get(timeout=PATIENT)):
        pass
    return message


def test_a_stall_tells_what_is_waited_for_since_when_in_which_line_and_what_to_look_at(said):
    messages = []

    def batches():
        messages.append(heard(said, "data"))
        yield from ()

    with Watchdog(SHORT, said.put) as watchdog:
        watchdog.step(120)
        with watchdog.waiting_for("data"):
            feed.stacked(batches(), 1)
    line = feed.stacked.__code__.co_firstlineno + 3
    assert re.match(r"no step for \S+ s after step 120: waiting for data since \d\d:\d\d, in ", messages[0])
    assert messages[0].endswith(f", in tinygen/training/batches.py:{line}. Is the folder's disk or network slow?")
    assert "\n" not in messages[0]


def test_what_is_waited_for_nests_and_is_the_device_outside(said):
    with Watchdog(SHORT, said.put) as watchdog:
        heard(said, "since the start: waiting for the device since")
        with watchdog.waiting_for("evaluating"):
            heard(said, "since the start: evaluating since")
            with watchdog.waiting_for("data"):
                heard(said, "since the start: waiting for data since")
            heard(said, "since the start: evaluating since")
        assert heard(said, "since the start: waiting for the device since")


def test_it_is_said_again_after_twice_the_time_and_so_on(said):
    with Watchdog(SHORT, lambda message: said.put(time.monotonic())) as watchdog:
        watchdog.step(1)
        began = time.monotonic()
        told = [said.get(timeout=PATIENT) - began for _ in range(4)]
    assert all(after >= 60 * SHORT * 2**count - 0.01 for count, after in enumerate(told))


def test_a_step_after_a_stall_is_told_once_with_the_length_of_the_stall(said):
    with Watchdog(SHORT, said.put) as watchdog:
        watchdog.step(120)
        heard(said, "waiting for the device")
        with watchdog.waiting_for("the disk (saving)"):  # no step yet
            heard(said, "the disk")
        watchdog.limit = 3600  # seconds: a busy machine is to make no second stall here
        for number in (121, 122, 123):
            watchdog.step(number)
        assert re.fullmatch(r"step 121 after a stall of \S+ s", heard(said, "after a stall"))
    assert said.empty()


def test_as_long_as_steps_end_nothing_is_said(said):
    with Watchdog(1, said.put) as watchdog:
        for number in range(1000):
            watchdog.step(number)
    assert said.empty()


@pytest.mark.parametrize(("minutes", "threads"), [(0, 0), (1, 1)])
def test_there_is_one_thread_while_inside_and_none_without_minutes(minutes, threads):
    def running():
        return sum(thread.name == "watchdog" for thread in threading.enumerate())

    with Watchdog(minutes, print) as watchdog:
        assert running() == threads
        with watchdog.waiting_for("data"):
            watchdog.step(1)
    assert running() == 0


def test_every_hint_is_one_short_line():
    assert all(len(hint) < 80 and "\n" not in hint for hint in HINTS.values())


def test_a_stack_without_our_frames_has_no_place():
    assert place(None) == ""
