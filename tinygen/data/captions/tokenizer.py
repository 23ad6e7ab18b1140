"""Captions and prompts as numbers: bytes, or a byte-level BPE (Sennrich et al. 2016) that was trained on the captions themselves.

0 is padding, 1 to 256 are the bytes, what follows are the merges in their order: whatever is written has tokens, and no token is unknown.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tinygen.data import encoding
from tinygen.data.condition import Batch, Condition, Request
from tinygen.errors import UserError
from tinygen.media import bpe
from tinygen.media.base import Medium
from tinygen.media.bpe import BYTES, MOST_MERGES, Merges
from tinygen.media.field import Spec

LONGEST, MOST_EXAMPLES, LONGEST_EXAMPLE = 4096, 64, 4000


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaptionTokens(Condition):
    """Captions as tokens, which the model embeds itself; stored with the run.

    length: tokens that the model reads, padding included
    merges: of the BPE, pairs of token names as byte-level BPE writes them; none: every byte is a token
    examples: prompts for whoever names none, captions of held-out examples
    """

    length: int
    merges: Merges = ()
    examples: tuple[str, ...] = ()

    noun: ClassVar[str] = "prompt"
    keys: ClassVar[tuple[str, ...]] = ("text",)
    answers: ClassVar[tuple[str, ...]] = ("prompts", "negative")
    fact: ClassVar[str] = "text_length"

    def __post_init__(self) -> None:
        if type(self.length) is not int or not 1 <= self.length <= LONGEST:
            raise UserError(f"a caption has 1 to {LONGEST:,} tokens, not {str(self.length)[:40]}")
        if len(self.merges) > MOST_MERGES or len(self.examples) > MOST_EXAMPLES:
            raise UserError(f"there are at most {MOST_MERGES:,} merges of tokens, and {MOST_EXAMPLES} examples of prompts")
        words = [*self.examples, *(part for pair in self.merges for part in pair)]
        if not all(isinstance(word, str) and len(word) <= LONGEST_EXAMPLE for word in words) or not {len(pair) for pair in self.merges} <= {
            2
        }:
            raise UserError(f"merges are pairs of words and examples are words, of at most {LONGEST_EXAMPLE:,} characters")

    @classmethod
    def from_json(cls, tree: Mapping[str, Any], medium: Medium) -> "CaptionTokens | None":
        text = tree.get("text")
        if text is None or "encoder" in text:
            return None
        return cls(**{**text, "merges": tuple(map(tuple, text["merges"])), "examples": tuple(text["examples"])})

    def to_json(self) -> dict[str, Any]:
        return {"text": dataclasses.asdict(self)}

    def facts(self) -> dict[str, Any]:
        return {"text_length": self.length, "text_vocabulary": self.vocabulary}

    def check_spec(self, spec: Spec) -> None:
        if "text" in spec and spec["text"].shape != (self.length,):
            raise UserError(f"captions of {self.length} tokens, and an array of {list(spec['text'].shape)} for them")

    def encode(self, request: Request, num: int) -> Batch:
        """`text`, int32 [num, length]: the prompts in turn, or the examples; padding alone without either."""
        words = list(request.prompts or self.examples)
        rows = self.prompts(words) if words else np.zeros((1, self.length), np.int32)
        return {"text": rows[np.arange(num) % len(rows)]}

    def negative(self, request: Request, num: int) -> Batch:
        return {"text": self.prompts([request.negative or ""]).repeat(num, 0)}

    def words(self, request: Request, num: int) -> list[str]:
        words = list(request.prompts or self.examples)
        return [words[index % len(words)] for index in range(num)] if words else []

    def rule(self, request: Request) -> str:
        return f"the run's {len(self.examples)} example prompts in turn"

    def describe(self, arrays: Mapping[str, Any], words: Sequence[str]) -> list[dict[str, Any]]:
        return [{"prompt": each} for each in words]

    def unread(self, model: str) -> str:
        return unread(model)

    @property
    def vocabulary(self) -> int:
        """The number of tokens at most, padding included."""
        return 1 + BYTES + len(self.merges)

    def tokens(self, words: str) -> list[int]:
        """All tokens of a caption or a prompt, however many they are; none of an empty one."""
        if not self.merges:
            return [1 + byte for byte in normal(words).encode()]
        return [1 + number for number in self._tokenizer.encode(normal(words)).ids]

    def rows(self, captions: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(int32 [N, length], padded with 0; how many tokens each has, the ends that are cut off included)."""
        out, counts = np.zeros((len(captions), self.length), np.int32), np.zeros(len(captions), int)
        for index, caption in enumerate(captions):
            tokens = self.tokens(caption)
            counts[index] = len(tokens)
            out[index, : len(tokens)] = tokens[: self.length]
        return out, counts

    def shortened(self, words: str) -> str:
        """As many whole words from the beginning as the model reads."""
        parts = normal(words).split(" ")
        while parts and len(self.tokens(" ".join(parts))) > self.length:
            parts.pop()
        return " ".join(parts)

    @functools.cached_property
    def _tokenizer(self) -> Any:
        """Raises UserError for merges of what is no token yet."""
        return bpe.make_tokenizer(self.merges)

    def prompts(self, words: Sequence[str]) -> np.ndarray:
        """int32 [N, length]. Raises UserError for a prompt that is empty or longer than the model reads."""
        for prompt in words:
            num = len(self.tokens(prompt))
            shown = f"{prompt[:60]!r}{'...' * (len(prompt) > 60)}"
            if not num:
                raise UserError(f"the prompt {shown} is empty: say what to draw")
            if num > self.length:
                raise UserError(f"the prompt {shown} has {num} tokens, and this model reads {self.length}: shorten it")
        return self.rows(words)[0]


def unread(model: str) -> str:
    """The message for a model that takes no captions: it would learn without them, and samples would ignore their prompts."""
    return f"model {model!r} is not told captions: take microdit, or leave config.text.tokens and embeddings empty"


def normal(words: str) -> str:
    """A caption or a prompt as it is read: composed, without byte order marks, line breaks, double spaces and spaces at its ends.

    Half a character, which JSON can hold, becomes a question mark.
    """
    return " ".join(encoding.composed(words.encode("utf-8", "replace").decode()).replace(encoding.MARK, "").split())


def trained_merges(captions: Iterable[str], vocabulary: int) -> Merges:
    """The merges of a byte-level BPE of at most `vocabulary` tokens, bytes included; fewer where the captions have no more pairs."""
    return bpe.train(map(normal, captions), vocabulary)
