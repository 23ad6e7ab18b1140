"""Named random streams. Every key is a function of the seed, a name and a number; keys are never saved.

Draws depend on the key alone, not on the environment: the generator is named where a key is created, and the JAX options that
change what a key draws are pinned here, the only place where keys are created.
"""

import functools
import zlib

import jax

GENERATOR = "threefry2x32"  # whatever JAX_DEFAULT_PRNG_IMPL is: RBG's numbers depend on the rest of a batch

for option, value in dict(
    jax_threefry_partitionable=True,  # numbers depend on their index in the global array, not on its sharding
    jax_random_seed_offset=0,
    jax_enable_x64=False,  # otherwise draws are float64, and differ
).items():
    jax.config.update(option, value)


def stream(seed: int, name: str) -> jax.Array:
    """The root key of a stream: "init", "train", "eval", "preview" or "sample". Different names never share a key."""
    return jax.random.fold_in(jax.random.key(seed, impl=GENERATOR), zlib.crc32(name.encode()))


def example_keys(key: jax.Array, start: int | jax.Array, num: int) -> jax.Array:
    """Keys `start` to `start + num` of a stream, one per example: the key of example i depends on i alone."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, start + jax.numpy.arange(num))


def normal(keys: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Standard normal noise [B, *shape], example i from keys[i] alone."""
    return jax.vmap(lambda key: jax.random.normal(key, shape))(keys)


def folded(keys: jax.Array, number: int | jax.Array) -> jax.Array:
    """Keys [B] for the `number`-th draw of each example, derived from its key."""
    return jax.vmap(jax.random.fold_in, (0, None))(keys, number)


def halved(keys: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Each example's key split into two: a pair of keys [B]."""
    pairs = jax.vmap(jax.random.split)(keys)
    return pairs[:, 0], pairs[:, 1]


def categorical(keys: jax.Array, logits: jax.Array) -> jax.Array:
    """int32 [B, ...], one draw per row of logits [B, ..., V]; draws of example i depend on keys[i] alone.

    JAX's default derives each Gumbel variable from one uniform number of 23 bits, so none exceeds 15.9, and tokens less likely than
    about 1e-7 are drawn too rarely or never. mode="high" uses two, which moves that limit to about 1e-14.
    """
    draw = functools.partial(jax.random.categorical, mode="high")
    return jax.vmap(draw)(keys, logits).astype(jax.numpy.int32)
