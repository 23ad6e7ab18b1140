"""Contestants take turns, so that drifts of the machine's speed affect all of them alike."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

Turn = Callable[[], float]  # does one unit of work, returns the seconds it took


def timed(work: Callable[[], Any]) -> Turn:
    """`work`, which must wait for the device, as a turn."""

    def turn() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return turn


def take(contestants: Sequence[Turn], rounds: int) -> list[list[float]]:
    """Seconds of each contestant for each round; the order is reversed every round."""
    seconds: list[list[float]] = [[] for _ in contestants]
    for number in range(rounds):
        order = range(len(contestants))
        for index in order if number % 2 == 0 else reversed(order):
            seconds[index].append(contestants[index]())
    return seconds


def ratio(seconds: Sequence[float], others: Sequence[float]) -> float:
    """Speed of the first relative to the second, as the median of the per-round ratios."""
    return statistics.median(other / own for own, other in zip(seconds, others, strict=True))
