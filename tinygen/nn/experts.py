"""Mixture of experts in which experts choose their tokens (Zhou et al. 2022, arXiv 2202.09368), within each example."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from tinygen.errors import UserError
from tinygen.nn.layers import pin, xavier_uniform
from tinygen.nn.matmul import narrow, product

ROUNDING = 1e-9  # 0.29 · 100 is a little less than 29
STATS = ("routing_entropy", "routing_served", "routing_least")


class Linears(nnx.Module):
    """One linear layer per expert: [E, M, inputs] -> [E, M, outputs]."""

    def __init__(self, experts: int, inputs: int, outputs: int, *, precision: str, rngs: nnx.Rngs):
        self.kernel = nnx.Param(jnp.stack([xavier_uniform(rngs.params(), inputs, outputs) for _ in range(experts)]))
        self.bias = nnx.Param(jnp.zeros((experts, outputs)))
        self.precision = precision

    def __call__(self, x: jax.Array) -> jax.Array:
        y = product(x, self.kernel[...], ((2,), (1,)), ((0,), (0,)), precision=self.precision) + self.bias[...][:, None]
        return pin(y, "tensor", ...)


class Experts(nnx.Module):
    """out_t = Σ_e P[t, e]·SwiGLU_e(x_t) over the experts that have chosen token t; 0 if there are none.

    P is the softmax over experts of x·router. Expert e takes the k tokens of an example with the largest P[., e]. The load is balanced
    without an auxiliary loss, and examples do not depend on each other.

    experts: number of experts, E
    capacity: mean experts per token: k = ⌊capacity · L / E⌋, at least 1 and at most L
    """

    SHARDING = ((r"experts/(gate|up|down)/(kernel|bias)$", ("tensor",)),)

    def __init__(self, width: int, hidden: int, *, experts: int, capacity: float, precision: str, rngs: nnx.Rngs):
        self.capacity, self.precision = capacity, precision
        self.router = nnx.Param(xavier_uniform(rngs.params(), width, experts))
        self.gate = Linears(experts, width, hidden, precision=precision, rngs=rngs)
        self.up = Linears(experts, width, hidden, precision=precision, rngs=rngs)
        self.down = Linears(experts, hidden, width, precision=precision, rngs=rngs)

    def check_mesh(self, tensor: int, keys: Mapping[str, Any]) -> None:
        """Raises UserError unless each of mesh.tensor has as many experts as any other."""
        if (num := self.router.shape[-1]) % tensor:
            raise UserError(f"config.model.experts={num} is not a multiple of config.mesh.tensor={tensor}, which splits them")

    def __call__(self, x: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        """[B, L, D] -> ([B, L, D], STATS).

        routing_entropy: entropy of P over ln E: 1 for a uniform router, 0 where each token has one expert
        routing_served: share of the tokens chosen by at least one expert
        routing_least: the smallest mean P of any expert, times E: 0 for a dead expert
        """
        B, L, D = x.shape
        E = self.router.shape[-1]
        P, share, index = self.route(x)
        taken = jnp.take_along_axis(x[:, None], index[..., None], 2)  # [B, E, k, D]
        given = self._apply(jnp.swapaxes(taken, 0, 1).reshape(E, -1, D)).reshape(E, B, -1, D)
        weighted = share[..., None] * jnp.swapaxes(given, 0, 1)
        out = jax.vmap(lambda index, rows: jnp.zeros((L, D), rows.dtype).at[index].add(rows))(index, weighted)  # per example
        return pin(out, "batch", ...), self._stats(P, index)

    def route(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """(P [B, L, E], each expert's largest P [B, E, k], the tokens they belong to: int32 [B, E, k]).

        Tokens are ranked by ln(P / (1 - P)): the same order as P, without ties where P in float32 is 0 or 1.
        """
        B, L, D = x.shape
        E = self.router.shape[-1]
        # Always in float32: rounded scores would tie, and ties are broken by position.
        rows = pin(x, "batch", ...).reshape(-1, D)
        scores = product(rows, self.router[...], ((1,), (0,)), precision="float32").reshape(B, L, E)
        P = jax.nn.softmax(scores, -1)
        _, index = jax.lax.top_k(jnp.swapaxes(_log_odds(scores), 1, 2), num_taken(L, E, self.capacity))
        return P, jnp.take_along_axis(jnp.swapaxes(P, 1, 2), index, 2), index

    def _apply(self, x: jax.Array) -> jax.Array:
        """Each expert on its rows, [E, M, D] -> [E, M, D]."""
        x = narrow(pin(x, "tensor", ...), precision=self.precision)
        gate, up = (narrow(layer(x), precision=self.precision) for layer in (self.gate, self.up))
        return self.down(jax.nn.silu(gate) * up)

    def _stats(self, P: jax.Array, index: jax.Array) -> dict[str, jax.Array]:
        B, L, E = P.shape
        P = jax.lax.stop_gradient(P)
        entropy = -jnp.sum(jax.scipy.special.xlogy(P, P), -1) / math.log(E) if E > 1 else jnp.zeros((B, L))
        served = jax.vmap(lambda index: jnp.zeros(L).at[index.ravel()].set(1.0))(index)
        values = jnp.mean(entropy), jnp.mean(served), E * jnp.min(jnp.mean(P, (0, 1)))
        return dict(zip(STATS, values, strict=True))


def _log_odds(scores: jax.Array) -> jax.Array:
    """ln(P / (1 - P)) of P = softmax(scores [..., E]): each score less the logarithm of the others' sum of exponentials."""
    others = jnp.where(jnp.eye(scores.shape[-1], dtype=bool), -jnp.inf, scores[..., None, :])  # [..., E, E]
    return jax.lax.stop_gradient(scores - jax.nn.logsumexp(others, -1))


def num_taken(tokens: int, experts: int, capacity: float) -> int:
    """k: how many of an example's tokens each expert takes."""
    return min(tokens, max(1, math.floor(capacity * tokens / experts + ROUNDING)))


def check(experts: int, capacity: float, tokens: int) -> None:
    """Raises UserError for an invalid number or capacity, or if experts would get less than one token."""
    if experts < 0:
        raise UserError(f"config.model.experts={experts} must be 0 (none) or positive")
    if experts and not 0 < capacity <= experts:
        raise UserError(f"config.model.capacity={capacity} must lie above 0 and at most at config.model.experts={experts}")
    if experts and capacity * tokens + ROUNDING < experts:
        raise UserError(
            f"config.model.capacity={capacity} gives {experts} experts less than one token each of an image's {tokens} in training: "
            "raise it, or lower config.model.experts, config.model.mask or config.model.patch"
        )
