"""The policy on non-finite updates. The step skips each on the device; the guard decides how many consecutive skips are allowed.

Where loss and gradient are finite but the update is not (far too large a learning rate), the device has already applied it: the state
is spoilt, it is never saved, and the run rolls back at once.

Decisions depend on state and step alone, so a run that was killed and restarted makes the same ones.
"""

import collections
import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tinygen.errors import UserError

WINDOW = 128  # recent losses that a spike is measured against
ENOUGH = 32  # the least number of them
TO_SIGMA = 1.4826  # σ of a normal distribution over its median absolute deviation


class RollBack(Exception):
    """The run rolls back to its last intact checkpoint because of step `step`."""

    def __init__(self, step: int):
        super().__init__(step)
        self.step = step


@dataclasses.dataclass
class Guard:
    """policy, skips, rollbacks: as explained in `tinygen.config.schema`
    skipped: skipped updates so far
    streak: consecutive skips up to the last step
    attempt: rollbacks so far
    spoilt: the step whose non-finite update was applied; 0 = none
    """

    policy: str
    skips: int
    rollbacks: int
    skipped: int
    streak: int
    attempt: int
    spoilt: int = 0

    def watch(self, steps: Sequence[int], skipped: Sequence[int], updates: Sequence[float]) -> dict[int, int]:
        """{step: consecutive skips so far} for the skipped steps, up to the one that exceeds the limit.

        skipped: the state's counter of skips after each step
        updates: the norm of each update
        """
        left_out: dict[int, int] = {}
        for step, count, update in zip(steps, skipped, updates, strict=True):
            if count == self.skipped and not math.isfinite(update):
                self.spoilt = step
                break
            self.streak = self.streak + 1 if count > self.skipped else 0
            self.skipped = int(count)
            if self.streak:
                left_out[step] = self.streak
            if self.spent:
                break
        return left_out

    def begin(self, skipped: int, attempt: int) -> None:
        """Restarts from a checkpoint whose last update was finite."""
        self.skipped, self.streak, self.attempt, self.spoilt = skipped, 0, attempt, 0

    @property
    def spent(self) -> bool:
        """Whether the run must not continue from its state."""
        return self.spoilt > 0 or self.streak > {"skip": self.skips}.get(self.policy, 0)

    def end(self, step: int, line: Mapping[str, Any]) -> Exception:
        """The exception to raise once the limit is exceeded. line: the step's metrics"""
        if self.policy != "stop" and self.attempt < self.rollbacks:
            return RollBack(step)
        again = f" after {self.attempt} rollbacks" if self.attempt else ""
        if self.spoilt:
            what = f"the update ({line['update_ratio']} of the parameters) is not finite{again}. It was taken, but not saved"
        else:
            often = f", {self.streak} times in a row" if self.streak > 1 else ""
            what = f"the loss ({line['loss']}) or its gradient ({line['grad_norm']}) is not finite{often}{again}. No such update was taken"
        return UserError(
            f"step {step}: {what}: what is saved is finite.\n"
            "Try config.precision=float32 if it is another, or in another --workdir a lower config.optim.lr or a longer warmup."
        )


class Spikes:
    """Detects losses above all recent ones by `times` their spread (a robust standard deviation); 0 = never."""

    def __init__(self, times: float):
        self.times = times
        self.recent: collections.deque[float] = collections.deque(maxlen=WINDOW)

    def __call__(self, losses: Mapping[int, float]) -> dict[int, tuple[float, float]]:
        """{step: (loss, median of those before)} of the finite losses {step: loss} that are spikes."""
        found = {}
        for step, loss in losses.items():
            if self.times and len(self.recent) >= ENOUGH and loss > max(self.recent):
                middle = statistics.median(self.recent)
                spread = TO_SIGMA * statistics.median(abs(each - middle) for each in self.recent)
                if loss - middle > self.times * max(spread, 1e-3 * abs(middle)):
                    found[step] = (loss, middle)
            self.recent.append(loss)
        return found
