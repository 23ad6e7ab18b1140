"""Named random streams. Every key is a function of the seed, a name and a number; none is ever saved.

Numbers drawn from a key depend on the key alone, not on the environment: the generator is named where a key is made, and the
options of JAX that change what a key draws are pinned here, since no key comes from elsewhere.
"""

import functools
import zlib

import jax

GENERATOR = "threefry2x32"  # whatever JAX_DEFAULT_PRNG_IMPL is: numbers of RBG depend on the rest of a batch

for option, value in dict(
    jax_threefry_partitionable=True,  # numbers are counted by their place in the whole array, however it is split over devices
    jax_random_seed_offset=0,
    jax_enable_x64=False,  # or draws are of float64: other numbers
).items():
    jax.config.update(option, value)


def stream(seed: int, name: str) -> jax.Array:
    """The root key of a stream: "init", "train", "eval", "preview" or "sample". Different names never share a key."""
    return jax.random.fold_in(jax.random.key(seed, impl=GENERATOR), zlib.crc32(name.encode()))


def example_keys(key: jax.Array, start: int | jax.Array, num: int) -> jax.Array:
    """Keys `start` to `start + num` of a stream, one for each example: example i's key depends on i alone."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, start + jax.numpy.arange(num))


def normal(keys: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Standard normal noise [B, *shape], example i from keys[i] alone."""
    return jax.vmap(lambda key: jax.random.normal(key, shape))(keys)


def folded(keys: jax.Array, number: int | jax.Array) -> jax.Array:
    """Keys [B] of the `number`-th draw of each example, from its own key."""
    return jax.vmap(jax.random.fold_in, (0, None))(keys, number)


def halved(keys: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two keys [B] for each example in place of its one."""
    pairs = jax.vmap(jax.random.split)(keys)
    return pairs[:, 0], pairs[:, 1]


def categorical(keys: jax.Array, logits: jax.Array) -> jax.Array:
    """int32 [B], a draw from each row of logits [B, V], row i by keys[i] alone.

    JAX's default takes one uniform number of 23 bits for each Gumbel variable, of which none exceeds 15.9: tokens less likely than
    about 1e-7 would be drawn too seldom or never. With mode="high" it takes two, and that limit is about 1e-14.
    """
    draw = functools.partial(jax.random.categorical, mode="high")
    return jax.vmap(draw)(keys, logits).astype(jax.numpy.int32)
