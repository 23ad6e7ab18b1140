"""Text data sets: windows of `tokens`, `target` and `segment`, int32 [length], for next-token prediction.

Whole documents are held out. Their tokens are read from the disk, see `tinygen.data.text.tokens`.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tinygen.data import builtin, naming
from tinygen.data.codec import Codec, Field
from tinygen.data.contents import Contents
from tinygen.data.source import DataSource
from tinygen.data.text import documents, tokens
from tinygen.data.text.documents import Documents, Texts
from tinygen.data.text.fitting import FITTED, Reading
from tinygen.data.text.packing import Stream, Windows, windows
from tinygen.data.text.prompt import Prompt
from tinygen.errors import UserError
from tinygen.media import Text
from tinygen.media.vocabulary import Vocabulary


def shakespeare(*, tokenizer: str, vocabulary: int, files: str, length: int, pack: bool, known: Codec | None) -> DataSource:
    """Whole plays by Shakespeare: see LICENSES.md of the embedded data."""
    reading = Reading(tokenizer, vocabulary, files, length, pack, known)
    plays, meta = builtin.plays()
    held_out = meta["validation"]
    splits = {
        "train": Texts([play for title, play in plays.items() if title not in held_out]),
        "validation": Texts([plays[title] for title in held_out]),
    }
    said = f"{len(splits['train'])} plays to train on; held out are {' and '.join(held_out)}"
    content = builtin.fingerprint_of_plays()
    contents = Contents(facts={"the plays, as the package holds them": content[:16]})
    return source(splits, reading, {"content": content}, contents, [said], "plays")


def text(
    *, path: str, pattern: str, marker: str, validation: float,
    tokenizer: str, vocabulary: int, files: str, length: int, pack: bool, known: Codec | None,
) -> DataSource:  # fmt: skip
    """Plain UTF-8 files. Held-out documents are spread evenly; a single document is held out in part, at its end.

    Args: as explained in `tinygen.config.schema.DATASETS`, and in `Reading`.

    Raises UserError for an invalid option, files that are empty or not text, and a share that leaves no training document.
    """
    reading = Reading(tokenizer, vocabulary, files, length, pack, known)
    if not 0 <= validation < 1:
        raise UserError(f"config.data.validation={validation} must lie in [0, 1): the share of the documents to hold out")
    found = documents.find(path, marker, pattern)
    total = len(found)
    if total == 1:
        found = found.halved(validation)
        held_out = np.asarray([1])
        said = f"the only document's last {100 * found.some(held_out).size / found.size:.1f} % are held out"
    else:
        held_out = spread(total, validation)
        said = f"{total:,} documents, {len(held_out):,} of them held out, evenly spread"
    splits = {"train": found.some(np.delete(np.arange(len(found)), held_out)), "validation": found.some(held_out)}
    facts = {"content": found.content, "marker": marker, "validation": validation}
    about = [f"{naming.plural(len(found.paths), 'file')}, {found.size:,} bytes: {said}", *found.passed_over]
    return source(splits, reading, facts, Contents(files=found.digests), about, path)


def spread(total: int, share: float) -> np.ndarray:
    """Indices of the held-out documents: that share of `total`, at least one, evenly spread. Raises UserError if none is left."""
    num = max(1, round(share * total))
    if num >= total:
        raise UserError(f"config.data.validation={share} of {total} documents are {num}, which leaves none to train on: hold fewer out")
    return (2 * np.arange(num) + 1) * total // (2 * num)


def source(
    splits: Mapping[str, Documents], reading: Reading, facts: Mapping[str, Any], contents: Contents, said: Sequence[str], what: str,
    version: str = "",
) -> DataSource:  # fmt: skip
    """The DataSource of documents.

    facts: everything the documents' content depends on, as JSON
    contents: the files or the set that they come from
    said: lines about them for the log
    what: a name for them, for messages
    version: identifies the data in place of `facts`
    """
    length, learnt = reading.length, reading.learnt
    words = learnt or reading.fitted(splits["train"])
    streams = {split: tokens.stored(each, words, {**facts, "split": split}, f"{what} ({split})") for split, each in splits.items()}
    cut = {split: windows(stream, length, words.end, reading.pack) for split, stream in streams.items()}
    identity = json.dumps([version or facts, words.digest, length, reading.pack], sort_keys=True)
    field = Field(shape=(length,), dtype="int32", low=0, high=words.size - 1)
    spec = {"tokens": field, "target": field, "segment": Field(shape=(length,), dtype="int32", low=0, high=length)}
    return DataSource(
        codec=Codec(medium=Text(words), spec=spec, conditions=(Prompt(words),)),
        splits=cut,
        fingerprint=hashlib.sha256(identity.encode()).hexdigest()[:16],
        contents=contents.also(facts={"the vocabulary": f"{words}, {words.digest[:16]}"}),
        summary=(*said, *_about(words, streams, cut, learnt is not None)),
    )


def _about(words: Vocabulary, streams: Mapping[str, Stream], cut: Mapping[str, Windows], known: bool) -> list[str]:
    """Lines about vocabulary, tokens and windows."""
    train, held_out = streams["train"], streams["validation"]
    rate = train.bytes / max(1, train.predicted - len(train.starts))
    counts = f"{train.predicted:,} tokens to train on, {held_out.predicted:,} held out"
    lines = [f"a vocabulary of {words}, {rate:.2f} bytes per token: {counts}"]
    if known and words.kind in FITTED:
        lines.append("the vocabulary is that of the trained weights, not fitted to these documents")
    for split, stream in streams.items():
        if stream.fallback:
            share = 100 * stream.fallback / stream.bytes
            lines.append(f"{share:.2g} % of the bytes of {split} belong to characters without a token, and are spelled byte by byte")
    padding = " and ".join(f"{100 * each.padding:.2g} %" for each in cut.values())
    numbers = f"{len(cut['train']):,} to train on, {len(cut['validation']):,} held out, of which {padding} are padding"
    return [*lines, f"windows of {cut['train'].length:,} tokens: {numbers}"]
