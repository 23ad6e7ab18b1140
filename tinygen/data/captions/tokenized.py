"""Adds the tokens of captions to the batches of a captioned source."""

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from rich.progress import track

from tinygen.data.captions.tokenizer import (
    BYTES,
    LONGEST,
    LONGEST_EXAMPLE,
    MOST_EXAMPLES,
    MOST_MERGES,
    CaptionTokens,
    normal,
    trained_merges,
)
from tinygen.data.codec import Codec, Field
from tinygen.data.contents import short
from tinygen.data.examples import Batch, Examples, Rows
from tinygen.data.source import DataSource
from tinygen.errors import UserError, unknown

METHODS = ("bytes", "bpe")
BLOCK = 1024  # captions read at once
MANY = 20_000  # captions above which progress is shown


def tokenized(source: DataSource, *, tokens: str, length: int, vocabulary: int, known: Codec | None = None) -> DataSource:
    """The source with `text`, int32 [length], in its batches; 0 is padding; an example without a caption is all padding.

    A BPE is trained on the captions of the training split. The fingerprint covers the captions.

    Args: as explained in `tinygen.config.schema.SCHEMA`, section text.
      known: the codec of the run so far; its tokens keep their meaning.

    Raises UserError for an invalid option, or if no training example has a caption.
    """
    if tokens not in METHODS:
        raise unknown("config.text.tokens", tokens, ("", *METHODS))
    if not 1 <= length <= LONGEST:
        raise UserError(f"config.text.length={length} must lie in 1 to {LONGEST:,} (tokens of a caption)")
    if tokens == "bpe" and not 1 + BYTES < vocabulary <= 1 + BYTES + MOST_MERGES:
        raise UserError(
            f"config.text.vocabulary={vocabulary} must lie in {2 + BYTES} to {1 + BYTES + MOST_MERGES:,}: padding and bytes are {1 + BYTES}"
        )
    captions = captions_of(source, "config.text.tokens")
    learnt = known.condition(CaptionTokens) if known and tokens == "bpe" else None
    inherited = learnt.merges if learnt else ()
    merges = inherited or (() if tokens == "bytes" else trained_merges(captions["train"], vocabulary - 1))
    text = CaptionTokens(length=length, merges=merges)
    text = dataclasses.replace(text, examples=_examples(text, captions["validation"]) or _examples(text, captions["train"]))
    digest = hashlib.sha256(repr((source.fingerprint, length, text.merges)).encode())
    stored: dict[str, Rows] = {}
    counts = counted({split: (sum(map(bool, words)), len(words)) for split, words in captions.items()})
    said = [*source.about(), f"{counts}, as {text.vocabulary - 1:,} tokens ({tokens})"]
    said += ["the tokens are those of the trained weights: config.text.vocabulary is ignored"] if inherited else []
    for split, words in captions.items():
        rows, counts = text.rows(words)
        if cut := int((counts > length).sum()):
            more = f"have up to {counts.max()} tokens and are truncated"
            said.append(f"config.text.length={length}: {cut:,} captions of {split} {more}")
        digest.update("\0".join([split, *words]).encode())
        stored[split] = functools.partial(_read, rows.astype(np.uint32 if text.vocabulary > 2**16 else np.uint16))
    facts = {"the tokens of captions": short(repr(text.merges))} if text.merges else {}
    spec = {"text": Field(shape=(length,), dtype="int32", low=0, high=text.vocabulary - 1)}
    return source.with_condition(
        text,
        spec,
        stored,
        fingerprint=digest.hexdigest()[:16],
        contents=source.contents.also(captions=digests(source, captions), facts=facts),
        summary=tuple(said),
    )


def captions_of(source: DataSource, option: str) -> dict[str, list[str]]:
    """All captions of each split, normalised. Raises UserError, naming the option, if no training example has one."""
    captions = {split: list(_captions(split, examples)) for split, examples in source.splits.items()}
    if not any(captions["train"]):
        raise UserError(
            f"{option}: no training image has a caption. Captions are read from img.txt or img.caption beside img.png, metadata.jsonl or "
            'metadata.csv, or a Text feature of a TFDS set; to train on labels alone leave config.text.tokens=""'
            + (f"\nHere: {source.uncaptioned}" if source.uncaptioned else "")
        )
    return captions


def counted(counts: Mapping[str, tuple[int, int]]) -> str:
    """A line on the captions of each split. counts: {split: (captioned examples, all)}"""
    (train, all_train), (held_out, all_held_out) = counts["train"], counts["validation"]
    return f"captions for {train:,} of {all_train:,} training images and {held_out:,} of {all_held_out:,} held out"


def digests(source: DataSource, captions: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """{file: digest of its caption}, to detect changes; empty if examples are not files."""
    found = {}
    for split, words in captions.items():
        found |= zip(source.splits[split].names(np.arange(len(words))), map(short, words), strict=True)
    return {name: digest for name, digest in found.items() if name}


def _read(tokens: np.ndarray, indices: np.ndarray) -> Batch:
    return {"text": tokens[indices].astype(np.int32)}


def _captions(split: str, examples: Examples) -> Iterator[str]:
    starts = range(0, len(examples), BLOCK)
    for start in track(starts, f"reading captions of {split}", transient=True, disable=len(examples) < MANY):
        yield from map(normal, examples.captions(np.arange(start, min(start + BLOCK, len(examples)))))


def _examples(text: CaptionTokens, captions: list[str]) -> tuple[str, ...]:
    """The first few distinct captions, cut to what the model reads."""
    read = (text.shortened(each) for each in dict.fromkeys(captions) if each)
    whole = (each for each in read if each and len(each) <= LONGEST_EXAMPLE)
    return tuple(dict.fromkeys(itertools.islice(whole, MOST_EXAMPLES)))
