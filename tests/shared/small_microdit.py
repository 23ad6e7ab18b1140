"""A MicroDiT as small as can be, for several test modules."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tinygen.models.microdit import MicroDiT

SMALL = dict(
    shape=(4, 6, 3), classes=3, text_vocabulary=0, text_length=0, text_features=0, text_depth=1, text_width=0,
    patch=2, width=16, depth=2, heads=2, mlp_ratio=4.0, mlp_multiple=8,
    mlp_ratio_first=0.0, attention_first=1.0, mask=0.0, mixer_depth=0, mixer_width=0, experts=0, capacity=2.0,
    positions="sincos", position_grid=0, adaln="block", qk_norm=True, time_scale=1000.0, inputs=(), head=False, precision="float32",
    attention="auto",  needs_jvp=False, remat="none", scan=0,
)  # fmt: skip


def make(**changes):
    return MicroDiT(**(SMALL | changes), rngs=nnx.Rngs(0))


def abstract(**changes):
    """(graphdef, state of shapes): a model of which nothing is computed."""
    return nnx.split(nnx.eval_shape(lambda: make(**changes)))


def drawn(state, dtype=np.float32):
    """Weights where nothing is zero: N(0, 0.3²) everywhere."""
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: jnp.asarray(0.3 * rng.normal(size=leaf.shape), dtype), state)
