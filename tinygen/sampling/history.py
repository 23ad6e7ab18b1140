"""Animations of samples in the making."""

import jax
import numpy as np

from tinygen import build
from tinygen.data.codec import Batch
from tinygen.distributed import processes
from tinygen.media.image import columns_for
from tinygen.pretrained import latents
from tinygen.rng import example_keys, stream
from tinygen.sampling.draw import Conditions, shared
from tinygen.train_step import Tree, merge

SHOWN = 16  # samples


def animation(
    weights: tuple[Tree, Tree], parts: build.Parts, cond: Batch, *, num: int, seed: int, negative: Batch | None = None
) -> bytes:  # fmt: skip
    """A GIF of the first `num` samples before the first step and after each. b"" on processes that do not lead."""
    root, size = stream(seed, "sample"), parts.layout.padded(num)

    def draw(params: Tree, buffers: Tree, cond: Conditions, negative: Conditions | None = None) -> jax.Array:
        keys = parts.layout.pinned(example_keys(root, 0, size))
        return parts.objective.history(merge(parts.graphdef, params, buffers), keys, cond, negative)

    with jax.set_mesh(parts.layout.mesh):
        jitted = jax.jit(draw, out_shardings=parts.layout.replicated)
        given = [shared(parts, each, 0, size, num) for each in (cond, negative) if each is not None]
        frames = np.asarray(jax.device_get(jitted(*weights, *given)))[:, :num]
    if not processes.leads():
        return b""
    medium, columns = parts.codec.medium, columns_for(len(parts.codec.labels))
    return medium.animate([medium.overview(latents.items(parts.codec, frame), columns) for frame in frames])
