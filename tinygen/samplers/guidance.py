"""What denoisers share: classifier-free guidance (Ho & Salimans 2022) within an interval of noise levels (Kynkäänniemi et al. 2024)."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tinygen import rng
from tinygen.errors import UserError, check_share, unknown
from tinygen.media.preview import Preview
from tinygen.nn.conditioning import CONDITIONS
from tinygen.samplers.cpu_groups import in_groups
from tinygen.samplers.paths import Path, along
from tinygen.samplers.table import SAMPLERS, Integration

MAX_NFE = 10_000

Cond = Mapping[str, jax.Array]
Interval = tuple[float, float]

Predict = Callable[..., jax.Array]
"""(x, t, level, r) -> prediction [B, ...]. x: the model's input [B, ...]; t, r: its times, r only for models that take one; level: the
noise level that guidance_interval refers to. Times and levels are scalars or [B].
"""


class Denoising:
    """An objective that draws samples from noise.

    A subclass says what samplers integrate: `_slope(predict, z, t, r)`, dz/dt at z [B, ...] and t or its average from r to t, along
    `path`, over `_times(steps)`: float64 [steps + 1], from `start` to 0.

    learns: what the model predicts, "velocity" or "average" (velocity)
    start: the first noise level
    field_ends: see `Integration`
    """

    generates: ClassVar[bool] = True
    learns: ClassVar[str] = "velocity"
    path: ClassVar[Path]
    field_ends: ClassVar[bool] = False
    start: float = 1.0
    _slope: Callable[..., jax.Array]
    _times: Callable[[int], np.ndarray]

    shape: tuple[int, ...]
    cond_drop: float
    sampler: str
    nfe: int
    guidance: float
    guidance_interval: Interval
    tolerance: float

    def __post_init__(self) -> None:
        check(self.cond_drop, self.sampler, self.nfe, self.guidance, self.learns)

    def draw(self, model: Any, keys: jax.Array, cond: Cond | None = None, negative: Cond | None = None) -> tuple[jax.Array, jax.Array]:
        """(samples [B, *shape], one per key; the network evaluations of each, int32 [B]).

        negative: takes the place of the null condition in guidance
        """
        return in_groups(functools.partial(self._sample, model), keys, cond, negative)

    def preview(self, raw: Any, averaged: Any, batch: Cond, keys: jax.Array) -> dict[str, Preview]:
        """Samples with the batch's conditions."""
        return {"samples": Preview(self.draw(averaged, keys, {name: batch[name] for name in CONDITIONS if name in batch})[0])}

    def grid(self, *, conditional: bool) -> np.ndarray:
        """The sampler's times: as many steps as `nfe` allows. Raises UserError if it allows none."""
        integration = self._integration(conditional)
        if (grid := integration.grid()) is not None:
            return grid
        least, guided = integration.least(), f" with guidance {self.guidance}" if integration.guided else ""
        raise UserError(f"nfe={self.nfe} is too few: one {self.sampler} step{guided} takes {least} network evaluation{'s' * (least > 1)}")

    def evaluations(self, *, conditional: bool) -> int:
        """Network evaluations per sample, at most `nfe`; for an adaptive sampler, the maximum."""
        return self._integration(conditional).evaluations(self.grid(conditional=conditional))

    def _sample(self, model: Any, keys: jax.Array, cond: Cond | None, negative: Cond | None) -> tuple[jax.Array, jax.Array]:
        integration = self._integration(bool(cond))
        predict = guided(model, len(keys), cond, negative, self.guidance, integration.guided)
        noise, grid = self.start * rng.normal(keys, self.shape), self.grid(conditional=bool(cond))
        return integration.run(functools.partial(self._slope, predict), noise, keys, grid)

    def _integration(self, conditional: bool) -> Integration:
        return Integration(
            sampler=self.sampler, path=self.path, times=self._times, nfe=self.nfe, guided=self._guided_levels(conditional),
            tolerance=self.tolerance, field_ends=self.field_ends,
        )  # fmt: skip

    def _guided_levels(self, conditional: bool) -> Interval | None:
        """The noise levels at which guidance takes a second evaluation; None = nowhere."""
        if not conditional or self.guidance == 1:
            return None
        low, high = self.guidance_interval
        return low, math.inf if high >= self.start else high


