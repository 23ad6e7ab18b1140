"""Maps a model's domain to its medium: identity, or decoding latents with the autoencoder that made them."""

import functools
import json
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tinygen import build
from tinygen import config as config_lib
from tinygen.data.codec import Codec
from tinygen.data.domain import Domain, Latents
from tinygen.data.source import DataSource
from tinygen.distributed import processes
from tinygen.distributed.mesh import Layout, make_mesh
from tinygen.errors import UserError
from tinygen.pretrained import autoencoder

OPTION = "--autoencoder (config.data.autoencoder)"
PIXELS = 2**18  # decoded at once per device: 256 features of each take 256 MiB


def check(domain: Domain) -> None:
    """Loads and caches the autoencoder of latents. Raises UserError if it is missing or not the one that made them."""
    if isinstance(domain, Latents):
        _decoding(domain)


def to_medium(domain: Domain, x: np.ndarray) -> np.ndarray:
    """Maps x [N, ...] of a model's domain to the medium: latents become images [N, H, W, C] in [-1, 1], or slightly beyond.

    Each calling process decodes all of x on its own devices. Raises UserError as `check` does.
    """
    return _decoding(domain)(domain.unscaled(x)) if isinstance(domain, Latents) else domain.to_medium(x)


def items(codec: Codec, x: np.ndarray) -> Any:
    """x [N, ...] of a model's domain as items of its medium: uint8 images [N, H, W, C], texts. Raises UserError as `check` does."""
    return codec.medium.decode(to_medium(codec.domain, x))


def given(codec: Codec, value: str) -> np.ndarray:
    """The tokens of an item with gaps, as the option --given has it: int32 [*places], negative in the gaps. Raises UserError if invalid."""
    return codec.domain.of_medium(*codec.medium.read_given(value, codec.domain.medium_shape(codec.spec)))


def originals(domain: Domain, cure: str) -> DataSource | None:
    """The images behind latents, with which samples are compared; None for data that are not latents.

    cure: advice for the error message
    Raises UserError if the images are gone or have changed.
    """
    if not isinstance(domain, Latents):
        return None
    try:
        source = _images(json.dumps(dict(domain.data), sort_keys=True))
        if source.fingerprint != domain.images:
            raise UserError(f"they have changed since ({domain.images} -> {source.fingerprint})")
    except UserError as error:
        raise UserError(f"the images behind these latents cannot be read: {error}\n{cure}") from error
    return source


@functools.lru_cache(maxsize=1)
def _images(data: str) -> DataSource:
    """The source of a recipe's section `data`, cached since it synchronises the processes."""
    with processes.lead_first("the images"):
        source = build.data_source(config_lib.base(data=json.loads(data)), prepares=False)
    processes.agree("the images", source.fingerprint)
    return source


def _decoding(latents: Latents) -> Callable[[np.ndarray], np.ndarray]:
    return _opened(latents.source, latents.name, latents.sha256, latents.image)


@functools.lru_cache(maxsize=1)
def _opened(source: str, name: str, sha256: str, image: tuple[int, int, int]) -> Callable[[np.ndarray], np.ndarray]:
    found = autoencoder.load(os.path.expanduser(source), OPTION)
    if found.sha256 != sha256:
        raise UserError(
            f"{OPTION}={source} is not the autoencoder that made these latents: {found.name}, sha256 {found.sha256[:16]}, "
            f"in place of {name}, {sha256[:16]}.\nGive the original, or prepare latents with this one."
        )
    return in_batches(found.decode, found.variables, at_once(image))


def at_once(image: tuple[int, ...]) -> int:
    """The number of images of shape [H, W, C] to process at once per device."""
    return max(1, PIXELS // (image[0] * image[1]))


def in_batches(function: Callable[[Any, jax.Array], Any], variables: Any, most: int) -> Callable[[np.ndarray], Any]:
    """Applies `function(variables, x)` to any number of examples, at most `most` per device at a time, on this process's devices.

    Row i of the result must depend on row i of x [N, ...] alone. The variables are replicated arguments of the compiled function.
    """
    layout = Layout(make_mesh(dict(data=-1, fsdp=1, tensor=1), jax.local_devices()))
    jitted = jax.jit(function, in_shardings=(layout.replicated, layout.batch), out_shardings=layout.batch)
    placed = jax.device_put(variables, layout.replicated)

    def apply(x: np.ndarray) -> Any:
        each = min(most, 1 << (-(-len(x) // layout.batch_multiple) - 1).bit_length())  # powers of two, to compile few sizes
        size, results = each * layout.batch_multiple, []
        for first in range(0, len(x), size):
            rows = np.asarray(x[first : first + size], np.float32)
            filled = np.concatenate([rows, np.zeros((size - len(rows), *rows.shape[1:]), np.float32)])
            with jax.set_mesh(layout.mesh):
                result = jax.device_get(jitted(placed, jax.device_put(filled, layout.batch)))
            results.append(result)
        return jax.tree.map(lambda *leaves: np.concatenate(leaves)[: len(x)], *results)

    return apply
