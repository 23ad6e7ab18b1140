"""What denoisers are told besides the time: a label, or the model's own null in its place, and the scalars of an objective."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from tinygen.nn.layers import Embedding, Linear, TimeEmbedding


class Scalars(nnx.Module):
    """The sum [B, D] of embeddings of the scalars [B] that an objective tells, by name, all within [0, 1] and at the scale of t's.

    h: the span t - r of an average velocity
    omega: weight of guidance, told as 1 - 1/ω
    t_lo, t_hi: the interval of t where it acts
    """

    def __init__(self, names: Sequence[str], width: int, scale: float, *, rngs: nnx.Rngs):
        self.names = tuple(names)
        for name in self.names:
            setattr(self, name, TimeEmbedding(width, scale, rngs=rngs))

    def __call__(self, h: jax.Array, cond: Mapping[str, jax.Array]) -> jax.Array:
        known = {**cond, "h": h}
        values = {name: 1.0 - 1.0 / known[name] if name == "omega" else known[name] for name in self.names}
        return sum((getattr(self, name)(value) for name, value in values.items()), jnp.zeros(()))


class Conditioned(nnx.Module):
    """A model that may know a label: a table of them and the null that stands for none, both through one layer."""

    def make_label(self, classes: int, width: int, *, precision: str, rngs: nnx.Rngs) -> None:
        """classes: 0 for a model without a label"""
        self.label = Embedding(classes, width, rngs=rngs) if classes else None
        self.null = nnx.Param(0.02 * jax.random.normal(rngs.params(), (width,))) if classes else None
        self.condition = Linear(width, width, precision=precision, rngs=rngs) if classes else None

    def labelled(self, cond: Mapping[str, jax.Array], batch: int) -> jax.Array:
        """[B, D] of `label` int32 [B], and of the null where `keep` bool [B] is False; zero for a model without a label."""
        if self.label is None or self.null is None or self.condition is None:
            return jnp.zeros(())
        null = jnp.broadcast_to(self.null[...], (batch, self.null.shape[0]))
        if "label" not in cond:
            return self.condition(null)
        label = self.label(cond["label"])
        return self.condition(jnp.where(cond["keep"][:, None], label, null) if "keep" in cond else label)


def span(t: jax.Array, r: jax.Array | None, inputs: Sequence[str], name: str) -> jax.Array:
    """t - r of a model that predicts an average velocity, and zero of one that does not. Raises ValueError for one given the other's."""
    if (r is not None) != ("h" in inputs):
        is_told = "is told" if r is None else "is not told"
        raise ValueError(f"{name} {is_told} r: it predicts {'an average' if r is None else 'an instantaneous'} velocity")
    return jnp.zeros_like(t) if r is None else t - r
