"""Named random streams. Every key is a function of the seed, a name and a number; none is ever saved."""

import zlib

import jax


def stream(seed: int, name: str) -> jax.Array:
    """The root key of a stream: "init", "train", "eval", "preview" or "sample". Different names never share a key."""
    return jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))


def example_keys(key: jax.Array, start: int | jax.Array, num: int) -> jax.Array:
    """Keys `start` to `start + num` of a stream, one an example: example i's key depends on i alone."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, start + jax.numpy.arange(num))


def normal(keys: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Standard normal noise [B, *shape], example i from keys[i] alone."""
    return jax.vmap(lambda key: jax.random.normal(key, shape))(keys)
