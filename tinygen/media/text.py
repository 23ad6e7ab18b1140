"""Text: windows of tokens, and their texts."""

import codecs
import dataclasses
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tinygen.errors import UserError
from tinygen.media.array import Array
from tinygen.media.base import Batch, Field, Medium, Spec
from tinygen.media.vocabulary import Vocabulary

PROMPT_ENDS = -1  # between the tokens of a prompt and its continuation
MARK = "⟩"  # how that is shown
ENDED = "⟨end⟩"  # how the end of a document within a window is shown
GLIMPSE = 200  # characters of a text in the log


@dataclasses.dataclass(frozen=True)
class Text(Medium):
    """Text, as the tokens of a vocabulary. An example is a window: `tokens`, `target` and `segment`, int32 [L] each."""

    vocabulary: Vocabulary
    name: ClassVar[str] = "text"

    suffix: ClassVar[str] = "txt"
    sheet_suffix: ClassVar[str] = "txt"
    element: ClassVar[str] = "pre"
    printed: ClassVar[bool] = True
    doubt: ClassVar[str] = "are its tokens another vocabulary's?"

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Medium:
        """Without a vocabulary, arrays of numbers."""
        return cls(Vocabulary.from_json(tree["vocabulary"])) if tree.get("vocabulary") else Array.from_json(tree)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.name, "vocabulary": dataclasses.asdict(self.vocabulary)}

    def facts(self, spec: Spec) -> dict[str, Any]:
        return {"token_bytes": tuple(self.vocabulary.byte_lengths.tolist()), "end": self.vocabulary.end}

    def check_spec(self, spec: Spec) -> None:
        parts = [spec.get(name) for name in ("tokens", "target", "segment")]
        rows = {(part.shape, part.dtype) if part else () for part in parts}
        if len(rows) > 1 or not parts[0] or parts[0].dtype != "int32" or len(parts[0].shape) != 1:
            raise UserError("an example of text must be three int32 rows of the same length: tokens, target and segment")
        if any(part is None or (part.low, part.high) != (0, self.vocabulary.end) for part in parts[:2]):
            raise UserError(f"the tokens of an example must be those of its vocabulary, 0 to {self.vocabulary.end}")

    def check(self, batch: Batch, spec: Spec) -> None:
        """Raises UserError unless segments are 1, 2, ... and then 0 for padding, and each target is the token that follows."""
        tokens, target, segment = (np.asarray(batch[name]) for name in ("tokens", "target", "segment"))
        there = segment > 0
        rises = np.diff(segment, axis=1)
        if np.any(there[:, 1:] & ((rises < 0) | (rises > 1) | ~there[:, :-1])):
            raise UserError("first batch: 'segment' decreases, skips a number or resumes after padding: it must be 1, 2, ..., then 0")
        if np.any((target[:, :-1] != tokens[:, 1:]) & there[:, 1:]):
            raise UserError("first batch: 'target' must be the token that follows each of 'tokens'")

    def decode(self, x: np.ndarray) -> list[str]:
        """The text of each row of tokens [N, T]; MARK stands for PROMPT_ENDS."""
        parts = [np.split(row, np.flatnonzero(row == PROMPT_ENDS)[:1]) for row in np.asarray(x)]
        return [MARK.join(self.vocabulary.decode(part[part != PROMPT_ENDS]) for part in row) for row in parts]

    def of_batch(self, batch: Batch, to_medium: Any) -> list[str]:
        """The text of windows, without padding; ENDED separates documents."""
        texts = []
        for tokens, segment in zip(batch["tokens"], batch["segment"], strict=True):
            row = tokens[segment > 0]
            parts = np.split(row, np.flatnonzero(row == self.vocabulary.end))
            texts.append(ENDED.join(map(self.vocabulary.decode, parts)))
        return texts

    def read_given(self, value: str, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """A text in which {20} is a gap of 20 tokens; what follows it is a gap too."""
        tokens, known = np.zeros(shape, np.int32), np.zeros(shape, bool)
        place = 0
        for part in re.split(r"(\{[0-9]{1,9}\})", value):
            if gap := re.fullmatch(r"\{([0-9]+)\}", part):
                place += int(gap[1])
                continue
            row = self.vocabulary.encode(part)
            if place + len(row) > shape[0]:
                raise UserError(f"--given is {place + len(row):,} tokens long or longer, and this model writes {shape[0]:,}")
            tokens[place : place + len(row)], known[place : place + len(row)] = row, True
            place += len(row)
        if known.all():
            raise UserError("--given leaves no gap: {20} in the text is one of 20 tokens")
        return tokens, known

    def growing(self, stops: Sequence[str]) -> "GrowingText":
        return GrowingText(self.vocabulary, stops)

    def encode(self, item: str) -> str:
        return item

    def overview(self, items: Sequence[str], columns: int | None = None) -> str:
        """All texts, each below its number."""
        return "\n".join(f"[{number}]\n{text}\n" for number, text in enumerate(items))

    def log(self, writer: Any, step: int, name: str, items: Sequence[str], overview: str) -> None:
        writer.write_texts(step, {name: items})

    def glimpse(self, items: Sequence[str]) -> str:
        """The first text, shortened to a line."""
        return textwrap.shorten(next(iter(items), ""), GLIMPSE, placeholder=" ...")

    def differences(self, old: Medium) -> list[str]:
        """A different kind or size of vocabulary; if these are equal, the first token that differs."""
        if not isinstance(old, Text):
            return super().differences(old)
        before, now = old.vocabulary, self.vocabulary
        if before == now:
            return []
        if str(before) != str(now):
            return [f"vocabulary: {before} -> {now}"]
        token = next((token for token in range(before.end) if before.bytes_of([token]) != now.bytes_of([token])), None)
        which = "its merges" if token is None else f"token {token}: {before.decode([token])!r} -> {now.decode([token])!r}"
        return [f"vocabulary: {before}, {which}"]

    def seen_by_weights(self, name: str, field: Field, *, rotary: bool) -> dict[str, Any]:
        """With rotary positions a window may have any length, and therefore any number of segments."""
        seen = super().seen_by_weights(name, field, rotary=rotary)
        return seen | {"shape": (), "high": None if name == "segment" else field.high} if rotary else seen


class GrowingText:
    """A text whose tokens arrive in parts: releases whole characters only, and nothing of a stop string.

    stops: the text ends before the first of these to be complete; a possible beginning of one is held back
    """

    def __init__(self, vocabulary: Vocabulary, stops: Sequence[str]):
        self.vocabulary, self.stops = vocabulary, stops
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.whole, self.released = "", 0
        self.ended = False

    def add(self, tokens: Sequence[int], *, last: bool = False) -> str:
        """The text that these tokens release. last: there are no more, so nothing is held back"""
        if self.ended:
            return ""
        self.whole += self.decoder.decode(self.vocabulary.bytes_of(tokens), last)
        found = [(at + len(stop), at) for stop in self.stops if (at := self.whole.find(stop)) >= 0]  # the first to be complete counts
        self.ended = last or bool(found) or self.vocabulary.end in tokens
        if self.ended:
            self.whole = self.whole[: min(found)[1]] if found else self.whole + self.decoder.decode(b"", True)
        until = len(self.whole) - (0 if self.ended else self._waiting())
        self.released, before = until, self.released
        return self.whole[before:until]

    def _waiting(self) -> int:
        """The number of characters at the end that may begin a stop string."""
        starts = (size for stop in self.stops for size in range(1, len(stop)) if self.whole.endswith(stop[:size]))
        return max(starts, default=0)