def check(cond_drop: float, sampler: str, nfe: int, guidance: float, learns: str = "velocity") -> None:
    """Raises UserError for settings that are invalid, or do not suit what the model learns (see `Denoising.learns`)."""
    check_guidance(cond_drop, nfe, guidance)
    if sampler not in SAMPLERS:
        raise unknown("sampler", sampler, SAMPLERS)
    if SAMPLERS[sampler].needs != learns:
        raise UserError(
            f"sampler {sampler} needs the velocity at an instant, and an average-velocity model gives the mean over a whole step, which a "
            "slope at both ends corrects wrongly: use sampler average"
            if learns == "average"
            else f"sampler {sampler} takes whole steps of an average velocity, and this objective learns the velocity at an instant: use "
            "sampler heun, or an objective such as meanflow"
        )


def check_guidance(cond_drop: float, nfe: int, guidance: float) -> None:
    """Raises UserError for invalid settings of guidance and for too many network evaluations."""
    check_share("objective", cond_drop=cond_drop)
    if not math.isfinite(guidance):
        raise UserError(f"guidance {guidance} must be a finite number; 1 is off")
    if nfe > MAX_NFE:
        raise UserError(f"nfe={nfe}: at most {MAX_NFE:,} network evaluations per sample; 50 are plenty")
    if guidance != 1 and cond_drop == 0:
        raise UserError(f"guidance {guidance} needs a model trained with config.objective.cond_drop > 0; without it use guidance 1")


def check_tolerance(tolerance: float) -> None:
    if not 0 < tolerance < 1:
        raise UserError(f"tolerance={tolerance} must lie in (0, 1): the error that a step of sampler dopri5 may have; 0.001 is usual")


def conditions_of(batch: Cond, key: jax.Array, drop: float) -> dict[str, jax.Array]:
    """A batch's conditions, and `keep` bool [B], False for a random share `drop` of the examples: they get the null condition."""
    cond = {name: batch[name] for name in CONDITIONS if name in batch}
    if cond:
        cond["keep"] = jax.random.uniform(key, (len(next(iter(cond.values()))),)) >= drop
    return cond


def check_interval(key: str, interval: tuple[float, ...]) -> None:
    if len(interval) != 2 or not 0 <= interval[0] <= interval[1] <= 1:
        raise UserError(f"config.objective.{key}={interval} must be (low, high) with 0 <= low <= high <= 1")


def guided(model: Any, batch: int, cond: Cond | None, negative: Cond | None, weight: float, interval: Interval | None) -> Predict:
    """The model's prediction for a batch of this size, which inside the interval is null + weight·(prediction - null).

    negative: takes the place of the null condition
    interval: of noise levels; both predictions are then one evaluation of twice the batch. None = no guidance
    """
    B, cond = batch, dict(cond or {})
    kept, dropped = {**cond, "keep": jnp.ones(B, bool)}, {**cond, "keep": jnp.zeros(B, bool)}
    if negative is not None:
        dropped = {**negative, "keep": jnp.ones(B, bool)}
    both = {} if interval is None else jax.tree.map(lambda a, b: jnp.concatenate([a, b]), kept, dropped)
    kept = kept if cond else {}
    if hasattr(model, "encode"):  # what depends on the conditions alone is computed once for all evaluations
        kept, both = model.encode(kept, B), model.encode(both, 2 * B)

    def plain(x: jax.Array, *times: jax.Array) -> jax.Array:
        return model(x, *(jnp.broadcast_to(each, (B,)) for each in times), cond=kept).pred

    def guiding(x: jax.Array, *times: jax.Array, inside: jax.Array | None = None) -> jax.Array:
        twice = (jnp.tile(jnp.broadcast_to(each, (B,)), 2) for each in times)
        pred, null = jnp.split(model(jnp.concatenate([x, x]), *twice, cond=both).pred, 2)
        moved = null + weight * (pred - null)
        return moved if inside is None else jnp.where(along(inside, x), moved, pred)

    def predict(x: jax.Array, t: jax.Array, level: jax.Array, r: jax.Array | None = None) -> jax.Array:
        times = (t,) if r is None else (t, r)
        if interval is None:
            return plain(x, *times)
        low, high = interval
        if (low, high) == (0, math.inf):  # without a branch that is never taken, which would be compiled too
            return guiding(x, *times)
        inside = (level >= low) & (level <= high)
        return guiding(x, *times, inside=inside) if jnp.ndim(inside) else jax.lax.cond(inside, guiding, plain, x, *times)

    return predict
