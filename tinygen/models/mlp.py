"""A multilayer perceptron with dropout (Srivastava et al. 2014), for regression."""

import math
from collections.abc import Sequence

import jax
from flax import nnx

from tinygen.errors import check_positive, check_share
from tinygen.nn.layers import Linear, drop, pin


class MLP(nnx.Module):
    """x [B, *shape] -> y [B, *target_shape], through `depth` hidden layers of `hidden` features, each with SiLU and dropout.

    The other keywords are described in `tinygen.config.schema.MODELS`.
    """

    # Hidden layers are sharded in pairs, the first by columns and the second by rows, so that a pair needs one sum over `tensor`. The
    # output layer is replicated: it is hardly more than a vector, and its input has just been summed.
    SHARDING = (
        (r"hidden/\d*[02468]/kernel$", (None, "tensor")),
        (r"hidden/\d*[02468]/bias$", ("tensor",)),
        (r"hidden/\d*[13579]/kernel$", ("tensor",)),
    )

    def __init__(
        self, *, shape: Sequence[int], target_shape: Sequence[int], hidden: int, depth: int, dropout: float, precision: str,
        rngs: nnx.Rngs,
    ):  # fmt: skip
        check_positive("model", hidden=hidden, depth=depth)
        check_share("model", dropout=dropout)
        self.target_shape, self.dropout = tuple(target_shape), dropout
        inputs = [math.prod(shape), *[hidden] * (depth - 1)]
        self.hidden = nnx.List([Linear(each, hidden, precision=precision, rngs=rngs) for each in inputs])
        self.out = Linear(hidden, math.prod(target_shape), precision=precision, rngs=rngs)

    def __call__(self, x: jax.Array, *, rngs: nnx.Rngs | None = None) -> jax.Array:
        """Predictions. rngs: the stream `dropout`, in training; None = no dropout."""
        h = x.reshape(x.shape[0], -1)
        for index, layer in enumerate(self.hidden):
            h = pin(jax.nn.silu(layer(h)), "batch", None if index % 2 else "tensor")
            if rngs is not None and self.dropout:
                h = drop(h, self.dropout, rngs.dropout())
        return self.out(h).reshape(-1, *self.target_shape)
