"""Codec: what turns arrays into media and prompts into arrays, without the data.

It is written to the workdir and into every checkpoint, so that sampling never needs the data set.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tinygen.data.captions.embeddings import Embedded
from tinygen.data.captions.tokenizer import Text
from tinygen.data.encoding import composed
from tinygen.data.latents.provenance import Latents
from tinygen.data.text.vocabulary import Vocabulary
from tinygen.errors import UserError, listed, unknown

Batch = dict[str, np.ndarray]

LARGEST = 2**26  # values of an example; what reads a codec believes its shapes, and makes arrays of them
DTYPES = ("float32", "float16", "int32", "int64", "uint8", "bool")
MOST_LABELS, LONGEST_LABEL = 2**20, 1000  # characters
CONDITIONS = ("label", "text", "embed", "embed_mask")  # arrays that samples are made to fit


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """What one array of a batch holds, an example: its shape, its dtype and the closed range of its values."""

    shape: tuple[int, ...]
    dtype: str
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if len(self.shape) > 8 or not all(isinstance(side, int) and side > 0 for side in self.shape) or math.prod(self.shape) >= LARGEST:
            shown = str(list(self.shape[:8]))[:80]
            raise UserError(f"an example of shape {shown}: sides are whole numbers from 1 on, and it has less than {LARGEST:,} values")
        if self.dtype not in DTYPES:
            raise unknown("dtype of an array", self.dtype, DTYPES)
        if not all(bound is None or (isinstance(bound, int | float) and abs(bound) < 1e38) for bound in (self.low, self.high)):
            raise UserError("the bounds of an array are no finite numbers")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Codec:
    """The meaning of a data set's arrays.

    kind: "image" (`x` is [H, W, C] in [-1, 1]), "text" (`tokens`, `target` and `segment` are [L]), or another name for arrays that
        have no picture
    spec: what a batch holds, an example
    labels: the names of the values of `label`, in order; empty without one
    text: how captions and prompts become `text`, int32 [S], or `embed`, float32 [S, D], and `embed_mask`, bool [S]; None where captions
        are not learned from
    vocabulary: of text, what `tokens` mean
    latents: of images of which `x` holds an autoencoder's latents; `tinygen.pretrained.latents` makes pictures of them
    """

    kind: str
    spec: Mapping[str, Field]
    labels: tuple[str, ...] = ()
    text: Text | Embedded | None = None
    latents: Latents | None = None
    vocabulary: Vocabulary | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or not all(isinstance(name, str) for name in self.labels):
            raise UserError("a codec's kind and its labels are words")
        if len(self.labels) > MOST_LABELS or any(len(name) > LONGEST_LABEL for name in self.labels):
            raise UserError(f"there are at most {MOST_LABELS:,} labels, of at most {LONGEST_LABEL:,} characters")
        if "tokens" in self.spec and len(self.spec["tokens"].shape) != 1:
            raise UserError("the tokens of an example are not in one row")
        if self.vocabulary is not None:
            self._check_text(self.vocabulary.end)
        if isinstance(self.text, Text) and "text" in self.spec and self.spec["text"].shape != (self.text.length,):
            raise UserError(f"captions of {self.text.length} tokens, and an array of {list(self.spec['text'].shape)} for them")
        if isinstance(self.text, Embedded):
            shape, there = (self.text.length, self.text.features), (self.text.length,)
            if {name: self.spec[name].shape for name in ("embed", "embed_mask") if name in self.spec} != {
                "embed": shape,
                "embed_mask": there,
            }:
                raise UserError(f"an example does not have embeddings of the shape that its text encoder gives, {list(shape)}")
        if self.latents is not None and ("x" not in self.spec or self.spec["x"].shape != self.latents.shape):
            raise UserError(f"an example does not have the shape of these latents, {list(self.latents.shape)}")

    def facts(self) -> dict[str, Any]:
        """What a model or an objective may need to know of the data, under the names of their keyword arguments."""
        facts: dict[str, Any] = {"classes": len(self.labels), "text_length": 0, "text_vocabulary": 0, "text_features": 0}
        if isinstance(self.text, Text):
            facts |= {"text_length": self.text.length, "text_vocabulary": self.text.vocabulary}
        if isinstance(self.text, Embedded):
            facts |= {"text_length": self.text.length, "text_features": self.text.features}
        if "x" in self.spec:
            facts["shape"] = self.spec["x"].shape
        if "y" in self.spec:
            facts["target_shape"] = self.spec["y"].shape
        if "tokens" in self.spec:
            facts |= {"length": self.spec["tokens"].shape[0], "vocabulary": int(self.spec["tokens"].high or 0) + 1}
        if self.vocabulary is not None:
            facts |= {"token_bytes": tuple(self.vocabulary.byte_lengths.tolist()), "end": self.vocabulary.end}
        return facts

    @property
    def words(self) -> Text | Embedded | Vocabulary | None:
        """How text is read: captions as a condition, or what is learnt itself."""
        return self.vocabulary or self.text

    @property
    def conditional(self) -> bool:
        """Whether there is something to condition samples on."""
        return bool(self.labels) or self.text is not None

    def conditions(self, num: int, labels: Sequence[str] | None = None, prompts: Sequence[str] | None = None) -> Batch:
        """The conditions of `num` samples: the given labels (numbers or names) in turn, or all of them in turn; prompts likewise, or
        those that the codec has for examples. Embeddings of prompts are not among them: `tinygen.sampling.conditions` adds them.

        Raises UserError for a label that does not exist, a prompt that cannot be read, and for either where the model knows none.
        """
        given: Batch = {}
        if labels and not self.labels:
            raise UserError("--labels: this model was trained without labels")
        if prompts and self.text is None:
            raise UserError("--prompt: this model was trained without captions")
        if self.labels:
            chosen = [self.label(name) for name in labels] if labels else range(len(self.labels))
            given["label"] = np.resize(np.asarray(chosen, np.int32), num)
        if isinstance(self.text, Text):
            words = list(prompts or self.text.examples)
            rows = self.text.prompts(words) if words else np.zeros((1, self.text.length), np.int32)  # of padding: no caption
            given["text"] = rows[np.arange(num) % len(rows)]
        return given

    def prompts(self, num: int, prompts: Sequence[str] | None = None) -> list[str]:
        """The words of `num` samples: those given in turn, or the codec's examples; none where it has no text."""
        words = list(prompts or ()) or list(self.text.examples if isinstance(self.text, Text) else ())
        return [words[index % len(words)] for index in range(num)] if words and self.text else []

    def label(self, name: str) -> int:
        """The index of a label given as a name or a number. How the characters of a name are composed does not matter."""
        if name in self.labels:
            return self.labels.index(name)
        known = [composed(each) for each in self.labels]
        if composed(name) in known:
            return known.index(composed(name))
        if re.fullmatch("-?[0-9]+", name):
            if 0 <= int(name) < len(self.labels):
                return int(name)
            raise UserError(f"label {name} is out of range: this model knows 0 to {len(self.labels) - 1} ({listed(self.labels)})")
        raise unknown("label", name, self.labels)

    def decode(self, x: np.ndarray) -> np.ndarray:
        """Pixel values in [-1, 1] as uint8 pixels, rounded to the nearest level: the inverse of `encode_pixels`."""
        return np.clip(np.floor(127.5 * np.asarray(x, np.float32) + 128.0), 0, 255).astype(np.uint8)

    def decoded_by(self, autoencoder: str) -> "Codec":
        """The same, where the autoencoder of its latents has moved to another file or run. Raises UserError for pixels."""
        if self.latents is None:
            learnt = "text, which needs" if self.kind == "text" else "pixels, which need"
            raise UserError(f"--autoencoder={autoencoder}: this run learnt {learnt} none")
        return dataclasses.replace(self, latents=dataclasses.replace(self.latents, source=autoencoder))

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"spec": {key: dataclasses.asdict(field) for key, field in self.spec.items()}}

    def _check_text(self, end: int) -> None:
        """Raises UserError where the arrays are not windows of tokens of the vocabulary."""
        if self.kind != "text":
            raise UserError(f"a vocabulary is of text, and this is {self.kind[:40]!r}")
        parts = [self.spec.get(name) for name in ("tokens", "target", "segment")]
        if len({(part.shape, part.dtype) if part else () for part in parts}) > 1 or not parts[0] or parts[0].dtype != "int32":
            raise UserError("an example of text is not three rows of the same length: tokens, target and segment")
        if any(part is None or (part.low, part.high) != (0, end) for part in parts[:2]):
            raise UserError(f"the tokens of an example are not those of its vocabulary, 0 to {end}")

    @classmethod
    def from_json(cls, tree: Any, place: str = "codec") -> "Codec":
        """The inverse of `to_json`. Raises UserError, naming the `place`, for whatever is no codec."""
        try:
            spec = {key: Field(**{**field, "shape": tuple(field["shape"])}) for key, field in tree["spec"].items()}
            text, latents = tree.get("text"), Latents.from_json(tree["latents"]) if tree.get("latents") else None
            if text is not None and "encoder" in text:
                text = Embedded(**text)
            elif text is not None:
                text = Text(**{**text, "merges": tuple(map(tuple, text["merges"])), "examples": tuple(text["examples"])})
            vocabulary = Vocabulary.from_json(tree["vocabulary"]) if tree.get("vocabulary") else None
            parts = {"spec": spec, "labels": tuple(tree["labels"]), "text": text, "latents": latents, "vocabulary": vocabulary}
            return cls(**{**tree, **parts})
        except UserError as error:
            raise UserError(f"{place}: {error}") from error
        except (TypeError, LookupError, AttributeError) as error:
            raise UserError(f"{place}: it is no codec of this version ({str(error)[:120]})") from error


def encode_pixels(pixels: np.ndarray, levels: int = 256) -> np.ndarray:
    """Integer pixels 0 .. levels-1 as float32 in [-1, 1]."""
    return (pixels.astype(np.float32) * (2.0 / (levels - 1)) - 1.0).astype(np.float32)
