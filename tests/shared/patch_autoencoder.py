"""An autoencoder that loses nothing: patches of 2x2 pixels, turned by an orthogonal matrix and moved, with a posterior of known spread.

And the latents of 8x8 digits by it.
"""

import hashlib
import itertools
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import prepare_latents
import pytest

from tinygen import build
from tinygen import config as config_lib
from tinygen.errors import UserError
from tinygen.pretrained import autoencoder
from tinygen.pretrained.autoencoder import Autoencoder

FACTOR = 2
SPREAD = 0.25  # standard deviation of every posterior


def load(source, option):
    """The one that a file's text stands for, in place of `autoencoder.load`: another text is another autoencoder."""
    path = Path(source)
    if not path.is_file():
        raise UserError(f"{option}={source}: there is no such file or folder")
    numbers = np.random.default_rng(len(path.read_bytes()))
    matrix = np.linalg.qr(numbers.normal(size=(4, 4)))[0].astype(np.float32)
    variables = {"matrix": matrix, "offset": np.float32([3, -1, 0, 2])}
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return Autoencoder(
        name=path.name, sha256=sha256, factor=FACTOR, channels=4, codes=0, image_channels=1, variables=variables, encode=encode,
        decode=decode,
    )  # fmt: skip


def encode(variables, x):
    B, H, W, _ = x.shape
    patches = x.reshape(B, H // 2, 2, W // 2, 2).swapaxes(2, 3).reshape(B, H // 2, W // 2, 4)
    mean = jnp.matmul(patches, variables["matrix"], precision="highest") + variables["offset"]
    return mean, jnp.full_like(mean, SPREAD)


def decode(variables, z):
    B, h, w, _ = z.shape
    patches = jnp.matmul(z - variables["offset"], variables["matrix"].T, precision="highest")
    return patches.reshape(B, h, w, 2, 2).swapaxes(2, 3).reshape(B, 2 * h, 2 * w, 1)


RECIPE = """
from tinygen.config import base, vary


def get_config(variant=""):
    return vary(base(data=dict(name="digits8")), variant, faces=dict(data=dict(name="pixel_faces")))
"""


def words(place, variant=""):
    """The arguments of scripts/prepare/prepare_latents.py in `make`, except for --out."""
    return [f"--config={place / 'recipe.py'}{variant}", f"--autoencoder={place / 'patches'}"]


def make(place):
    """In a folder a recipe, the file of an autoencoder and the latents of the recipe's images; and those images."""
    (place / "recipe.py").write_text(RECIPE)
    (place / "patches").write_text("an autoencoder")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(autoencoder, "load", load)
        assert prepare_latents.main([*words(place), f"--out={place / 'latents'}"]) == 0
    return SimpleNamespace(place=place, folder=place / "latents", images=build.data_source(config_lib.base(data=dict(name="digits8"))))


def source_of(folder, **changes):
    """The data source of prepared latents."""
    return build.data_source(config_lib.base(data=dict(name="latents", path=str(folder), **changes)))


def read(source, num, split="train", seed=0, **keywords):
    """The first `num` batches of 16."""
    return list(itertools.islice(source.batches(split, 16, seed, **keywords), num))
