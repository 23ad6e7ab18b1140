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


def folded(keys: jax.Array, number: int | jax.Array) -> jax.Array:
    """Keys [B] of the `number`-th draw of each example, from its own key."""
    return jax.vmap(jax.random.fold_in, (0, None))(keys, number)


def halved(keys: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two keys of each example in place of its one [B]."""
    pairs = jax.vmap(jax.random.split)(keys)
    return pairs[:, 0], pairs[:, 1]


def categorical(keys: jax.Array, logits: jax.Array) -> jax.Array:
    """int32 [B], a draw from each row of logits [B, V], row i by keys[i] alone."""
    return jax.vmap(jax.random.categorical)(keys, logits).astype(jax.numpy.int32)
