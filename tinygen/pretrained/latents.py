"""Maps a model's domain to its medium: identity, or decoding latents or tokens with the autoencoder that made them."""

import functools
import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from tinygen import build
from tinygen import config as config_lib
from tinygen.data.codec import Codec
from tinygen.data.domain import Domain, Encoded, Latents, Tokens
from tinygen.data.source import DataSource
from tinygen.distributed import processes
from tinygen.distributed.mesh import Layout, make_mesh
from tinygen.errors import UserError
from tinygen.pretrained import autoencoder

OPTION = "--autoencoder (config.data.autoencoder)"
PIXELS = 2**18  # decoded at once per device: 256 features of each take 256 MiB


def check(domain: Domain) -> None:
    """Loads and caches the autoencoder of latents. Raises UserError if it is missing or not the one that made them."""
    if isinstance(domain, Encoded):
        _opened(domain)


def to_medium(domain: Domain, x: np.ndarray) -> np.ndarray:
    """Maps x [N, ...] of a model's domain to the medium: latents and tokens become images [N, H, W, C] in [-1, 1], or slightly beyond.

    Masks become grey. Each calling process decodes all of x on its own devices. Raises UserError as `check` does.
    """
    if isinstance(domain, Latents):
        return _opened(domain).decode(domain.unscaled(x))
    if isinstance(domain, Tokens):
        masked = np.asarray(x) >= domain.codes
        images = _opened(domain).decode(np.where(masked, 0, x))
        return np.where(masked.repeat(domain.factor, 1).repeat(domain.factor, 2)[..., None], 0.0, images)
    return domain.to_medium(x)


def items(codec: Codec, x: np.ndarray) -> Any:
    """x [N, ...] of a model's domain as items of its medium: uint8 images [N, H, W, C], texts. Raises UserError as `check` does."""
    return codec.medium.decode(to_medium(codec.domain, x))


def given(codec: Codec, value: str) -> np.ndarray:
    """The tokens of an item with gaps, as the option --given has it: int32 [*places], negative in the gaps. Raises UserError if invalid."""
    domain = codec.domain
    x, known = codec.medium.read_given(value, domain.medium_shape(codec.spec))
    if isinstance(domain, Tokens):  # a token is known if all of its pixels are
        h, w = domain.shape
        x = _opened(domain).encode(np.where(known[..., None], x, 0.0)[None])[0]
        known = np.all(known.reshape(h, domain.factor, w, domain.factor), (1, 3), keepdims=True)[:, 0, :, 0]
    return domain.of_medium(x, known)


def originals(domain: Domain, cure: str) -> DataSource | None:
    """The images behind latents, with which samples are compared; None for data that are not latents.

    cure: advice for the error message
    Raises UserError if the images are gone or have changed.
    """
    if not isinstance(domain, Encoded):
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


class Coding(NamedTuple):
    """The functions of an autoencoder on any number of examples (see `in_batches`)."""

    encode: Callable[[np.ndarray], Any]
    decode: Callable[[np.ndarray], np.ndarray]


def _opened(domain: Encoded) -> Coding:
    return _loaded(domain.source, domain.name, domain.sha256, domain.image)


@functools.lru_cache(maxsize=1)
def _loaded(source: str, name: str, sha256: str, image: tuple[int, int, int]) -> Coding:
    found = autoencoder.load(os.path.expanduser(source), OPTION)
    if found.sha256 != sha256:
        raise UserError(
            f"{OPTION}={source} is not the autoencoder that made these latents: {found.name}, sha256 {found.sha256[:16]}, "
            f"in place of {name}, {sha256[:16]}.\nGive the original, or prepare latents with this one."
        )
    return Coding(*(in_batches(function, found.variables, at_once(image)) for function in (found.encode, found.decode)))


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
            rows = np.asarray(x[first : first + size])
            rows = rows.astype(np.int32 if np.issubdtype(rows.dtype, np.integer) else np.float32)
            filled = np.concatenate([rows, np.zeros((size - len(rows), *rows.shape[1:]), rows.dtype)])
            with jax.set_mesh(layout.mesh):
                result = jax.device_get(jitted(placed, jax.device_put(filled, layout.batch)))
            results.append(result)
        return jax.tree.map(lambda *leaves: np.concatenate(leaves)[: len(x)], *results)

    return apply
