"""A miniGPT as small as can be, for several test modules."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tinygen.models.minigpt import MiniGPT

SMALL = dict(
    length=8, vocabulary=11, width=16, depth=2, heads=4, kv_heads=0, feed_forward="swiglu", mlp_ratio=4.0, mlp_multiple=8,
    positions="rope", tied=True, dropout=0.0, qk_norm=True, vocabulary_multiple=8, precision="float32", attention="auto", remat="none",
    scan=0,
)  # fmt: skip
KINDS = (dict(), dict(positions="learned", feed_forward="gelu", tied=False, qk_norm=False), dict(kv_heads=2))


def abstract(**changes):
    """(graphdef, state of shapes): a model of which nothing is computed."""
    return nnx.split(nnx.eval_shape(lambda: MiniGPT(**(SMALL | changes), rngs=nnx.Rngs(0))))


def made(dtype=np.float32, **changes):
    """A model where nothing is zero: N(0, 0.3²) everywhere."""
    graphdef, state = abstract(**changes)
    rng = np.random.default_rng(1)
    return nnx.merge(graphdef, jax.tree.map(lambda leaf: jnp.asarray(0.3 * rng.normal(size=leaf.shape), dtype), state))


@jax.jit
def features(model, tokens, **given):
    """`model.features` as a program: operation by operation it would be compiled a hundred times."""
    return model.features(tokens, **given)


@jax.jit
def logits(model, tokens, **given):
    """Those of `model(tokens, ...)`, as a program."""
    return model(tokens, **given)
