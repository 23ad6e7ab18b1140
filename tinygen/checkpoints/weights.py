"""What a run has learnt, as whoever uses it afterwards takes it from a checkpoint."""

import hashlib
from typing import Any

import jax
import numpy as np
from flax import nnx

from tinygen import build
from tinygen.checkpoints import store
from tinygen.nn.names import path_name
from tinygen.train_step import Tree, split

# Sampling splits the batch over whatever devices there are, and no weights; they may have another attention than those of the run.
EVERYWHERE = {"mesh": {"data": -1, "fsdp": 1, "tensor": 1}, "sharding": {"rules": ()}, "attention": "auto"}


def load(saved: store.Saved, parts: build.Parts, *, ema: bool) -> tuple[Tree, Tree]:
    """(weights, buffers) of a checkpoint on this machine's devices; the optimizer's moments are never read."""
    branch = "ema" if ema else "params"
    abstract = jax.eval_shape(lambda: dict(zip((branch, "buffers"), split(parts.create(nnx.Rngs(0)))[1:], strict=True)))
    tree = saved.restore_weights(abstract, parts.layout.shardings(abstract))
    return tree[branch], tree["buffers"]


def digest(tree: Any) -> str:
    """SHA-256 of all arrays with their names, types and shapes: that of equal weights, however they were saved."""
    total = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.ascontiguousarray(leaf)
        total.update(f"{path_name(path)} {array.dtype} {array.shape}\n".encode())
        total.update(array.tobytes())
    return total.hexdigest()
