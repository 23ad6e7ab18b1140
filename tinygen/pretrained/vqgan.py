"""Files of VQGAN's public tokenizers (Esser et al. 2021): tensor names, and sizes derived from the shapes.

Names are those of the authors' code (CompVis, taming-transformers). The discriminator and the perceptual loss of a full checkpoint,
`loss.`, are ignored. The encoder and decoder are those of latent diffusion's autoencoders, see `stable_diffusion_vae`.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from tinygen.models.tokenizer import Tokenizer
from tinygen.pretrained.stable_diffusion_vae import MOST, abstract, named, parameters, pyramid_of
from tinygen.train_step import Tree

CODEBOOK, LOSS = "quantize.embedding.weight", "loss."


def from_file(arrays: Mapping[str, np.ndarray]) -> tuple[dict[str, Any], dict[str, Tree]]:
    """(sizes as keywords of `Tokenizer`, including the smallest image shape; variables in float32) from a file's arrays.

    Raises ValueError that names the first arrays that are missing, unexpected, of the wrong shape, or not finite.
    """
    names = named([name for name in arrays if not name.startswith(LOSS)])
    book = arrays.get(names.pop(CODEBOOK, ""), np.zeros(0))
    sizes = sizes_of({public: arrays[name].shape for public, name in names.items()}, book.shape)
    if not jnp.issubdtype(book.dtype, jnp.floating) or not np.isfinite(book.astype(np.float32)).all():
        raise ValueError(f"no finite numbers: {CODEBOOK}")
    variables = abstract(lambda rngs: create(sizes, rngs))
    quantizer = {"use": np.ones(len(book), np.float32), "sums": book.astype(np.float32)}
    return sizes, {"params": parameters(arrays, names, variables["params"]), "buffers": {"quantizer": quantizer}}


def sizes_of(shapes: Mapping[str, tuple[int, ...]], book: tuple[int, ...]) -> dict[str, Any]:
    """Keywords of `Tokenizer` derived from the shapes by diffusers' names. Raises ValueError if they are inconsistent or too large.

    book: the shape of the codebook
    """
    if len(book) != 2 or not (2 <= book[0] <= 2**20 and 0 < book[1] <= MOST["features"]):
        raise ValueError(f"{CODEBOOK} is {list(book[:4])}, where a tokenizer has codes")
    pyramid = pyramid_of(shapes)
    attends = any(name.startswith(f"encoder.down_blocks.{len(pyramid['widths']) - 1}.attentions.") for name in shapes)
    return pyramid | dict(attends=attends, codes=book[0], code_width=book[1])


def create(sizes: Mapping[str, Any], rngs: nnx.Rngs) -> Tokenizer:
    kind: dict[str, Any] = dict(precision="float32", attention="auto", needs_jvp=False)
    return Tokenizer(**sizes, quantizer="vq", levels=(), stages=1, code_decay=0.99, **kind, rngs=rngs)
