"""What a run does about updates that are not finite. The step leaves each out on the device; here it is decided how long that may go on.

Where loss and gradient are finite and the update that comes of them is not (a learning rate beyond all measure), the device has taken
it: such a state is spoilt, is never saved, and the run goes back at once.

All of it follows from the state and the step: a run that was killed and started again decides the same.
"""

import collections
import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tinygen.errors import UserError

WINDOW = 128  # losses that a spike is measured against
ENOUGH = 32  # of them, at least
TO_SIGMA = 1.4826  # of a normal distribution's median absolute deviation


class RollBack(Exception):
    """The run goes back to its last good checkpoint, since `step`."""

    def __init__(self, step: int):
        super().__init__(step)
        self.step = step


@dataclasses.dataclass
class Guard:
    """policy, skips, rollbacks: as explained in `tinygen.config.schema`
    skipped: updates left out so far
    streak: how many of the last steps in a row were left out
    attempt: rollbacks so far
    spoilt: the step whose update was taken and was not finite; 0 = none
    """

    policy: str
    skips: int
    rollbacks: int
    skipped: int
    streak: int
    attempt: int
    spoilt: int = 0

    def watch(self, steps: Sequence[int], skipped: Sequence[int], updates: Sequence[float]) -> dict[int, int]:
        """{step: how many in a row by then} of the steps whose update was left out, up to the one with which patience ends.

        skipped: the state's counter after each of the steps
        updates: the size of each of the updates
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
        """Starts again from a checkpoint whose last update was finite."""
        self.skipped, self.streak, self.attempt, self.spoilt = skipped, 0, attempt, 0

    @property
    def spent(self) -> bool:
        """Whether the run may not go on from its state."""
        return self.spoilt > 0 or self.streak > {"skip": self.skips}.get(self.policy, 0)

    def end(self, step: int, told: Mapping[str, Any]) -> Exception:
        """What to raise once patience is spent, in a step of which this is `told`."""
        if self.policy != "stop" and self.attempt < self.rollbacks:
            return RollBack(step)
        again = f" after {self.attempt} rollbacks" if self.attempt else ""
        if self.spoilt:
            what = f"the update ({told['update_ratio']} of the parameters) is not finite{again}. It was taken, but not saved"
        else:
            often = f", {self.streak} times in a row" if self.streak > 1 else ""
            what = f"the loss ({told['loss']}) or its gradient ({told['grad_norm']}) is not finite{often}{again}. No such update was taken"
        return UserError(
            f"step {step}: {what}: what is saved is finite.\n"
            "Try config.precision=float32 if it is another, or in another --workdir a lower config.optim.lr or a longer warmup."
        )


class Spikes:
    """Tells losses that leap above all recent ones, by `times` the spread of those (a robust standard deviation); 0 = never."""

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
