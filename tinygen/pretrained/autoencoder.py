"""Loads trained autoencoders from a file of public weights or from a run of objective autoencoder."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from flax import nnx

from tinygen.checkpoints import store
from tinygen.checkpoints.weights import digest, frozen
from tinygen.errors import UserError
from tinygen.pretrained import stable_diffusion_vae, weights
from tinygen.train_step import Tree, graph_of, merge


@dataclass(frozen=True)
class Autoencoder:
    """A frozen autoencoder, in float32.

    encode: (variables, x [B, H, W, image_channels] in [-1, 1]) -> (mean, σ) of the latents, each [B, H/factor, W/factor, channels]
    decode: (variables, z [B, h, w, channels]) -> x [B, factor·h, factor·w, image_channels]

    Both are pure and jittable. encode raises UserError for images whose sides `factor` does not divide.
    """

    name: str  # of its file, or of the run's folder
    sha256: str  # of the file's bytes, or of a run's weights
    factor: int  # spatial downsampling factor; divides the sides of images
    channels: int  # of the latents
    image_channels: int  # 1 (grey) or 3 (RGB)
    variables: Tree  # the weights, on the host
    encode: Callable[[Tree, jax.Array], tuple[jax.Array, jax.Array]]
    decode: Callable[[Tree, jax.Array], jax.Array]


def load(source: str, option: str) -> Autoencoder:
    """Loads the autoencoder from a .safetensors file of public weights or, averaged, from a run's workdir.

    option: the command-line option that gave the source, for messages
    Raises UserError if there is none.
    """
    if os.path.isfile(source):
        return of_file(source, option)
    if "://" not in source and not os.path.isdir(source):
        raise UserError(f"{option}={source}: there is no such file or folder")
    return of_run(source, option)


def of_file(path: str, option: str) -> Autoencoder:
    """Loads Stable Diffusion's autoencoder, or another of its architecture, from a file that `weights.read` accepts."""
    arrays, sha256 = weights.read(path)
    try:
        sizes, params = stable_diffusion_vae.from_file(arrays)
    except ValueError as error:
        raise UserError(f"{option}={path}: not an autoencoder of latent diffusion (AutoencoderKL): {error}") from error
    name = os.path.basename(path)
    return _frozen(name, sha256, lambda rngs: stable_diffusion_vae.create(sizes, rngs), {"params": params, "buffers": {}})


def of_run(ckpt: str, option: str) -> Autoencoder:
    """Loads the averaged weights of a run of objective autoencoder. Raises UserError for a run of another objective."""
    saved = store.find(ckpt, option=option)
    if saved.config.objective.name != "autoencoder":
        raise UserError(
            f"{option}={ckpt}: a run of objective {saved.config.objective.name!r} has no latents.\n"
            "Train an autoencoder first, tinygen train --config=autoencoder_avatars, and give its workdir."
        )
    parts, params, buffers = frozen(saved)
    variables = {"params": params, "buffers": buffers}
    return _frozen(saved.name, digest(variables), parts.create, variables)


def _frozen(name: str, sha256: str, create: Callable[[nnx.Rngs], Any], variables: Tree) -> Autoencoder:
    graph, model = graph_of(create), nnx.eval_shape(lambda: create(nnx.Rngs(0)))
    return Autoencoder(
        name=name,
        sha256=sha256,
        factor=model.factor,
        channels=model.latent,
        image_channels=model.decoder.out.bias.shape[0],
        variables=variables,
        encode=lambda variables, x: merge(graph, **variables).encode(x),
        decode=lambda variables, z: merge(graph, **variables).decode(z),
    )
