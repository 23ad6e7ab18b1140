"""The trained weights of a run, loaded from a checkpoint for sampling and evaluation."""

import hashlib
from typing import Any

import jax
import numpy as np
from flax import nnx

from tinygen import build
from tinygen import config as config_lib
from tinygen.checkpoints import store
from tinygen.nn.names import path_name
from tinygen.train_step import Tree, split

# Sampling shards the batch over the available devices, not the weights, and may use another attention method than training.
EVERYWHERE = {"mesh": {"data": -1, "fsdp": 1, "tensor": 1}, "sharding": {"rules": ()}, "attention": "auto"}


def load(saved: store.Saved, parts: build.Parts, *, ema: bool) -> tuple[Tree, Tree]:
    """(weights, buffers) of a checkpoint on this machine's devices; the optimizer's moments are not read."""
    branch = "ema" if ema else "params"
    abstract = jax.eval_shape(lambda: dict(zip((branch, "buffers"), split(parts.create(nnx.Rngs(0)))[1:], strict=True)))
    tree = saved.restore_weights(abstract, parts.layout.shardings(abstract))
    return tree[branch], tree["buffers"]


def frozen(saved: store.Saved) -> tuple[build.Parts, Tree, Tree]:
    """(parts in float32, averaged weights, buffers) of a run whose network serves others; the arrays are on the host."""
    parts = build.parts(config_lib.change(saved.config, {"precision": "float32", **EVERYWHERE}), saved.codec)
    with jax.set_mesh(parts.layout.mesh):
        return parts, *jax.device_get(load(saved, parts, ema=True))


def digest(tree: Any) -> str:
    """SHA-256 of all arrays with their names, dtypes and shapes, the same for equal weights however they were saved."""
    total = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.ascontiguousarray(leaf)
        total.update(f"{path_name(path)} {array.dtype} {array.shape}\n".encode())
        total.update(array.tobytes())
    return total.hexdigest()
