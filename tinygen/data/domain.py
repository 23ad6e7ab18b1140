"""Domains: how models see a medium: as raw values, as levels of brightness, or as latents, which have a provenance and a scale."""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from tinygen.errors import UserError
from tinygen.media.base import FREE, Spec

LONGEST = 4096  # characters of a name or a path
LARGEST = 2**14  # pixels per side, and channels
MOST_CODES = 2**24
SAME = 0.98  # share of a batch's tokens above which they are too much alike
FAR = 3.0  # tolerated factor between the standard deviation of a batch and 1


@dataclasses.dataclass(frozen=True)
class Domain:
    """The domain of raw values; subclasses override what differs. `tinygen.pretrained.latents` decodes latents.

    raw: whether the medium needs no network
    key: the array of an example that holds the values
    """

    raw: ClassVar[bool] = True
    key: ClassVar[str] = "x"

    def to_medium(self, x: np.ndarray) -> np.ndarray:
        """Values [N, ...] as those of the medium, unless a network is needed for it."""
        return x

    def of_medium(self, x: np.ndarray, known: np.ndarray) -> np.ndarray:
        """An example's tokens int32, FREE where the medium's values x are not `known`, unless a network is needed for it."""
        return np.where(known, x, FREE).astype(np.int32)

    def medium_shape(self, spec: Spec) -> tuple[int, ...]:
        """The shape of an example in the medium."""
        return spec["x" if "x" in spec else "tokens"].shape

    def to_json(self) -> dict[str, Any]:
        return {}

    def check_spec(self, spec: Spec) -> None:
        """Raises UserError if an example's arrays do not fit it."""

    def check(self, batch: Mapping[str, np.ndarray]) -> None:
        """Raises UserError if the first batch is not of this domain."""

    def moved(self, autoencoder: str) -> "Domain":
        """The domain with its autoencoder in another file or run. Raises UserError without an autoencoder."""
        raise UserError(f"--autoencoder={autoencoder}: this run was not trained on latents and needs no autoencoder")

    def differences(self, old: "Domain") -> list[str]:
        """The differences from `old` that change the meaning of trained weights, one line each."""
        return []


