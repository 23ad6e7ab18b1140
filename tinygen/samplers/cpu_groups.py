"""Samples a batch in groups on a CPU, whose caches hold a few examples but not a whole batch."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tinygen.nn.flops import products

CACHE = 12 * 2**20  # maximum bytes of the widest product's float32 results per group


def in_groups(sample: Callable[..., Any], keys: jax.Array, *rows: Any) -> Any:
    """`sample(keys, *rows)`, a tree of arrays [B, ...]; on a single CPU device one group of examples after another.

    sample: makes example i from keys[i] and row i of every array of `rows` alone; it is traced once more, for one example
    rows: trees of arrays [B, ...], or None
    """
    B = keys.shape[0]
    groups = -(-B // examples_together(sample, keys, *rows)) if B else 0
    if groups <= 1:
        return sample(keys, *rows)
    size = -(-B // groups)
    index = np.minimum(np.arange(groups * size), B - 1).reshape(groups, size)  # the last example fills the last group
    drawn = jax.lax.map(lambda group: sample(*group), jax.tree.map(lambda x: x[index], (keys, *rows)))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:B], drawn)


def examples_together(sample: Callable[..., Any], keys: jax.Array, *rows: Any) -> int:
    """The number of examples to draw at a time: all, or on a single CPU device those whose widest product fits into CACHE."""
    if jax.default_backend() != "cpu" or jax.sharding.get_abstract_mesh().size > 1:
        return keys.shape[0]
    one = jax.tree.map(lambda x: x[:1], (keys, *rows))
    widest = max((each.batch * each.rows * each.columns for each in products(sample, *one)), default=1)
    return max(1, CACHE // (4 * widest))
