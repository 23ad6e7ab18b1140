"""Contestants take turns, so that a machine that slows down or speeds up slows or speeds them all."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

Turn = Callable[[], float]  # does its piece of work, gives the seconds that it took


def timed(work: Callable[[], Any]) -> Turn:
    """`work` as a turn; it must wait for the device."""

    def turn() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return turn


def take(contestants: Sequence[Turn], rounds: int) -> list[list[float]]:
    """Seconds of each contestant, round by round, in an order that turns round every time."""
    seconds: list[list[float]] = [[] for _ in contestants]
    for number in range(rounds):
        order = range(len(contestants))
        for index in order if number % 2 == 0 else reversed(order):
            seconds[index].append(contestants[index]())
    return seconds


def ratio(seconds: Sequence[float], others: Sequence[float]) -> float:
    """How many times as fast the first is as the other: the median of the rounds' ratios."""
    return statistics.median(other / own for own, other in zip(seconds, others, strict=True))
