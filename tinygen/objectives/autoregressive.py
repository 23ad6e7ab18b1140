"""Autoregressive language modelling: predict each token from the preceding ones."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tinygen.errors import UserError, check_share
from tinygen.objectives.base import Batch, Objective, mean, weights
from tinygen.objectives.cross_entropy import cross_entropy, pieces_for
from tinygen.samplers.text import Generating


@dataclasses.dataclass(frozen=True, kw_only=True)
class Autoregressive(Generating, Objective):
    """vocabulary: number of tokens
    token_bytes: length of each token in bytes of text
    The other fields are described in `tinygen.config.schema.OBJECTIVES`.
    """

    passes: ClassVar[tuple[str, ...]] = ("segment",)

    vocabulary: int
    token_bytes: tuple[int, ...]
    label_smoothing: float
    z_loss: float
    logits_mib: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("objective", label_smoothing=self.label_smoothing)
        if not 0 <= self.z_loss < math.inf:
            raise UserError(f"config.objective.z_loss={self.z_loss} must be 0 (none) or positive")
        if not 0 < self.logits_mib <= 2**20:
            raise UserError(f"config.objective.logits_mib={self.logits_mib} must be positive, MiB")

    def loss(self, model: Any, batch: Batch, key: jax.Array, *, train: bool) -> tuple[jax.Array, dict[str, Any]]:
        """Mean cross-entropy, nats per token, of `target` given `tokens`, both int32 [B, L], where `segment` [B, L] is not 0 (padding).

        Training adds label smoothing (Szegedy et al. 2016) and `z_loss` times the squared log-normaliser of the softmax (Chowdhery et al.
        2022). Metrics, (sum, weight) pairs: `loss`, `raw_loss` (the cross-entropy alone), and `bits_per_byte` of the target text, which
        is comparable between vocabularies.
        """
        segment, target = batch["segment"], batch["target"]
        h, _ = model.features(batch["tokens"], segment=segment, rngs=nnx.Rngs(dropout=key) if train else None)
        pieces = pieces_for(math.prod(target.shape), self.vocabulary, self.logits_mib)
        table, pieces = model.table(len(target)), min(pieces, target.shape[1])
        found = cross_entropy(model.unembed, table, h, target, vocabulary=self.vocabulary, pieces=pieces)
        smooth, z_loss = (self.label_smoothing, self.z_loss) if train else (0.0, 0.0)
        error = (1 - smooth) * found.nll + smooth * found.uniform + z_loss * jnp.square(found.normaliser)
        valid = weights(batch, len(target))[:, None] * (segment > 0)
        count = jnp.sum(valid)
        raw = jnp.sum(valid * found.nll)
        spelt = jnp.sum(valid * jnp.asarray(np.asarray(self.token_bytes, np.float32))[target])
        metrics = {"loss": (jnp.sum(valid * error), count), "raw_loss": (raw, count), "bits_per_byte": (raw / math.log(2), spelt)}
        return mean(metrics["loss"]), metrics

    def derived(self, means: Mapping[str, float]) -> dict[str, float]:
        """`perplexity` per token."""
        return {"perplexity": math.exp(min(means["raw_loss"], 700.0))} if "raw_loss" in means else {}
