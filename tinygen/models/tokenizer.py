"""An image tokenizer: images to a grid of integers and back, by an autoencoder whose latents are quantized.

The architecture of VQGAN (Esser et al. 2021, arXiv 2012.09841): the encoder and decoder of `tinygen.models.autoencoder`, a 1x1
convolution on either side of the quantizer.
"""

from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx

from tinygen.errors import UserError, check_positive
from tinygen.models.autoencoder import Decoder, Encoder, check_sides, factor_of
from tinygen.nn.convolution import Convolution
from tinygen.nn.quantize import FSQ, VQ, Quantized, ResidualVQ


class Tokenizer(nnx.Module):
    """x [B, H, W, C] in [-1, 1] <-> tokens int32 [B, H/f, W/f], f = 2^(resolutions - 1): sides are multiples of f.

    With more than one of the quantizer's stages, tokens are [B, H/f, W/f, stages].

    shape: (H, W, C) of an image. Other heights and widths are accepted too
    The other keywords are described in `tinygen.config.schema.MODELS`.
    """

    SHARDING = ()  # as the autoencoder

    def __init__(
        self, *, shape: Sequence[int], widths: Sequence[int], depth: int, groups: int, attends: bool, quantizer: str, levels: Sequence[int],
        codes: int, code_width: int, stages: int, code_decay: float, precision: str, attention: str, needs_jvp: bool, rngs: nnx.Rngs,
    ):  # fmt: skip
        check_positive("model", stages=stages)
        if quantizer not in ("fsq", "vq"):
            raise UserError(f"config.model.quantizer={quantizer!r} must be fsq or vq")
        self.factor = factor_of("tokenizer", shape, widths, depth=depth, groups=groups)
        self.latent = stages if quantizer == "vq" else 1  # tokens per place
        if quantizer == "fsq":
            self.quantizer = FSQ(levels)
        elif stages == 1:
            self.quantizer = VQ(codes, code_width, decay=code_decay)
        else:
            self.quantizer = ResidualVQ(stages, codes, code_width, decay=code_decay)
        self.codes, dim = self.quantizer.codes, self.quantizer.dim
        kind: dict[str, Any] = dict(attends=attends, precision=precision, rngs=rngs, attention=attention, needs_jvp=needs_jvp)
        self.encoder = Encoder(shape[-1], dim, widths=widths, depth=depth, groups=groups, **kind)
        self.quant = Convolution(dim, dim, side=1, precision=precision, rngs=rngs)
        self.post_quant = Convolution(dim, dim, side=1, precision=precision, rngs=rngs)
        self.decoder = Decoder(dim, shape[-1], widths=widths, depth=depth, groups=groups, **kind)

    def encode(self, x: jax.Array) -> jax.Array:
        """Tokens int32 [B, H/f, W/f] or [B, H/f, W/f, stages]. Raises UserError for sides that f does not divide."""
        return self._quantized(x).tokens

    def decode(self, tokens: jax.Array) -> jax.Array:  # int32 [B, h, w] or [B, h, w, stages] -> [B, f·h, f·w, C]
        return self.decoder(self.post_quant(self.quantizer.lookup(tokens)))

    def __call__(self, x: jax.Array, *, weight: jax.Array | None = None, rngs: nnx.Rngs | None = None) -> tuple[jax.Array, Quantized]:
        """(the reconstruction, the quantized latents).

        weight, rngs: in training, as explained in `tinygen.nn.quantize.VQ.quantize`
        """
        quantized = self._quantized(x, weight=weight, rngs=rngs)
        return self.decoder(self.post_quant(quantized.z)), quantized

    def check_sides(self, shape: Sequence[int]) -> None:
        """Raises UserError for images of `shape` (H, W, C) whose sides f does not divide."""
        check_sides("tokenizer", shape, self.factor)

    def _quantized(self, x: jax.Array, **training: Any) -> Quantized:
        self.check_sides(x.shape[1:])
        return self.quantizer.quantize(self.quant(self.encoder(x)), **training)
