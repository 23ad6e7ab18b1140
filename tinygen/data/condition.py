"""Conditions: what samples can be conditioned on, such as a label, a caption or the beginning of a text."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from tinygen.data.examples import Batch, Examples
from tinygen.errors import UserError
from tinygen.media.base import Medium, Spec

BLOCK = 64  # examples read at once


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What a user requests of samples; the defaults request nothing.

    labels: numbers or names, used in turn
    prompts: texts, used in turn
    negative: the negative prompt, which guidance steers away from
    stop: strings that end a text
    encoder: folder or name of the text encoder, if not the run's own
    given: an item with gaps that are drawn (see `Medium.read_given`)
    """

    labels: Sequence[str] = ()
    prompts: Sequence[str] = ()
    negative: str | None = None
    stop: Sequence[str] = ()
    encoder: str | None = None
    given: str | None = None


class Condition:
    """One kind of condition. Every member has a default.

    A new kind is a subclass in a file of its own, a row of `tinygen.data.codec.CONDITIONS`, and its `keys` in
    `tinygen.nn.conditioning.CONDITIONS`.
    """

    noun: ClassVar[str] = "condition"
    keys: ClassVar[tuple[str, ...]] = ()  # its arrays in a batch
    answers: ClassVar[tuple[str, ...]] = ()  # the fields of `Request` that it answers
    guides: ClassVar[bool] = True  # whether guidance can act on it
    needs_examples: ClassVar[bool] = False  # whether its default request comes from examples of the data
    fact: ClassVar[str] = ""  # the constructor argument of models that accept it; "" = any model does

    @classmethod
    def from_json(cls, tree: Mapping[str, Any], medium: Medium) -> "Condition | None":
        """The condition described by `codec.json`; None if it has none of this kind."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Its entries in `codec.json`; the inverse of `from_json`."""
        return {}

    def facts(self) -> dict[str, Any]:
        """Arguments for constructors of models and objectives, named as in `tinygen.data.codec.FACTS`."""
        return {}

    def check_spec(self, spec: Spec) -> None:
        """Raises UserError if an example's arrays do not fit it."""

    def encode(self, request: Request, num: int) -> Batch:
        """Its arrays for `num` samples. Raises UserError for a request that cannot be met."""
        return {}

    def words(self, request: Request, num: int) -> list[str]:
        """The request for each of `num` samples in words; [] if it has none."""
        return []

    def number(self, request: Request) -> int | None:
        """The default number of samples for a request; None = the usual number."""
        return None

    def preview(self, num: int, held_out: Examples) -> tuple[Batch, list[str]]:
        """The arrays and words of a run's previews. Without arrays, previews use those of held-out examples."""
        return self.encode(Request(), num), self.words(Request(), num)

    def rule(self, request: Request) -> str:
        """The request in words, for a score's protocol."""
        return ", ".join(request.labels) or f"every {self.noun} in turn"

    def of_examples(self, examples: Examples, indices: np.ndarray) -> Batch:
        """Its arrays for the examples at `indices`."""
        parts: dict[str, list[np.ndarray]] = {key: [] for key in self.keys}
        unique, rows = np.unique(indices, return_inverse=True)
        for first in range(0, len(unique), BLOCK):  # whole examples may not all fit in memory
            block = examples.take(unique[first : first + BLOCK])
            for key in self.keys:
                parts[key].append(block[key])
        return {key: np.concatenate(blocks)[rows] for key, blocks in parts.items()}

    def describe(self, arrays: Mapping[str, Any], words: Sequence[str]) -> list[dict[str, Any]]:
        """The entry of each sample in `samples.json`."""
        return []

    @classmethod
    def differences(cls, old: Self | None, new: Self | None) -> list[str]:
        """The differences that change the meaning of trained weights, one line each; None = no such condition."""
        return []

    def unread(self, model: str) -> str:
        """The message for a model that does not accept it."""
        return f"model {model!r} takes no {self.noun}"


class Prompted(Condition):
    """A condition given in words."""

    noun: ClassVar[str] = "prompt"

    def asked(self, request: Request) -> Sequence[str]:
        """The prompts of the request, or the defaults."""
        return request.prompts

    def words(self, request: Request, num: int) -> list[str]:
        prompts = self.asked(request)
        return [prompts[index % len(prompts)] for index in range(num)] if prompts else []

    def describe(self, arrays: Mapping[str, Any], words: Sequence[str]) -> list[dict[str, Any]]:
        return [{"prompt": each} for each in words]

    def unread(self, model: str) -> str:
        return f"model {model!r} takes no captions: choose microdit, or leave config.text.tokens and config.text.embeddings empty"


def check_answered(request: Request, conditions: Sequence[Condition]) -> None:
    """Raises UserError for a field of the request that no condition answers."""
    answered = {name for each in conditions for name in each.answers}
    refusals = {
        "labels": "--labels: this model was trained without labels",
        "prompts": "--prompt: this model was trained without captions",
        "negative": "--negative: this model was trained without captions",
        "encoder": f"--encoder={request.encoder}: this model was trained without a text encoder",
        "stop": f"--stop={next(iter(request.stop), '')}: this model writes no text",
    }
    for name, refusal in refusals.items():
        value = getattr(request, name)
        if name not in answered and (isinstance(value, str) or value):
            raise UserError(refusal)
