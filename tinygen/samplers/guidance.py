"""Classifier-free guidance (Ho & Salimans 2022), within an interval of noise levels (Kynkäänniemi et al. 2024): what denoisers share."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from tinygen.errors import UserError, unknown
from tinygen.media.preview import Preview
from tinygen.nn.conditioning import CONDITIONS
from tinygen.samplers import table
from tinygen.samplers.cpu_groups import in_groups
from tinygen.samplers.paths import along

MAX_NFE = 10_000

Cond = Mapping[str, jax.Array]


class Predict(Protocol):
    """x: the model's input [B, ...]; t, r: its times; level: the noise level that guidance_interval refers to. All but x are scalars or
    [B]; r only for models that take one. Returns the prediction [B, ...].
    """

    def __call__(self, x: jax.Array, t: jax.Array, level: jax.Array, r: jax.Array | None = None) -> jax.Array: ...


class Denoising:
    """An objective that draws samples from noise, by `_sample(model, keys, cond, negative)`, as `_integration(conditional)` says."""

    generates: ClassVar[bool] = True

    nfe: int
    sampler: str
    guidance: float
    _sample: Callable[..., tuple[jax.Array, jax.Array]]
    _integration: Callable[[bool], table.Integration]

    def draw(self, model: Any, keys: jax.Array, cond: Cond | None = None, negative: Cond | None = None) -> tuple[jax.Array, jax.Array]:
        """(samples [B, *shape], one a key, the network evaluations that each took, int32 [B]).

        negative: takes the place of the null condition in guidance
        """
        return in_groups(functools.partial(self._sample, model), keys, cond, negative)

    def preview(self, raw: Any, averaged: Any, batch: Cond, keys: jax.Array) -> dict[str, Preview]:
        """Samples with the batch's conditions."""
        return {"samples": Preview(self.draw(averaged, keys, {name: batch[name] for name in CONDITIONS if name in batch})[0])}

    def grid(self, *, conditional: bool) -> np.ndarray:
        """The sampler's times: as many steps as `nfe` allows, two evaluations wherever guidance acts. Raises UserError for not even one."""
        integration = self._integration(conditional)
        if (grid := integration.grid()) is not None:
            return grid
        least, guided = integration.least(), f" with guidance {self.guidance}" if integration.price > 1 else ""
        raise UserError(f"nfe={self.nfe} is too few: one {self.sampler} step{guided} takes {least} network evaluation{'s' * (least > 1)}")

    def evaluations(self, *, conditional: bool) -> int:
        """Network evaluations per sample, at most `nfe`; for an adaptive sampler, the maximum."""
        return self._integration(conditional).evaluations(self.grid(conditional=conditional))


def check(cond_drop: float, sampler: str, nfe: int, guidance: float, learns: str = "velocity") -> None:
    """Raises UserError for settings of conditions and of sampling that no denoiser can have, or none that learns this.

    learns: the field that a model becomes, "velocity" or "average"
    """
    if not 0 <= cond_drop < 1:
        raise UserError(f"config.objective.cond_drop={cond_drop} must lie in [0, 1)")
    if not math.isfinite(guidance):
        raise UserError(f"guidance {guidance} must be a finite number; 1 is off")
    if nfe > MAX_NFE:
        raise UserError(f"nfe={nfe}: at most {MAX_NFE:,} network evaluations a sample; 50 are plenty")
    if sampler not in table.SAMPLERS:
        raise unknown("sampler", sampler, table.SAMPLERS)
    if table.SAMPLERS[sampler].needs != learns:
        raise UserError(
            f"sampler {sampler} needs the velocity at an instant, and an average-velocity model gives the mean over a whole step, which a "
            "slope at both ends corrects wrongly: use sampler average"
            if learns == "average"
            else f"sampler {sampler} takes whole steps of an average velocity, and this objective learns the velocity at an instant: use "
            "sampler heun, or an objective such as meanflow"
        )
    if guidance != 1 and cond_drop == 0:
        raise UserError(f"guidance {guidance} needs a model trained with config.objective.cond_drop > 0; without it use guidance 1")


def check_tolerance(tolerance: float) -> None:
    if not 0 < tolerance < 1:
        raise UserError(f"tolerance={tolerance} must lie in (0, 1): the error that a step of sampler dopri5 may have; 0.001 is usual")


def conditions_of(batch: Cond, key: jax.Array, drop: float) -> dict[str, jax.Array]:
    """A batch's conditions, and `keep`: False for the share `drop` of examples that a model sees without."""
    cond = {name: batch[name] for name in CONDITIONS if name in batch}
    if cond:
        cond["keep"] = jax.random.uniform(key, (len(batch["x"]),)) >= drop
    return cond


def guided(model: Any, batch: int, cond: Cond | None, negative: Cond | None, weight: float, interval: tuple[float, float]) -> Predict:
    """The model's prediction, and inside the interval null + weight·(prediction - null). Several conditions are one batch.

    negative: takes the place of the null condition
    weight: 1 = no guidance, one evaluation
    """
    B, cond = batch, dict(cond or {})
    kept, dropped = {**cond, "keep": jnp.ones(B, bool)}, {**cond, "keep": jnp.zeros(B, bool)}
    if negative is not None:
        dropped = {**negative, "keep": jnp.ones(B, bool)}
    acts = bool(cond) and weight != 1
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), kept, dropped) if acts else {}
    if hasattr(model, "encode"):  # what depends on the conditions alone is computed once for all evaluations
        kept, both = model.encode(kept if cond else {}, B), model.encode(both, 2 * B)

    def plain(x: jax.Array, *times: jax.Array) -> jax.Array:
        return model(x, *(jnp.broadcast_to(each, (B,)) for each in times), cond=kept if cond else {}).pred

    def two(x: jax.Array, *times: jax.Array) -> tuple[jax.Array, jax.Array]:
        twice = (jnp.tile(jnp.broadcast_to(each, (B,)), 2) for each in times)
        pred, null = jnp.split(model(jnp.concatenate([x, x]), *twice, cond=both).pred, 2)
        return pred, null

    def guiding(x: jax.Array, *times: jax.Array) -> jax.Array:
        pred, null = two(x, *times)
        return null + weight * (pred - null)

    def predict(x: jax.Array, t: jax.Array, level: jax.Array, r: jax.Array | None = None) -> jax.Array:
        (low, high), times = interval, (t,) if r is None else (t, r)
        if not acts or (low, high) == (0, math.inf):  # one branch is never taken: not compiled either
            return guiding(x, *times) if acts else plain(x, *times)
        inside = (level >= low) & (level <= high)
        if jnp.ndim(inside) == 0:
            return jax.lax.cond(inside, guiding, plain, x, *times)
        pred, null = two(x, *times)
        return jnp.where(along(inside, x), null + weight * (pred - null), pred)

    return predict


def price(*, conditional: bool, weight: float) -> int:
    """Network evaluations of a prediction at times that differ by example: wherever those are, all get both."""
    return 2 if conditional and weight != 1 else 1


def cost(level: np.ndarray, *, conditional: bool, weight: float, interval: tuple[float, float]) -> np.ndarray:
    """Network evaluations that a prediction takes at each noise level, which is all examples'."""
    low, high = (np.float32(end) for end in interval)
    return np.where((level >= low) & (level <= high), price(conditional=conditional, weight=weight), 1)
