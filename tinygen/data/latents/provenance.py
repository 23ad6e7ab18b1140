"""Where latents come from, and what brings them to the scale of a model. It goes wherever they go: into their folder, and into a codec."""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from tinygen.data.domain import Domain
from tinygen.errors import UserError
from tinygen.media.field import Spec

LONGEST = 4096  # characters of a name or a path
LARGEST = 2**14  # pixels a side, and channels
FAR = 3.0  # from a standard deviation of 1: a few images may vary less or more than all


@dataclasses.dataclass(frozen=True, kw_only=True)
class Latents(Domain):
    """Says that `x` holds latents z of an autoencoder, as x = (z - shift) · scale, and no pixels.

    name: of the autoencoder
    sha256: of its weights
    source: the file or the run that it was; a hint, for it may have moved
    factor: pixels that a side of a latent stands for
    image: shape [H, W, C] of an image as the autoencoder takes and gives it, in [-1, 1]
    scale: 1 / standard deviation of the training latents, over all channels
    shift: their mean, a channel
    data: the section of the recipe whose images these are
    images: the fingerprint of those images
    """

    name: str
    sha256: str
    source: str
    factor: int
    image: tuple[int, int, int]
    scale: float
    shift: tuple[float, ...]
    data: Mapping[str, Any]
    images: str

    raw: ClassVar[bool] = False

    def __post_init__(self) -> None:
        words = (self.name, self.source, self.images)
        if not all(isinstance(word, str) and len(word) <= LONGEST for word in words) or not re.fullmatch("[0-9a-f]{64}", str(self.sha256)):
            raise UserError("these latents do not say which autoencoder made them")
        sides = (self.factor, *self.image)
        if len(sides) != 4 or not all(type(side) is int and 0 < side <= LARGEST for side in sides):
            raise UserError(f"images of shape {str(self.image)[:80]} by a factor of {str(self.factor)[:80]}: four whole numbers are needed")
        if self.image[0] % self.factor or self.image[1] % self.factor:
            raise UserError(f"images of {self.image[0]}x{self.image[1]} pixels are no multiple of the autoencoder's factor {self.factor}")
        numbers = (self.scale, *self.shift)
        if not all(isinstance(number, int | float) and abs(number) < 1e30 for number in numbers) or self.scale <= 0:
            raise UserError("scale and shift of these latents are no finite numbers, or the scale is not positive")
        if not isinstance(self.data, Mapping) or not 0 < len(self.shift) <= LARGEST:
            raise UserError("these latents do not say which images they are of, or have no channels")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of a latent [h, w, c]."""
        return self.image[0] // self.factor, self.image[1] // self.factor, len(self.shift)

    def to_json(self) -> dict[str, Any]:
        return {"latents": dataclasses.asdict(self)}

    def check_spec(self, spec: Spec) -> None:
        if "x" not in spec or spec["x"].shape != self.shape:
            raise UserError(f"an example does not have the shape of these latents, {list(self.shape)}")

    def check(self, batch: Mapping[str, np.ndarray]) -> None:
        """Raises UserError where the standard deviation is far from 1."""
        if not 1 / FAR < (spread := float(np.std(batch["x"]))) < FAR:
            raise UserError(
                f"first batch: the latents have a standard deviation of {spread:.3g} where it should be 1: is their scale wrong?"
            )

    def moved(self, autoencoder: str) -> "Latents":
        return dataclasses.replace(self, source=autoencoder)

    def differences(self, old: Domain) -> list[str]:
        """The autoencoder, and what brings its latents to a model's scale: equal numbers mean the same only where both are equal."""
        if not isinstance(old, Latents):
            return []
        if old.sha256 != self.sha256:
            return [f"autoencoder: {old.name} (sha256 {old.sha256[:16]}) -> {self.name} ({self.sha256[:16]})"]
        if (old.scale, old.shift) != (self.scale, self.shift):
            return [f"scale of latents: {old.scale:.6g} -> {self.scale:.6g} (scripts/prepare/prepare_latents.py --like=DIR keeps it)"]
        return []

    def scaled(self, z: np.ndarray) -> np.ndarray:
        """The autoencoder's latents [..., c] as a model has them: of mean 0 and variance 1 over the training split."""
        return ((z - np.asarray(self.shift, np.float32)) * np.float32(self.scale)).astype(np.float32)

    def unscaled(self, x: np.ndarray) -> np.ndarray:
        """The inverse of `scaled`."""
        return (np.asarray(x, np.float32) / np.float32(self.scale) + np.asarray(self.shift, np.float32)).astype(np.float32)

    @classmethod
    def from_json(cls, tree: Any) -> "Latents":
        """The inverse of `dataclasses.asdict`. Raises UserError, or what Python raises for a tree that is none."""
        return cls(**{**tree, "image": tuple(tree["image"]), "shift": tuple(tree["shift"])})


class Moments:
    """Mean and variance of latents that are drawn from posteriors, from these alone, over as many batches as there are."""

    def __init__(self) -> None:
        self.num = 0
        self.sums: Any = 0.0

    def add(self, mean: np.ndarray, std: np.ndarray) -> None:
        """mean, std: [B, h, w, c]"""
        mean, std = mean.astype(np.float64), std.astype(np.float64)
        self.num += math.prod(mean.shape[:-1])
        self.sums += np.stack([each.sum((0, 1, 2)) for each in (mean, mean**2 + std**2)])

    def scale_and_shift(self) -> tuple[float, tuple[float, ...]]:
        """(1 / standard deviation over all channels, mean a channel), by the law of total variance. Raises UserError where none vary."""
        first, second = self.sums / max(self.num, 1)
        variance = float(np.mean(second - first**2))
        if not math.isfinite(variance) or variance <= 1e-12:
            raise UserError(f"the latents do not vary (variance {variance:.3g}): is the autoencoder trained?")
        return variance**-0.5, tuple(first.tolist())
