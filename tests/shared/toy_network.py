"""A small feature extractor in place of Inception."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from tinygen.evaluation.features.network import Network
from tinygen.evaluation.features.resize import bicubic


def make(**changes):
    """Eight features of 4x4 pixels, and three logits."""
    numbers = np.random.default_rng(0)
    weights = tuple(numbers.normal(size=shape).astype(np.float32) for shape in ((48, 8), (8, 3)))

    def prepare(image):
        return bicubic(image, (4, 4)).astype(np.float32) / 255

    def apply(variables, x):
        features = jnp.tanh(jnp.dot(x.reshape(len(x), -1), variables[0], precision="highest"))
        return {"features": features, "logits": jnp.dot(features, variables[1], precision="highest")}

    network = Network(
        name="toy", distance="FD-toy", dim=8, preset="4x4", size=(4, 4), prepare=prepare, apply=apply, variables=weights, sha256="0" * 64,
    )  # fmt: skip
    return dataclasses.replace(network, **changes)
