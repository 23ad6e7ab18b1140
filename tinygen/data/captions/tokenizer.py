"""Tokenises captions and prompts into bytes, or with a byte-level BPE (Sennrich et al. 2016) trained on the captions.

0 is padding, 1 to 256 are the bytes, then come the merges in order: every text has tokens, and no token is unknown.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tinygen.data import encoding
from tinygen.data.condition import Batch, Prompted, Request
from tinygen.errors import UserError
from tinygen.media import bpe
from tinygen.media.base import Medium, Spec
from tinygen.media.bpe import BYTES, MOST_MERGES, Merges

LONGEST, MOST_EXAMPLES, LONGEST_EXAMPLE = 4096, 64, 4000


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaptionTokens(Prompted):
    """Captions as tokens, embedded by the model; stored with the run.

    length: tokens that the model reads, padding included
    merges: the BPE's pairs, in its own spelling of tokens; without merges every byte is a token
    examples: default prompts, captions of held-out examples
    """

    length: int
    merges: Merges = ()
    examples: tuple[str, ...] = ()

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
        """`text`, int32 [num, length]: the prompts in turn, or the examples; only padding without either."""
        words = self.asked(request)
        rows = self.prompts(words) if words else np.zeros((1, self.length), np.int32)
        return {"text": rows[np.arange(num) % len(rows)]}

    def asked(self, request: Request) -> Sequence[str]:
        return request.prompts or self.examples

    def rule(self, request: Request) -> str:
        return f"the run's {len(self.examples)} example prompts in turn"

    @property
    def vocabulary(self) -> int:
        """The number of tokens, padding included."""
        return 1 + BYTES + len(self.merges)

    def tokens(self, words: str) -> list[int]:
        """All tokens of a caption or prompt, not truncated; [] for an empty one."""
        if not self.merges:
            return [1 + byte for byte in normal(words).encode()]
        return [1 + number for number in self._tokenizer.encode(normal(words)).ids]

    def rows(self, captions: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(int32 [N, length], truncated and padded with 0; the number of tokens of each before truncation)."""
        out, counts = np.zeros((len(captions), self.length), np.int32), np.zeros(len(captions), int)
        for index, caption in enumerate(captions):
            tokens = self.tokens(caption)
            counts[index] = len(tokens)
            out[index, : len(tokens)] = tokens[: self.length]
        return out, counts

    def shortened(self, words: str) -> str:
        """The text cut to the whole words that the model reads."""
        parts = normal(words).split(" ")
        while parts and len(self.tokens(" ".join(parts))) > self.length:
            parts.pop()
        return " ".join(parts)

    @functools.cached_property
    def _tokenizer(self) -> Any:
        """Raises UserError for merges of unknown tokens."""
        return bpe.make_tokenizer(self.merges)

    def prompts(self, words: Sequence[str]) -> np.ndarray:
        """int32 [N, length]. Raises UserError for a prompt that is empty or too long for the model."""
        for prompt in words:
            num = len(self.tokens(prompt))
            shown = f"{prompt[:60]!r}{'...' * (len(prompt) > 60)}"
            if not num:
                raise UserError(f"the prompt {shown} is empty: say what to draw")
            if num > self.length:
                raise UserError(f"the prompt {shown} has {num} tokens, and this model reads {self.length}: shorten it")
        return self.rows(words)[0]


def normal(words: str) -> str:
    """Normalises a caption or prompt: composed characters, no byte order marks, words separated by single spaces.

    A lone surrogate, which JSON can hold, becomes a question mark.
    """
    return " ".join(encoding.composed(words.encode("utf-8", "replace").decode()).replace(encoding.MARK, "").split())


def trained_merges(captions: Iterable[str], vocabulary: int) -> Merges:
    """The merges of a byte-level BPE of at most `vocabulary` tokens, bytes included; fewer if the captions have no more pairs."""
    return bpe.train(map(normal, captions), vocabulary)
