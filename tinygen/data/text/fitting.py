"""How a recipe reads text: its vocabulary, fixed or fitted to the training documents, and the length of its windows."""

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator

import numpy as np
from rich.console import Console

from tinygen.data.codec import Codec
from tinygen.data.text import gpt2
from tinygen.data.text.documents import Documents
from tinygen.errors import UserError, unknown
from tinygen.media import Text, bpe
from tinygen.media.bpe import BYTES, MOST_MERGES
from tinygen.media.vocabulary import KINDS, MOST_CHARACTERS, Vocabulary

SAMPLE = 2**25  # most characters that a vocabulary is fitted to
FITTED = ("characters", "bpe")


@dataclasses.dataclass(frozen=True)
class Reading:
    """The keywords that all text data sets share, as explained in `tinygen.config.data.READING`.

    known: the codec of the run so far, or of its warm start; its tokens keep their meaning
    Raises UserError for an invalid tokenizer, vocabulary or length.
    """

    tokenizer: str
    vocabulary: int
    files: str
    length: int
    pack: bool
    known: Codec | None

    def __post_init__(self) -> None:
        if self.tokenizer not in KINDS:
            raise unknown("config.data.tokenizer", self.tokenizer, KINDS)
        smallest, largest = BYTES + 1, BYTES + 1 + MOST_MERGES
        if self.tokenizer == "bpe" and not smallest <= self.vocabulary <= largest:
            more = f"must lie in {smallest} to {largest:,}: the bytes and the end of a document are {smallest}"
            raise UserError(f"config.data.vocabulary={self.vocabulary} {more}")
        if not 1 <= self.length <= 2**20:
            raise UserError(f"config.data.length={self.length} must lie in 1 to {2**20:,} (tokens of a window)")

    @property
    def learnt(self) -> Vocabulary | None:
        """The vocabulary of the trained weights, if the run has some with this tokenizer."""
        medium = self.known.medium if self.known else None
        return medium.vocabulary if isinstance(medium, Text) and medium.vocabulary.kind == self.tokenizer else None

    def fitted(self, documents: Documents) -> Vocabulary:
        """A new vocabulary; bpe and characters are fitted to the documents."""
        if self.tokenizer == "gpt2":
            return Vocabulary(kind="gpt2", merges=gpt2.merges(self.files))
        if self.tokenizer not in FITTED:
            return Vocabulary(kind=self.tokenizer)
        console = Console(stderr=True)
        with console.status(f"making a vocabulary ({self.tokenizer})") if console.is_terminal else contextlib.nullcontext():
            texts = _sample(documents)
            if self.tokenizer == "bpe":
                return Vocabulary(kind="bpe", merges=bpe.train(texts, self.vocabulary - 1))
            return Vocabulary(kind="characters", characters=_characters(texts))


def _characters(texts: Iterator[str]) -> str:
    """The characters of more than one byte, the most frequent if there are too many. All bytes are tokens anyway."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    ranked = sorted(counts, key=lambda each: (-counts[each], each))
    return "".join(sorted([each for each in ranked if not each.isascii() and not "\ud800" <= each <= "\udfff"][:MOST_CHARACTERS]))


def _sample(documents: Documents) -> Iterator[str]:
    """All texts in order, or a random sample if they are too large."""
    order = np.arange(len(documents))
    if documents.size is None or documents.size > SAMPLE:
        order = np.random.default_rng(0).permutation(order)
    left = SAMPLE
    for text, _ in documents.pieces(order):
        yield text[:left]
        left -= len(text)
        if left <= 0:
            return
