"""Codec: what arrays mean - what people see in them, what a model sees, and what samples can be asked for - without the data.

It is written to the workdir and into every checkpoint, so that sampling never needs the data set.
"""

import dataclasses
from typing import Any

import numpy as np

from tinygen import media
from tinygen.data.captions.embeddings import CaptionEmbeddings
from tinygen.data.captions.tokenizer import CaptionTokens
from tinygen.data.condition import Batch, Condition, Request
from tinygen.data.domain import Domain
from tinygen.data.labels import Labels
from tinygen.data.latents.provenance import Latents
from tinygen.data.text.prompt import Prompt
from tinygen.errors import UserError
from tinygen.media import Medium
from tinygen.media.field import Field, Spec

__all__ = ["Batch", "Codec", "Field", "encode_pixels"]

RAW = Domain()
CONDITIONS: tuple[type[Condition], ...] = (Labels, CaptionTokens, CaptionEmbeddings, Prompt)

# What the constructors of models and objectives may ask for, and its value where the data have no such thing; None = it is missing then.
FACTS: dict[str, Any] = {
    "shape": None,  # of an example's x
    "target_shape": None,  # of an example's y
    "length": None,  # tokens of a window
    "vocabulary": None,  # number of tokens
    "token_bytes": None,  # bytes of UTF-8 that each token stands for
    "end": None,  # the token that ends a document
    "classes": 0,  # number of labels
    "text_length": 0,  # tokens of a caption
    "text_vocabulary": 0,  # number of tokens of captions, where the model embeds them itself
    "text_features": 0,  # width of a caption's embeddings, where a frozen text encoder made them
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Codec:
    """The meaning of a data set's arrays.

    medium: what people look at
    spec: the arrays of an example
    domain: what of the medium the model sees in `x`
    conditions: what samples can be asked for
    """

    medium: Medium
    spec: Spec
    domain: Domain = RAW
    conditions: tuple[Condition, ...] = ()

    def __post_init__(self) -> None:
        if "tokens" in self.spec and len(self.spec["tokens"].shape) != 1:
            raise UserError("the tokens of an example are not in one row")
        for part in (self.medium, self.domain, *self.conditions):
            part.check_spec(self.spec)

    def facts(self) -> dict[str, Any]:
        """What a model or an objective may need to know of the data: those of FACTS that these data have."""
        facts = {name: value for name, value in FACTS.items() if value is not None}
        if "x" in self.spec:
            facts["shape"] = self.spec["x"].shape
        if "y" in self.spec:
            facts["target_shape"] = self.spec["y"].shape
        if "tokens" in self.spec:
            facts |= {"length": self.spec["tokens"].shape[0], "vocabulary": int(self.spec["tokens"].high or 0) + 1}
        for part in self.conditions:
            facts |= part.facts()
        return facts | self.medium.facts(self.spec)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the values of `label`, in order; () without labels."""
        return next((each.names for each in self.conditions if isinstance(each, Labels)), ())

    @property
    def condition_keys(self) -> tuple[str, ...]:
        """The arrays of an example that hold its conditions."""
        return tuple(key for each in self.conditions for key in each.keys)

    @property
    def guided(self) -> bool:
        """Whether there is a condition that guidance can act on."""
        return any(each.guides for each in self.conditions)

    @property
    def comparable(self) -> bool:
        """Whether scores over image features can take the examples as they are."""
        return self.domain.raw and self.medium.comparable

    @property
    def noun(self) -> str:
        """What the examples are."""
        return self.medium.noun if self.domain.raw else "latents"

    def encode(self, num: int, request: Request | None = None) -> Batch:
        """The arrays of all conditions for `num` samples; without a request each condition's own choice.

        Raises UserError for a request that cannot be met.
        """
        arrays: Batch = {}
        for each in self.conditions:
            arrays |= each.encode(request or Request(), num)
        return arrays

    def moved(self, autoencoder: str) -> "Codec":
        """The same, after the autoencoder of its latents has moved. Raises UserError without latents."""
        return dataclasses.replace(self, domain=self.domain.moved(autoencoder))

    def with_condition(self, condition: Condition, spec: Spec) -> "Codec":
        """The same with one condition more, whose arrays `spec` describes."""
        return dataclasses.replace(self, spec={**self.spec, **spec}, conditions=(*self.conditions, condition))

    def differences(self, old: "Codec", *, rotary: bool) -> list[str]:
        """What makes weights trained on data of the codec `old` mean something else here, one line each.

        rotary: whether the model's positions are rotations, which no weight depends on
        """
        found = self.medium.differences(old.medium)
        for kind in CONDITIONS:
            pair = (next((each for each in codec.conditions if isinstance(each, kind)), None) for codec in (old, self))
            found += kind.differences(*pair)
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
        """The inverse of `to_json`. Raises UserError, naming the `place`, for whatever is no codec."""
        try:
            spec = {key: Field(**{**field, "shape": tuple(field["shape"])}) for key, field in tree["spec"].items()}
            medium = media.from_json(tree)
            domain = Latents.from_json(tree["latents"]) if tree.get("latents") else RAW
            conditions = (kind.from_json(tree, medium) for kind in CONDITIONS)
            codec = cls(medium=medium, spec=spec, domain=domain, conditions=tuple(each for each in conditions if each is not None))
        except UserError as error:
            raise UserError(f"{place}: {error}") from error
        except (TypeError, LookupError, AttributeError) as error:
            raise UserError(f"{place}: it is no codec of this version ({str(error)[:120]})") from error
        read = codec.to_json()
        if unread := [str(key) for key, value in tree.items() if value and not read.get(key)]:
            raise UserError(f"{place}: it is no codec of this version: {codec.noun} data have no {', '.join(unread)[:120]}")
        return codec


def encode_pixels(pixels: np.ndarray, levels: int = 256) -> np.ndarray:
    """Integer pixels 0 .. levels-1 as float32 in [-1, 1]."""
    return (pixels.astype(np.float32) * (2.0 / (levels - 1)) - 1.0).astype(np.float32)
