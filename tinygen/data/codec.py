"""Codec: the meaning of a data set's arrays (medium, domain, conditions), without the data.

It is saved in the workdir and in every checkpoint, so that sampling never needs the data set.
"""

import dataclasses
from typing import Any, TypeVar

import numpy as np

from tinygen import media
from tinygen.data.captions.embeddings import CaptionEmbeddings
from tinygen.data.captions.tokenizer import CaptionTokens
from tinygen.data.condition import Batch, Condition, Request
from tinygen.data.domain import Domain, Encoded, Levels
from tinygen.data.labels import Labels
from tinygen.data.text.prompt import Prompt
from tinygen.errors import UserError
from tinygen.media import Medium
from tinygen.media.base import Field, Spec

__all__ = ["Batch", "Codec", "Field", "encode_pixels"]

Kind = TypeVar("Kind", bound=Condition)
RAW = Domain()
DOMAINS = (Levels, Encoded)
CONDITIONS: tuple[type[Condition], ...] = (Labels, CaptionTokens, CaptionEmbeddings, Prompt)

# Arguments that constructors of models and objectives may take, with their value for data without such a fact; None = absent.
FACTS: dict[str, Any] = {
    "shape": None,  # of an example's x
    "target_shape": None,  # of an example's y
    "places": None,  # the shape of an example's tokens
    "length": None,  # tokens per window
    "vocabulary": None,  # number of tokens
    "token_bytes": (),  # UTF-8 bytes of each token, if the tokens are of text
    "end": None,  # the token that ends a document
    "classes": 0,  # number of labels
    "text_length": 0,  # tokens per caption
    "text_vocabulary": 0,  # number of caption tokens, if the model embeds them itself
    "text_features": 0,  # width of caption embeddings from a frozen text encoder
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Codec:
    """The meaning of a data set's arrays.

    medium: what the data show to people
    spec: the arrays of an example
    domain: how examples represent the medium
    conditions: what samples can be conditioned on
    """

    medium: Medium
    spec: Spec
    domain: Domain = RAW
    conditions: tuple[Condition, ...] = ()

    def __post_init__(self) -> None:
        for part in (self.medium, self.domain, *self.conditions):
            part.check_spec(self.spec)

    def facts(self) -> dict[str, Any]:
        """The FACTS of these data, for constructors of models and objectives."""
        facts = {name: value for name, value in FACTS.items() if value is not None}
        if "x" in self.spec:
            facts["shape"] = self.spec["x"].shape
        if "y" in self.spec:
            facts["target_shape"] = self.spec["y"].shape
        if "tokens" in self.spec:
            places = self.spec["tokens"].shape
            facts |= {"places": places, "vocabulary": int(self.spec["tokens"].high or 0) + 1}
            facts |= {"length": places[0]} if len(places) == 1 else {}
        for part in self.conditions:
            facts |= part.facts()
        return facts | self.medium.facts(self.spec)

    def condition(self, kind: type[Kind]) -> Kind | None:
        """The condition of a kind, if there is one."""
        return next((each for each in self.conditions if isinstance(each, kind)), None)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the values of `label`, in order; () without labels."""
        return labels.names if (labels := self.condition(Labels)) else ()

    @property
    def embeddings(self) -> CaptionEmbeddings | None:
        """The condition whose prompts a text encoder reads, if there is one."""
        return self.condition(CaptionEmbeddings)

    @property
    def condition_keys(self) -> tuple[str, ...]:
        """The keys of the arrays that hold an example's conditions."""
        return tuple(key for each in self.conditions for key in each.keys)

    @property
    def guided(self) -> bool:
        """Whether guidance can act on any condition."""
        return any(each.guides for each in self.conditions)

    @property
    def comparable(self) -> bool:
        """Whether image-feature scores accept the examples unchanged."""
        return self.domain.raw and self.medium.comparable

    @property
    def noun(self) -> str:
        """The plural noun for examples, in messages."""
        return self.medium.noun if self.domain.raw else "latent"

    def encode(self, num: int, request: Request | None = None) -> Batch:
        """The arrays of all conditions for `num` samples; by default each condition's own choice.

        Raises UserError for a request that cannot be met.
        """
        arrays: Batch = {}
        for each in self.conditions:
            arrays |= each.encode(request or Request(), num)
        return arrays

    def moved(self, autoencoder: str) -> "Codec":
        """The codec with its latents' autoencoder at another path. Raises UserError without latents."""
        return dataclasses.replace(self, domain=self.domain.moved(autoencoder))

    def labelled(self, names: tuple[str, ...]) -> "Codec":
        """The codec with labels of these names; itself without names."""
        return self.with_condition(Labels(names), {"label": Field(shape=(), dtype="int32", low=0, high=len(names) - 1)}) if names else self

    def with_condition(self, condition: Condition, spec: Spec) -> "Codec":
        """The codec with one more condition, whose arrays `spec` describes."""
        return dataclasses.replace(self, spec={**self.spec, **spec}, conditions=(*self.conditions, condition))

    def differences(self, old: "Codec", *, rotary: bool) -> list[str]:
        """The differences from `old` that change the meaning of trained weights, one line each.

        rotary: whether the model encodes positions as rotations, which no weight depends on
        """
        found = self.medium.differences(old.medium)
        for kind in CONDITIONS:
            found += kind.differences(old.condition(kind), self.condition(kind))
        for name in sorted((old.spec.keys() | self.spec.keys()) - {"label"}):
            before, now = (
                codec.medium.seen_by_weights(name, codec.spec[name], rotary=rotary) if name in codec.spec else {} for codec in (old, self)
            )
            keys = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
            found += [f"{key} of {name}: {before.get(key)} -> {now.get(key)}" for key in keys]
        return found + self.domain.differences(old.domain)

    def to_json(self) -> dict[str, Any]:
        tree: dict[str, Any] = {"spec": {key: dataclasses.asdict(field) for key, field in self.spec.items()}}
        tree |= {"labels": [], "text": None, "latents": None, "vocabulary": None}  # the keys of every version
        for part in (self.medium, self.domain, *self.conditions):
            tree |= part.to_json()
        return tree

    @classmethod
    def from_json(cls, tree: Any, place: str = "codec") -> "Codec":
        """The inverse of `to_json`. Raises UserError, naming the `place`, for an invalid codec."""
        try:
            spec = {key: Field(**{**field, "shape": tuple(field["shape"])}) for key, field in tree["spec"].items()}
            medium = media.from_json(tree)
            domain = next((found for kind in DOMAINS if (found := kind.from_json(tree)) is not None), RAW)
            conditions = (kind.from_json(tree, medium) for kind in CONDITIONS)
            codec = cls(medium=medium, spec=spec, domain=domain, conditions=tuple(each for each in conditions if each is not None))
        except UserError as error:
            raise UserError(f"{place}: {error}") from error
        except (TypeError, LookupError, AttributeError) as error:
            raise UserError(f"{place}: not a codec of this version ({str(error)[:120]})") from error
        read = codec.to_json()
        if unread := [str(key) for key, value in tree.items() if value and not read.get(key)]:
            raise UserError(f"{place}: not a codec of this version: {codec.noun} data have no {', '.join(unread)[:120]}")
        return codec


def image_codec(shape: tuple[int, ...], labels: tuple[str, ...]) -> Codec:
    """The codec of images as `encode_pixels` gives them, float32 [H, W, C], with labels if there are any."""
    return Codec(medium=media.Image(), spec={"x": Field(shape=shape, dtype="float32", low=-1.0, high=1.0)}).labelled(labels)


def encode_pixels(pixels: np.ndarray, levels: int = 256) -> np.ndarray:
    """Integer pixels 0 .. levels-1 as float32 in [-1, 1]."""
    return (pixels.astype(np.float32) * (2.0 / (levels - 1)) - 1.0).astype(np.float32)