@dataclasses.dataclass(frozen=True)
class Levels(Domain):
    """The domain of pixels as tokens, int32 [H, W]: 0 is black, `levels` - 1 white."""

    levels: int

    key: ClassVar[str] = "tokens"

    def __post_init__(self) -> None:
        if type(self.levels) is not int or not 2 <= self.levels <= LARGEST:
            raise UserError(f"{str(self.levels)[:80]} levels of brightness: a whole number from 2 on is needed")

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "Levels | None":
        return cls(tree["levels"]) if tree.get("levels") else None

    def to_json(self) -> dict[str, Any]:
        return {"levels": self.levels}

    def check_spec(self, spec: Spec) -> None:
        field = spec.get("tokens")
        if field is None or len(field.shape) != 2 or (field.low, field.high) != (0, self.levels - 1):
            raise UserError(f"an example must be tokens [H, W] from 0 to {self.levels - 1}, the levels of brightness")

    def check(self, batch: Mapping[str, np.ndarray]) -> None:
        """Raises UserError for a batch on one side of the middle, or without variation, as of data in another scale."""
        tokens, middle = batch["tokens"], (self.levels - 1) / 2
        if tokens.min() >= middle or tokens.max() <= middle or tokens.std() < 0.005 * self.levels:
            span = f"{tokens.min()} to {tokens.max()} of 0 to {self.levels - 1}"
            raise UserError(f"first batch: its levels of brightness span {span}: is their scale wrong?")

    def to_medium(self, x: np.ndarray) -> np.ndarray:
        """[N, H, W] -> grey images [N, H, W, 1] in [-1, 1]; masks are grey."""
        values = np.asarray(x, np.float32) * (2.0 / (self.levels - 1)) - 1.0
        return np.where(np.asarray(x) < self.levels, values, 0.0)[..., None].astype(np.float32)

    def of_medium(self, x: np.ndarray, known: np.ndarray) -> np.ndarray:
        """A grey image [H, W, 1] in [-1, 1] -> the nearest levels int32 [H, W]."""
        return super().of_medium(np.round((x[..., 0] + 1.0) * (self.levels - 1) / 2.0), known)

    def medium_shape(self, spec: Spec) -> tuple[int, ...]:
        return (*spec["tokens"].shape, 1)

    def differences(self, old: Domain) -> list[str]:
        return [f"levels of brightness: {old.levels} -> {self.levels}"] if isinstance(old, Levels) and old != self else []


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoded(Domain):
    """The domain of images that an autoencoder has encoded, as latents or as tokens.

    name: the autoencoder's name
    sha256: the SHA-256 of its weights
    source: its file or run; a hint, for it may have moved
    factor: pixels per latent or token along a side
    image: shape [H, W, C] of the autoencoder's images, in [-1, 1]
    data: the recipe's data section of the images
    images: the fingerprint of the images
    """

    name: str
    sha256: str
    source: str
    factor: int
    image: tuple[int, int, int]
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
        if not isinstance(self.data, Mapping):
            raise UserError("these latents do not say which images they are of")

    @classmethod
    def from_tree(cls, tree: Any) -> "Encoded":
        """The inverse of `dataclasses.asdict`. Raises UserError, or Python's own errors for a malformed tree."""
        if "codes" in tree:
            return Tokens(**{**tree, "image": tuple(tree["image"])})
        return Latents(**{**tree, "image": tuple(tree["image"]), "shift": tuple(tree["shift"])})

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "Encoded | None":
        return cls.from_tree(tree["latents"]) if tree.get("latents") else None

    def to_json(self) -> dict[str, Any]:
        return {"latents": dataclasses.asdict(self)}

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape [h, w, ...] of an example."""
        return self.image[0] // self.factor, self.image[1] // self.factor

    def check_spec(self, spec: Spec) -> None:
        if self.key not in spec or spec[self.key].shape != self.shape:
            raise UserError(f"an example does not have the shape of these latents, {list(self.shape)}")

    def medium_shape(self, spec: Spec) -> tuple[int, ...]:
        return self.image

    def moved(self, autoencoder: str) -> Self:
        return dataclasses.replace(self, source=autoencoder)

    def differences(self, old: Domain) -> list[str]:
        """Another autoencoder, which changes the meaning of latents and tokens."""
        if isinstance(old, Encoded) and old.sha256 != self.sha256:
            return [f"autoencoder: {old.name} (sha256 {old.sha256[:16]}) -> {self.name} ({self.sha256[:16]})"]
        return []


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokens(Encoded):
    """The domain of tokens int32 [h, w] of an autoencoder that quantizes. codes: their number; every token is below it"""

    codes: int

    key: ClassVar[str] = "tokens"

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.codes) is not int or not 2 <= self.codes <= MOST_CODES:
            raise UserError(f"tokens of {str(self.codes)[:80]} codes: a whole number from 2 to {MOST_CODES:,} is needed")

    def check_spec(self, spec: Spec) -> None:
        super().check_spec(spec)
        if (spec["tokens"].low, spec["tokens"].high) != (0, self.codes - 1):
            raise UserError(f"the tokens of an example must be codes from 0 to {self.codes - 1}")

    def check(self, batch: Mapping[str, np.ndarray]) -> None:
        """Raises UserError for tokens that are nearly all the same, as of images in another scale."""
        tokens = np.asarray(batch["tokens"])
        if np.unique(tokens, return_counts=True)[1].max() > SAME * tokens.size:
            raise UserError("first batch: nearly all tokens are the same: is the tokenizer trained, and for images of this scale?")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Latents(Encoded):
    """The domain of latents: `x` = (z - shift) · scale for latents z of an autoencoder.

    scale: 1 / standard deviation of the training latents, over all channels
    shift: their mean, per channel
    """

    scale: float
    shift: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        numbers = (self.scale, *self.shift)
        if not all(isinstance(number, int | float) and abs(number) < 1e30 for number in numbers) or self.scale <= 0:
            raise UserError("scale and shift of these latents are no finite numbers, or the scale is not positive")
        if not 0 < len(self.shift) <= LARGEST:
            raise UserError("these latents have no channels")

    @property
    def shape(self) -> tuple[int, ...]:
        return *super().shape, len(self.shift)

    def check(self, batch: Mapping[str, np.ndarray]) -> None:
        """Raises UserError if the standard deviation is far from 1."""
        if not 1 / FAR < (spread := float(np.std(batch["x"]))) < FAR:
            raise UserError(
                f"first batch: the latents have a standard deviation of {spread:.3g} where it should be 1: is their scale wrong?"
            )

    def differences(self, old: Domain) -> list[str]:
        """Another autoencoder, or another scale."""
        if found := super().differences(old):
            return found
        if isinstance(old, Latents) and (old.scale, old.shift) != (self.scale, self.shift):
            return [f"scale of latents: {old.scale:.6g} -> {self.scale:.6g} (scripts/prepare/prepare_latents.py --like=DIR keeps it)"]
        return []

    def scaled(self, z: np.ndarray) -> np.ndarray:
        """Scales the autoencoder's latents [..., c] to mean 0 and variance 1 over the training split."""
        return ((z - np.asarray(self.shift, np.float32)) * np.float32(self.scale)).astype(np.float32)

    def unscaled(self, x: np.ndarray) -> np.ndarray:
        """The inverse of `scaled`."""
        return (np.asarray(x, np.float32) / np.float32(self.scale) + np.asarray(self.shift, np.float32)).astype(np.float32)


class Moments:
    """Accumulates mean and variance of latents over batches, from their posteriors."""

    def __init__(self) -> None:
        self.num = 0
        self.sums: Any = 0.0

    def add(self, mean: np.ndarray, std: np.ndarray) -> None:
        """mean, std: [B, h, w, c]"""
        mean, std = mean.astype(np.float64), std.astype(np.float64)
        self.num += math.prod(mean.shape[:-1])
        self.sums += np.stack([each.sum((0, 1, 2)) for each in (mean, mean**2 + std**2)])

    def scale_and_shift(self) -> tuple[float, tuple[float, ...]]:
        """(1 / standard deviation over all channels, mean per channel), by the law of total variance. Raises UserError if constant."""
        first, second = self.sums / max(self.num, 1)
        variance = float(np.mean(second - first**2))
        if not math.isfinite(variance) or variance <= 1e-12:
            raise UserError(f"the latents do not vary (variance {variance:.3g}): is the autoencoder trained?")
        return variance**-0.5, tuple(first.tolist())
