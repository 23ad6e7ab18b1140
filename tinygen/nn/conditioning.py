"""Conditioning of denoisers besides the time: a label or a caption, or a learned null in its place, and the objective's scalars."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from tinygen.nn.caption_encoder import TextEncoder, pooled
from tinygen.nn.layers import Embedding, Linear, TimeEmbedding

CONDITIONS = ("label", "text", "embed", "embed_mask")  # arrays of a batch that a model can be given besides the input and the time


Caption = tuple[jax.Array, jax.Array]
"""A caption's features [B, S, C], and bool [B, S], False for padding."""


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
    """A model with an optional label, from a table of embeddings and a learned null, both projected by one layer, or optional captions."""

    text: TextEncoder | None = None
    caption: Linear | None = None

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

    def make_caption(self, width: int, condition: int, *, precision: str, rngs: nnx.Rngs, **keywords: Any) -> None:
        """width: features of a caption's token; 0 for a model without captions. keywords: the other ones of `TextEncoder`"""
        self.text = TextEncoder(width=width, precision=precision, rngs=rngs, **keywords) if width else None
        self.caption = Linear(width, condition, precision=precision, rngs=rngs) if width else None

    def encode(self, cond: Mapping[str, jax.Array], batch: int) -> Mapping[str, jax.Array]:
        """The conditions with encoded captions, which do not depend on x or t: encode once, sample with many evaluations.

        `caption` [B, S, C] and `caption_mask` bool [B, S] replace the tokens or embeddings.
        """
        if self.text is None or "caption" in cond:
            return cond
        given = cond.get("text", cond.get("embed"))
        mask = cond.get("embed_mask")
        caption, mask = self.text.null_caption(batch, 1) if given is None else self.text(given, cond.get("keep"), mask)
        rest = {name: value for name, value in cond.items() if name not in ("text", "embed", "embed_mask")}
        return {**rest, "caption": caption, "caption_mask": mask}

    def pooled_condition(self, cond: Mapping[str, jax.Array], batch: int) -> jax.Array:
        """[B, D] of conditions that `encode` has encoded; zero for an unconditional model."""
        words = jnp.zeros(()) if self.caption is None else self.caption(pooled(cond["caption"], cond["caption_mask"]))
        return words + self.label_embedding(cond, batch)

    def caption_tokens(self, cond: Mapping[str, jax.Array]) -> Caption | None:
        """What cross-attention reads of conditions that `encode` has encoded; None without captions."""
        return None if self.text is None else (cond["caption"], cond["caption_mask"])


def span(t: jax.Array, r: jax.Array | None, inputs: Sequence[str], name: str) -> jax.Array:
    """t - r for a model that predicts an average velocity, zero for any other. Raises ValueError if `r` does not fit the model."""
    if (r is not None) != ("h" in inputs):
        problem = "needs r: it predicts an average" if r is None else "takes no r: it predicts an instantaneous"
        raise ValueError(f"{name} {problem} velocity")
    return jnp.zeros_like(t) if r is None else t - r
