"""Makes the vocabulary of a recipe: a fixed one, or one fitted to the training documents."""

import contextlib
from collections import Counter
from collections.abc import Iterator

import numpy as np
from rich.console import Console

from tinygen.data.text import gpt2
from tinygen.data.text.documents import Documents
from tinygen.errors import UserError, unknown
from tinygen.media import bpe
from tinygen.media.bpe import BYTES, MOST_MERGES
from tinygen.media.vocabulary import KINDS, MOST_CHARACTERS, Vocabulary

SAMPLE = 2**25  # most characters that a vocabulary is fitted to
FITTED = ("characters", "bpe")


def check_reading(tokenizer: str, vocabulary: int, length: int) -> None:
    """Raises UserError for an invalid tokenizer, vocabulary or length."""
    if tokenizer not in KINDS:
        raise unknown("config.data.tokenizer", tokenizer, KINDS)
    smallest, largest = BYTES + 1, BYTES + 1 + MOST_MERGES
    if tokenizer == "bpe" and not smallest <= vocabulary <= largest:
        more = f"must lie in {smallest} to {largest:,}: the bytes and the end of a document are {smallest}"
        raise UserError(f"config.data.vocabulary={vocabulary} {more}")
    if not 1 <= length <= 2**20:
        raise UserError(f"config.data.length={length} must lie in 1 to {2**20:,} (tokens of a window)")


def inherited(tokenizer: str, known: Vocabulary | None) -> bool:
    """Whether the vocabulary is that of the trained weights, rather than fitted to the text."""
    return known is not None and known.kind == tokenizer


def fitted(tokenizer: str, vocabulary: int, files: str, documents: Documents, known: Vocabulary | None) -> Vocabulary:
    """The vocabulary of `tokenizer`.

    vocabulary: most tokens of bpe
    documents: what bpe and characters are fitted to
    known: the vocabulary of the run so far, or of its warm start; its tokens keep their meaning
    """
    if known is not None and inherited(tokenizer, known):
        return known
    if tokenizer == "gpt2":
        return Vocabulary(kind="gpt2", merges=gpt2.merges(files))
    if tokenizer not in FITTED:
        return Vocabulary(kind=tokenizer)
    console = Console(stderr=True)
    with console.status(f"making a vocabulary ({tokenizer})") if console.is_terminal else contextlib.nullcontext():
        texts = _sample(documents)
        if tokenizer == "bpe":
            return Vocabulary(kind="bpe", merges=bpe.train(texts, vocabulary - 1))
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
