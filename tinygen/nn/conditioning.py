"""Conditioning of denoisers besides the time: a label, or the learned null condition in its place, and the objective's scalars."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from tinygen.nn.layers import Embedding, Linear, TimeEmbedding

CONDITIONS = ("label", "text", "embed", "embed_mask")  # arrays of a batch that a model can be given besides the input and the time


class Scalars(nnx.Module):
    """The sum [B, D] of the embeddings of an objective's scalars [B], by name, each in [0, 1] and scaled like t.

    h: the span t - r of an average velocity
    omega: guidance weight, embedded as 1 - 1/ω
    t_lo, t_hi: the interval of t where guidance is applied
    """

    def __init__(self, names: Sequence[str], width: int, scale: float, *, rngs: nnx.Rngs):
        self.names = tuple(names)
        for name in self.names:
            setattr(self, name, TimeEmbedding(width, scale, rngs=rngs))

    def __call__(self, h: jax.Array, cond: Mapping[str, jax.Array]) -> jax.Array:
        scalars = {**cond, "h": h}
        values = {name: 1.0 - 1.0 / scalars[name] if name == "omega" else scalars[name] for name in self.names}
        return sum((getattr(self, name)(value) for name, value in values.items()), jnp.zeros(()))


class Conditioned(nnx.Module):
    """A model with an optional label condition: a table of label embeddings and a learned null, both projected by one layer."""

    def make_label(self, classes: int, width: int, *, precision: str, rngs: nnx.Rngs) -> None:
        """classes: number of labels; 0 for a model without labels"""
        self.label = Embedding(classes, width, rngs=rngs) if classes else None
        self.null = nnx.Param(0.02 * jax.random.normal(rngs.params(), (width,))) if classes else None
        self.condition = Linear(width, width, precision=precision, rngs=rngs) if classes else None

    def label_embedding(self, cond: Mapping[str, jax.Array], batch: int) -> jax.Array:
        """[B, D] of `label` int32 [B], or of the null where `keep` bool [B] is False; zero for a model without labels."""
        if self.label is None or self.null is None or self.condition is None:
            return jnp.zeros(())
        null = jnp.broadcast_to(self.null[...], (batch, self.null.shape[0]))
        if "label" not in cond:
            return self.condition(null)
        label = self.label(cond["label"])
        return self.condition(jnp.where(cond["keep"][:, None], label, null) if "keep" in cond else label)


def span(t: jax.Array, r: jax.Array | None, inputs: Sequence[str], name: str) -> jax.Array:
    """t - r for a model that predicts an average velocity, zero for any other. Raises ValueError if `r` does not fit the model."""
    if (r is not None) != ("h" in inputs):
        problem = "needs r: it predicts an average" if r is None else "takes no r: it predicts an instantaneous"
        raise ValueError(f"{name} {problem} velocity")
    return jnp.zeros_like(t) if r is None else t - r
