"""A source of two tokens, the second of which depends on the first, with its exact denoisers."""

import jax.numpy as jnp
import numpy as np

from tinygen.nn.layers import Output
from tinygen.objectives.discrete import Discrete

V = 3
FIRST = np.array([0.5, 0.3, 0.2])
NEXT = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.25, 0.25, 0.5]])
JOINT = FIRST[:, None] * NEXT
ENTROPY = -np.sum(JOINT * np.log(JOINT))
KEYS = dict(
    places=(2,), vocabulary=V, token_bytes=(), process="mask", unrolls=2, cond_drop=0.0, sampler="auto", nfe=2, guidance=1.0,
    temperature=1.0, temperature_decay=0.0, top_k=0, top_p=1.0, schedule="linear", choice_temperature=1.0, remask=0.0, proportion=0.5,
    proportion_decay=0.0,
    min_steps=4,
)  # fmt: skip


def discrete(**changes):
    return Discrete(**(KEYS | changes))


def exact(tokens, t, cond=None, *, rngs=None):
    """The source's conditional distribution of each token given the other, or its marginal where the other is masked."""
    one, two = tokens[:, 0], tokens[:, 1]
    first = jnp.concatenate([jnp.asarray(JOINT / JOINT.sum(0)).T, jnp.asarray(FIRST)[None]])  # [V + 1, V], by the other
    second = jnp.concatenate([jnp.asarray(NEXT), jnp.asarray(JOINT.sum(0))[None]])
    return Output(jnp.log(jnp.stack([first[two], second[one]], 1)).astype(jnp.float32))


def sampled(num, seed=0):
    """int32 [num, 2], drawn from the source."""
    return np.stack(np.divmod(np.random.default_rng(seed).choice(V * V, num, p=JOINT.ravel()), V), 1).astype(np.int32)
