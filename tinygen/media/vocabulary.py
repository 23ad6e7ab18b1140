"""Vocabularies, stored with the run: text as bytes, characters, or a BPE, trained on the text or GPT-2's.

The first 256 tokens are the bytes, so that every text has tokens and none is unknown; then come characters or merges. The last token
ends a document and occurs in no text.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tinygen.errors import UserError, unknown
from tinygen.media import bpe
from tinygen.media.bpe import BYTES, MOST_MERGES, Merges

KINDS = ("bytes", "characters", "bpe", "gpt2")
MOST_CHARACTERS = 2**16
LONGEST_NAME = 4000  # characters of a token's name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """How text becomes tokens.

    kind: bytes | characters | bpe | gpt2. A byte's token is its value for the first two, and GPT-2's for the others
    characters: for kind characters, those with a token of their own; others are encoded byte by byte
    merges: for kinds bpe and gpt2, pairs of token names in byte-level BPE's notation
    """

    kind: str
    characters: str = ""
    merges: Merges = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown("kind of vocabulary", str(self.kind), KINDS)
        if not isinstance(self.characters, str) or len(self.characters) > MOST_CHARACTERS:
            raise UserError(f"the characters of a vocabulary must be a string of at most {MOST_CHARACTERS:,}")
        if len({*self.characters}) != len(self.characters) or any("\ud800" <= each <= "\udfff" for each in self.characters):
            raise UserError("a character of a vocabulary occurs twice, or is a surrogate, half a character")
        if not isinstance(self.merges, tuple) or len(self.merges) > MOST_MERGES:
            raise UserError(f"a vocabulary has at most {MOST_MERGES:,} merges")
        if not all(len(pair) == 2 and all(isinstance(part, str) and len(part) <= LONGEST_NAME for part in pair) for pair in self.merges):
            raise UserError(f"merges must be pairs of strings of at most {LONGEST_NAME:,} characters")
        if (self.characters and self.kind != "characters") or (self.merges and self.kind not in ("bpe", "gpt2")):
            raise UserError(f"a vocabulary of {self.kind} has no {'characters' if self.characters else 'merges'}")
        if self.kind in ("bpe", "gpt2"):
            _ = self._names  # refuses merges of unknown tokens

    @classmethod
    def from_json(cls, tree: Any) -> "Vocabulary":
        """Raises UserError, TypeError or LookupError if the tree is invalid."""
        return cls(**{**tree, "merges": tuple(map(tuple, tree["merges"]))})

    @property
    def size(self) -> int:
        """The number of tokens, including the end."""
        return self.end + 1

    @property
    def end(self) -> int:
        """The token that ends a document."""
        return len(self._names) if self.kind in ("bpe", "gpt2") else BYTES + len(self.characters)

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of everything that gives tokens their meaning."""
        return hashlib.sha256(repr((self.kind, self.characters, self.merges)).encode()).hexdigest()

    def encode(self, text: str) -> np.ndarray:
        """int32 [n], without an end token. A lone surrogate, which JSON can hold, becomes a question mark."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        """`encode` for several texts; the BPEs use all processors."""
        whole = [text.encode("utf-8", "replace").decode() for text in texts]
        if self.kind == "bytes":
            return [np.frombuffer(text.encode(), np.uint8).astype(np.int32) for text in whole]
        if self.kind == "characters":
            return [self._characters_of(text) for text in whole]
        return [np.asarray(each.ids, np.int32) for each in self._tokenizer.encode_batch_fast(whole, add_special_tokens=False)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of tokens; invalid UTF-8, such as a character cut off at the end, becomes U+FFFD."""
        return self.bytes_of(ids).decode("utf-8", "replace")

    def bytes_of(self, ids: Iterable[int]) -> bytes:
        """The bytes of tokens; the end has none. Raises UserError for a number that is not a token."""
        spelled = self._spelled
        numbers = [int(number) for number in ids]
        if wrong := next((number for number in numbers if not 0 <= number < len(spelled)), None):
            raise UserError(f"{wrong} is not a token: this vocabulary has 0 to {self.end}")
        return b"".join(spelled[number] for number in numbers)

    @functools.cached_property
    def byte_lengths(self) -> np.ndarray:
        """int32 [size]: the number of UTF-8 bytes of each token; 0 for the end."""
        return np.asarray([len(each) for each in self._spelled], np.int32)

    def __str__(self) -> str:
        return f"{self.size:,} tokens ({self.kind})"

    @functools.cached_property
    def _spelled(self) -> list[bytes]:
        """The bytes of each token."""
        if self.kind in ("bytes", "characters"):
            return [*(bytes([byte]) for byte in range(BYTES)), *(each.encode() for each in self.characters), b""]
        values = dict(zip(bpe.alphabet(), bpe.byte_values(), strict=True))
        return [*(bytes(values[letter] for letter in name) for name in self._names), b""]

    @functools.cached_property
    def _names(self) -> dict[str, int]:
        return bpe.names(self.merges)

    @functools.cached_property
    def _tokenizer(self) -> Any:
        return bpe.make_tokenizer(self.merges)

    @functools.cached_property
    def _points(self) -> tuple[np.ndarray, np.ndarray]:
        """(the characters' code points, sorted; their tokens)"""
        points = np.asarray([ord(each) for each in self.characters], np.uint32)
        order = np.argsort(points)
        return points[order], (BYTES + order).astype(np.int32)

    def _characters_of(self, text: str) -> np.ndarray:
        points, tokens = self._points
        given = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        places = np.minimum(np.searchsorted(points, given), max(len(points) - 1, 0))
        known = points[places] == given if len(points) else np.zeros(len(given), bool)
        widths = 1 + (given >= 0x80).astype(int) + (given >= 0x800) + (given >= 0x10000)  # bytes of UTF-8
        whole = np.repeat(known, np.where(known, 1, widths))
        out = np.empty(len(whole), np.int32)
        out[whole] = tokens[places[known]]
        out[~whole] = np.frombuffer(given[~known].tobytes().decode("utf-32-le").encode(), np.uint8)
        return out
