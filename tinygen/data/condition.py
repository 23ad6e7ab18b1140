"""A condition is something that samples can be asked for: a label, a caption, how a text begins."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from tinygen.errors import UserError
from tinygen.media.base import Medium
from tinygen.media.field import Spec

Batch = dict[str, Any]
"""Arrays with a row per sample, or objects that are indexed like one."""

BLOCK = 64  # examples that are read at once


class Examples(Protocol):
    """What a condition reads of a split: see `tinygen.data.source.Examples`."""

    def __len__(self) -> int: ...
    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]: ...
    def captions(self, indices: np.ndarray) -> list[str]: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What a user asks samples for; the defaults ask for nothing.

    labels: numbers or names, used in turn
    prompts: texts, used in turn
    negative: the negative prompt, which guidance steers away from
    stop: strings that end a text
    encoder: the folder or name of the text encoder, where it is not the one that the run used
    read: (condition, encoder) -> the encoder's function, for a condition that needs a text encoder
    """

    labels: Sequence[str] = ()
    prompts: Sequence[str] = ()
    negative: str | None = None
    stop: Sequence[str] = ()
    encoder: str | None = None
    read: Callable[..., Any] | None = None


class Condition:
    """One kind of condition. Every member has a default, which describes a condition that nobody needs to mention.

    A new kind is a subclass in a file of its own, a row of `tinygen.data.codec.CONDITIONS`, and its `keys` in
    `tinygen.nn.conditioning.CONDITIONS`.
    """

    noun: ClassVar[str] = "condition"
    keys: ClassVar[tuple[str, ...]] = ()  # its arrays in a batch
    answers: ClassVar[tuple[str, ...]] = ()  # the fields of a `Request` that are for it
    guides: ClassVar[bool] = True  # whether guidance can act on it
    needs_examples: ClassVar[bool] = False  # whether only examples of the data can say what to ask for by default
    fact: ClassVar[str] = ""  # the argument of a model that can be given it; "" = any model can

    @classmethod
    def from_json(cls, tree: Mapping[str, Any], medium: Medium) -> "Condition | None":
        """The condition that a `codec.json` describes; None where it has no such condition."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """What `codec.json` says of it; the inverse of `from_json`."""
        return {}

    def facts(self) -> dict[str, Any]:
        """What constructors of models and objectives may ask for, under the names of `tinygen.data.codec.FACTS`."""
        return {}

    def check_spec(self, spec: Spec) -> None:
        """Raises UserError where the arrays of an example cannot hold it."""

    def encode(self, request: Request, num: int) -> Batch:
        """Its arrays for `num` samples. Raises UserError for a request that cannot be met."""
        return {}

    def negative(self, request: Request, num: int) -> Batch:
        """Its arrays for the negative prompt."""
        return {}

    def words(self, request: Request, num: int) -> list[str]:
        """What each of `num` samples is asked for, in words; [] without words."""
        return []

    def number(self, request: Request) -> int | None:
        """How many samples a request means that does not give their number; None = as many as usual."""
        return None

    def preview(self, num: int, held_out: Examples) -> tuple[Batch, list[str]]:
        """What the previews of a run ask for: arrays, and words. Without arrays a preview takes those of the held-out examples."""
        return self.encode(Request(), num), self.words(Request(), num)

    def rule(self, request: Request) -> str:
        """What samples are asked for, in the words of a score's protocol."""
        return ", ".join(request.labels) or f"every {self.noun} in turn"

    def of_examples(self, examples: Examples, indices: np.ndarray) -> Batch:
        """Its arrays for the examples at `indices`."""
        parts: dict[str, list[np.ndarray]] = {key: [] for key in self.keys}
        unique, rows = np.unique(indices, return_inverse=True)
        for first in range(0, len(unique), BLOCK):  # whole examples: not all of them at once
            block = examples.take(unique[first : first + BLOCK])
            for key in self.keys:
                parts[key].append(block[key])
        return {key: np.concatenate(blocks)[rows] for key, blocks in parts.items()}

    def describe(self, arrays: Mapping[str, Any], words: Sequence[str]) -> list[dict[str, Any]]:
        """What `samples.json` says of each sample."""
        return []

    @classmethod
    def differences(cls, old: Self | None, new: Self | None) -> list[str]:
        """What makes weights trained with `old` mean something else with `new`, one line each; None = without such a condition."""
        return []

    def unread(self, model: str) -> str:
        """The message for a model that cannot be given it."""
        return f"model {model!r} takes no {self.noun}"


def check_answered(request: Request, conditions: Sequence[Condition]) -> None:
    """Raises UserError for a part of the request that no condition of the model answers."""
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
