"""Discrete diffusion: denoise tokens that were masked (Austin et al. 2021; Sahoo et al. 2024, arXiv 2406.07524), or replaced by random ones
and unrolled (SUNDAE, Savinov et al. 2022, arXiv 2112.06749).

The model predicts every token from all of the noisy ones: model(tokens int32 [B, *places], t [B]) -> logits [B, *places, V]. The mask is
token V; t is the share of masked tokens, and 0 for the process `uniform`, whose model must judge the noise by itself.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tinygen.errors import check_positive, unknown
from tinygen.nn.layers import Output
from tinygen.objectives.base import Batch, Objective, weighted, weights
from tinygen.objectives.cross_entropy import terms
from tinygen.objectives.flow import by_time, mean_over
from tinygen.samplers import guidance
from tinygen.samplers.tokens import DrawingTokens

PROCESSES = ("mask", "uniform")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Discrete(DrawingTokens, Objective):
    """token_bytes: length of each token in bytes of text; () for other tokens
    The other fields are described in `DrawingTokens` and in `tinygen.config.schema.OBJECTIVES`.
    """

    passes: ClassVar[tuple[str, ...]] = ("t",)

    token_bytes: tuple[int, ...]
    unrolls: int

    def __post_init__(self) -> None:
        if self.process not in PROCESSES:
            raise unknown("config.objective.process", self.process, PROCESSES)
        check_positive("objective", unrolls=self.unrolls)
        super().__post_init__()

    def facts(self) -> dict[str, Any]:
        """Models of pixels see tokens as one-hot vectors."""
        return {**super().facts(), "shape": (*self.places, self.vocabulary)}

    def loss(self, model: Any, batch: Batch, key: jax.Array, *, train: bool) -> tuple[jax.Array, dict[str, Any]]:
        """Cross-entropy of the tokens, int32 [B, *places], in nats per token, over the batch's valid examples.

        Metrics, (sum, weight) pairs: `loss`; `raw_loss`, equal to it; `raw_loss_t0` to `raw_loss_t3`, by quarter of the share of tokens
        that were masked or replaced; `bits_per_byte` if the tokens are of text and masked, and `raw_loss_unroll0`, ... if replaced.
        """
        level_key, noise_key, keep_key, model_key = jax.random.split(key, 4)
        x, level = batch["tokens"], stratified(level_key, len(batch["tokens"]))
        cond = guidance.conditions_of(batch, keep_key, self.cond_drop if train else 0.0)

        def nll(tokens: jax.Array, t: jax.Array, index: int = 0) -> tuple[jax.Array, jax.Array, Output]:
            """(-log p of the true tokens [B, *places], weighted like the model's predictions; the logits; the model's output)"""
            rngs = nnx.Rngs(mask=jax.random.fold_in(model_key, index)) if train else None
            out = model(tokens, t, cond=cond, rngs=rngs)
            logits = out.pred.astype(jnp.float32)
            each = terms(logits, x, self.vocabulary).nll
            return each if out.weight is None else each * out.weight[..., 0], logits, out

        if self.process == "mask":
            hidden, share = masked(noise_key, level, x.shape)
            each, _, out = nll(jnp.where(hidden, self.mask, x), share)
            error, more = mean_over(each * hidden, None) / share, {}
        else:
            error, out, more = self._unrolled(nll, x, level, noise_key)
            more = {f"raw_loss_unroll{index}": each for index, each in enumerate(more)}
        loss, metrics = weighted(batch, loss=error, raw_loss=error, **more)
        if self.process == "mask" and self.token_bytes:
            valid, count = weights(batch, len(x)), math.prod(x.shape[1:]) / math.log(2)
            spelt = jnp.asarray(np.asarray(self.token_bytes, np.float32))[x].sum(range(1, x.ndim))
            metrics["bits_per_byte"] = (jnp.sum(valid * error) * count, jnp.sum(valid * spelt))
        return loss, {**metrics, **by_time(batch, error, level), **out.stats}

    def derived(self, means: Mapping[str, float]) -> dict[str, float]:
        """`bits_per_token`, an upper bound of the tokens' entropy, for the process `mask`."""
        return {"bits_per_token": means["raw_loss"] / math.log(2)} if self.process == "mask" and "raw_loss" in means else {}

    def _unrolled(self, nll: Any, x: jax.Array, level: jax.Array, key: jax.Array) -> tuple[jax.Array, Output, list[jax.Array]]:
        """(mean error [B] over all unrolls, the last output, the error of each). The model's own samples are the next unroll's input."""
        noise_key, *keys = jax.random.split(key, self.unrolls + 1)
        noisy, zero, errors = replaced(noise_key, x, level, self.vocabulary), jnp.zeros(len(x)), []
        for index, sample_key in enumerate(keys):
            each, logits, out = nll(noisy, zero, index)
            errors.append(mean_over(each, None))
            noisy = jax.lax.stop_gradient(jax.random.categorical(sample_key, logits)).astype(jnp.int32)
        return sum(errors, jnp.zeros(())) / self.unrolls, out, errors


def stratified(key: jax.Array, num: int) -> jax.Array:
    """[num] shares in [0, 1), one in each of `num` equal bins, evenly spaced: their mean varies less than that of independent draws
    (Kingma et al. 2021, arXiv 2107.00630, appendix I.1).
    """
    return (jax.random.uniform(key) + jnp.arange(num) / num) % 1.0


def masked(key: jax.Array, level: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """(bool [B, *places], True for masked tokens; their share [B]): ⌊level·L⌋ + 1 of the L tokens of each example, a random subset.

    With as many masked tokens n, uniform in 1 ... L, the mean cross-entropy over those n is an unbiased estimate of a bound of the
    tokens' entropy (Hoogeboom et al. 2021, arXiv 2110.02037, equation 4). In expectation it equals the ELBO with a mask of probability t,
    uniform in (0, 1), and weight 1 / t, and varies less.
    """
    B, L = shape[0], math.prod(shape[1:])
    num = jnp.minimum((level * L).astype(jnp.int32), L - 1) + 1
    rank = jnp.argsort(jnp.argsort(jax.random.bits(key, (B, L), "uint32"), 1), 1)
    return (rank < num[:, None]).reshape(shape), num / L


def replaced(key: jax.Array, x: jax.Array, share: jax.Array, vocabulary: int) -> jax.Array:
    """Tokens x [B, *places], each replaced with probability `share` [B] by a token drawn uniformly from the whole vocabulary."""
    where, what = jax.random.split(key)
    chosen = jax.random.uniform(where, x.shape) < share.reshape(-1, *[1] * (x.ndim - 1))
    return jnp.where(chosen, jax.random.randint(what, x.shape, 0, vocabulary), x)
