"""Classifier-free guidance (Ho & Salimans 2022), within an interval of noise levels (Kynkäänniemi et al. 2024): what denoisers share."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tinygen.errors import UserError, unknown
from tinygen.groups import in_groups
from tinygen.media import Media
from tinygen.objectives import samplers

CONDITIONS = ("label", "text", "embed", "embed_mask")
MAX_NFE = 10_000

Cond = Mapping[str, jax.Array]
Predict = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""(what the model sees [B, ...], the time that it is told, the noise level that an interval is of: scalars) -> prediction [B, ...]"""


class Denoising:
    """An objective that draws samples from noise, by `_sample(model, keys, cond, negative)`."""

    _sample: Callable[..., jax.Array]

    def sample(self, model: Any, keys: jax.Array, cond: Cond | None = None, negative: Cond | None = None) -> jax.Array:
        """Samples [B, *shape], one a key. `negative` takes the place of the null condition in guidance."""
        return in_groups(functools.partial(self._sample, model), keys, cond, negative)

    def preview(self, model: Any, batch: Cond, keys: jax.Array) -> dict[str, Media]:
        """Samples with the batch's conditions."""
        return {"samples": Media(self.sample(model, keys, {name: batch[name] for name in CONDITIONS if name in batch}))}


def check(cond_drop: float, sampler: str, nfe: int, guidance: float) -> None:
    """Raises UserError for settings of conditions and of sampling that no denoiser can have."""
    if not 0 <= cond_drop < 1:
        raise UserError(f"config.objective.cond_drop={cond_drop} must lie in [0, 1)")
    if not math.isfinite(guidance):
        raise UserError(f"guidance {guidance} must be a finite number; 1 is off")
    if nfe > MAX_NFE:
        raise UserError(f"nfe={nfe}: at most {MAX_NFE:,} network evaluations a sample; 50 are plenty")
    if sampler not in samplers.SAMPLERS:
        raise unknown("sampler", sampler, samplers.SAMPLERS)
    if guidance != 1 and cond_drop == 0:
        raise UserError(f"guidance {guidance} needs a model trained with config.objective.cond_drop > 0; without it use guidance 1")


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

    def plain(x: jax.Array, t: jax.Array) -> jax.Array:
        return model(x, jnp.broadcast_to(t, (B,)), cond=kept if cond else {}).pred

    def guiding(x: jax.Array, t: jax.Array) -> jax.Array:
        pred, null = jnp.split(model(jnp.concatenate([x, x]), jnp.broadcast_to(t, (2 * B,)), cond=both).pred, 2)
        return null + weight * (pred - null)

    def predict(x: jax.Array, t: jax.Array, level: jax.Array) -> jax.Array:
        low, high = interval
        if not acts or (low, high) == (0, math.inf):  # one branch is never taken: not compiled either
            return guiding(x, t) if acts else plain(x, t)
        return jax.lax.cond((level >= low) & (level <= high), guiding, plain, x, t)

    return predict


def cost(level: np.ndarray, *, conditional: bool, weight: float, interval: tuple[float, float]) -> np.ndarray:
    """Network evaluations that a prediction takes at each noise level."""
    low, high = (np.float32(end) for end in interval)
    return np.where((level >= low) & (level <= high), 2 if conditional and weight != 1 else 1, 1)
