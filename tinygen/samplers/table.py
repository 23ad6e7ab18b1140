"""Samplers from noise to data by name, and a budget of network evaluations.

Samplers of a velocity integrate dx/dt = v(x, t); that of an average velocity takes whole steps of it. To add one, write it and its row
in `fixed_step`, and add its name to `tinygen.config.objectives.SAMPLERS`.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from tinygen.samplers import dopri5, fixed_step
from tinygen.samplers.dopri5 import LEAST, STEP
from tinygen.samplers.paths import Field, Given, Path, Sampler

SAMPLERS: dict[str, Sampler] = {**fixed_step.SAMPLERS, **dopri5.SAMPLERS}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Integration:
    """A sampler on a path, with at most `nfe` network evaluations per example.

    sampler: a row of SAMPLERS
    times: number of steps -> float64 [steps + 1], decreasing
    guided: the interval of times in which an evaluation of the field takes two of the network; None = nowhere. At times that differ
        between examples, every evaluation takes two
    tolerance: of an adaptive sampler
    field_ends: the field has no value at the last time, so the last step is Euler's, whatever the sampler
    """

    sampler: str
    path: Path
    times: Callable[[int], np.ndarray]
    nfe: int
    guided: tuple[float, float] | None
    tolerance: float
    field_ends: bool = False

    def grid(self) -> np.ndarray | None:
        """The times of as many steps as `nfe` allows; None if not even one does."""
        grids = [self._shortest()] if SAMPLERS[self.sampler].adaptive else map(self.times, range(self.nfe, 0, -1))
        return next((grid for grid in grids if self._count(grid) <= self.nfe), None)

    def least(self) -> int:
        """Network evaluations that the shortest grid takes."""
        return self._count(self._shortest())

    def evaluations(self, grid: np.ndarray) -> int:
        """Network evaluations per example; for an adaptive sampler, the maximum."""
        more = self._calls(grid) - LEAST if SAMPLERS[self.sampler].adaptive else 0
        return self._count(grid) + more * self._per_example

    def run(self, field: Field, x: jax.Array, keys: jax.Array, grid: np.ndarray) -> tuple[jax.Array, jax.Array]:
        """(x at grid[-1], network evaluations int32 [B]) from x [B, ...] at grid[0], example i by keys[i]."""
        given = Given(self.path, keys, self.tolerance, self._calls(grid))
        body, tail = self._parts(grid)
        count: jax.Array | int = self._count(grid)
        if len(body) > 1:
            x, calls = SAMPLERS[self.sampler].integrate(field, x, body, given)
            count = count if calls is None else count + (calls - LEAST) * self._per_example
        if len(tail) > 1:
            x, _ = SAMPLERS["euler"].integrate(field, x, tail, given)
        return x, jnp.broadcast_to(jnp.asarray(count, jnp.int32), (len(x),))

    def _shortest(self) -> np.ndarray:
        return self.times(2 if SAMPLERS[self.sampler].adaptive and self.field_ends else 1)

    def _parts(self, grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The times of the sampler's own steps, and of Euler's last."""
        return (grid[:-1], grid[-2:]) if self.field_ends else (grid, grid[-1:])

    def _count(self, grid: np.ndarray) -> int:
        """Network evaluations of the grid's steps; of an adaptive sampler with one step of its own."""
        (body, tail), row = self._parts(grid.astype(np.float32)), SAMPLERS[self.sampler]
        taken = [] if len(body) < 2 else row.evaluates(body[:-1], body[1:], self.path)
        own = len(taken) * self._per_example if row.adaptive else sum(map(self._cost, taken))
        return own + self._cost(tail[:-1])

    def _cost(self, t: np.ndarray) -> int:
        """Network evaluations of the field at these times, each shared by all examples."""
        if self.guided is None:
            return t.size
        low, high = map(np.float32, self.guided)
        return t.size + int(np.count_nonzero((t >= low) & (t <= high)))

    @property
    def _per_example(self) -> int:
        """Network evaluations of the field at times that differ between examples."""
        return 1 if self.guided is None else 2

    def _calls(self, grid: np.ndarray) -> int:
        """Evaluations of the field that whole steps of an adaptive sampler may take."""
        return LEAST + max(0, self.nfe - self._count(grid)) // (STEP * self._per_example) * STEP
