"""Feed-forward layers: [B, L, D] -> [B, L, D], each token by itself."""

import math
from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx

from tinygen.errors import UserError
from tinygen.nn.layers import Linear
from tinygen.nn.matmul import narrow


class FeedForward(nnx.Module):
    """The base of feed-forward layers. zero: initialize the last layer to zero"""

    SHARDING = (
        (r"(gate|up)/kernel$", (None, "tensor")),
        (r"(gate|up)/bias$", ("tensor",)),
        (r"down/kernel$", ("tensor",)),
    )
    up: Linear

    def check_mesh(self, tensor: int, keys: Mapping[str, Any]) -> None:
        """Raises UserError unless mesh.tensor splits the hidden features evenly. keys: config.model's, which the message names"""
        if (hidden := self.up.kernel.shape[1]) % tensor:
            multiple = keys.get("mlp_multiple")
            cure = f"config.model.mlp_multiple={multiple} must be a multiple of it" if multiple else "leave it at 1"
            raise UserError(f"config.mesh.tensor={tensor} splits feed-forwards, and a block's has {hidden} hidden features: {cure}")


class SwiGLU(FeedForward):
    """Feed-forward (silu(x·gate) ⊙ x·up)·down (Shazeer 2020)."""

    def __init__(self, width: int, hidden: int, *, precision: str, rngs: nnx.Rngs, zero: bool = False):
        self.precision = precision
        self.gate = Linear(width, hidden, precision=precision, rngs=rngs)
        self.up = Linear(width, hidden, precision=precision, rngs=rngs)
        self.down = Linear(hidden, width, precision=precision, rngs=rngs, zero=zero)

    def __call__(self, x: jax.Array) -> jax.Array:  # [B, L, D] -> [B, L, D]
        x = narrow(x, precision=self.precision)
        gate, up = (narrow(layer(x), precision=self.precision) for layer in (self.gate, self.up))
        return self.down(jax.nn.silu(gate) * up)


class GELU(FeedForward):
    """Feed-forward gelu(x·up)·down (Hendrycks & Gimpel 2016)."""

    def __init__(self, width: int, hidden: int, *, precision: str, rngs: nnx.Rngs, zero: bool = False):
        self.precision = precision
        self.up = Linear(width, hidden, precision=precision, rngs=rngs)
        self.down = Linear(hidden, width, precision=precision, rngs=rngs, zero=zero)

    def __call__(self, x: jax.Array) -> jax.Array:  # [B, L, D] -> [B, L, D]
        up = narrow(self.up(narrow(x, precision=self.precision)), precision=self.precision)
        return self.down(jax.nn.gelu(up))


def swiglu_hidden(width: int, ratio: float, multiple: int) -> int:
    """Hidden features that give SwiGLU the parameters of a plain layer of `ratio` x `width`: two thirds, rounded up to `multiple`."""
    return math.ceil(2 / 3 * ratio * width / multiple) * multiple
