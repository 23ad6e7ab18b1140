"""Classification: predict an example's label."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from tinygen.errors import UserError, check_share
from tinygen.media import Image
from tinygen.media.preview import Preview
from tinygen.objectives.base import Batch, Objective, weighted, weights

FRAME = 2  # pixels: grey, like the gaps of a grid, around right predictions; red around wrong ones
RIGHT, WRONG = (0.0, 0.0, 0.0), (1.0, -0.6, -0.6)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classification(Objective):
    """classes: number of labels. The other field is described in `tinygen.config.schema.OBJECTIVES`."""

    classes: int
    label_smoothing: float

    def __post_init__(self) -> None:
        if self.classes < 2:
            found = "one label only" if self.classes else "no labels"
            raise UserError(f"objective 'classification' learns labels, but these data have {found}: see config.data.label")
        check_share("objective", label_smoothing=self.label_smoothing)

    def loss(self, model: Any, batch: Batch, key: jax.Array, *, train: bool) -> tuple[jax.Array, dict[str, Any]]:
        """Mean cross-entropy, nats, over the batch's valid examples. Training uses dropout and label smoothing.

        Label smoothing spreads a share of the target over all classes evenly (Szegedy et al. 2016).
        Metrics: `loss`, `raw_loss` (without smoothing) and `accuracy`, as (sum, weight) pairs.
        """
        scores = jax.nn.log_softmax(model(batch["x"], rngs=nnx.Rngs(dropout=key) if train else None))  # [B, K]
        label = batch["label"]
        raw = -jnp.take_along_axis(scores, label[:, None], 1)[:, 0]
        smooth = self.label_smoothing if train else 0.0
        error = (1.0 - smooth) * raw - smooth * jnp.mean(scores, -1)
        right = (jnp.argmax(scores, -1) == label).astype(jnp.float32)
        return weighted(batch, loss=error, raw_loss=raw, accuracy=right)

    def preview(self, raw: Any, averaged: Any, batch: Batch, keys: jax.Array) -> dict[str, Preview]:
        """The batch's images, least probable label first; wrong predictions have a red frame."""
        x, label = batch["x"], batch["label"]
        if x.ndim != 4 or x.shape[-1] not in (1, 3):
            return {}
        scores = jax.nn.log_softmax(averaged(x))
        valid = weights(batch, len(x)) > 0
        order = jnp.argsort(jnp.where(valid, jnp.take_along_axis(scores, label[:, None], 1)[:, 0], jnp.inf))
        frame = jnp.where((jnp.argmax(scores, -1) == label)[:, None], jnp.array(RIGHT), jnp.array(WRONG))  # [B, 3]
        around = [(0, 0), (FRAME, FRAME), (FRAME, FRAME), (0, 0)]
        inside = jnp.pad(jnp.ones((1, *x.shape[1:3], 1), bool), around)
        shown = jnp.where(inside, jnp.pad(jnp.broadcast_to(x, (*x.shape[:3], 3)), around), frame[:, None, None])
        return {"doubtful": Preview(shown[order], Image())}
