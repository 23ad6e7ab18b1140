"""Adds the embeddings of captions to the batches of a captioned source."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tinygen.data.captions.embeddings import SPLITS, CaptionEmbeddings, Embeddings, Prepared, Split, files_of
from tinygen.data.captions.tokenized import captions_of, counted, digests
from tinygen.data.captions.tokenizer import normal
from tinygen.data.codec import Codec, Field
from tinygen.data.contents import FILE, Contents, changes, difference
from tinygen.data.examples import Examples, ExtendedExamples, Rows
from tinygen.data.source import DataSource
from tinygen.errors import UserError
from tinygen.system import npy

SPREAD = 4096  # captions per split compared with the encoded ones: all of a small split, a sample of a large one


def embedded(source: DataSource, folder: str, known: Codec | None = None) -> DataSource:
    """The source with `embed`, float32 [S, D], and `embed_mask`, bool [S], in its batches; an example without a caption has no tokens.

    The fingerprint covers the embeddings, not their location.

    Args:
      folder: written by `scripts/prepare/prepare_text.py`.
      known: the codec of the run so far; its text encoder must be the same.

    Raises UserError for embeddings that are damaged, or of other data, captions or another encoder than the run's.
    """
    path = Path(folder).expanduser()
    prepared, where = Prepared.read(path), f"config.text.embeddings={folder}"
    if prepared.data != source.fingerprint:
        why = difference(_kept(path, prepared), prepared.data, source.contents, source.fingerprint)
        raise UserError(
            f"{where} belongs to other data ({why}).\n"
            "Restore the data section that they were prepared with, or prepare the embeddings again."
        )
    learnt = known and known.embeddings
    if learnt and dataclasses.replace(learnt, encoder=prepared.text.encoder) != prepared.text:
        raise UserError(
            f"{where} does not match this run: it was trained with {_named(learnt)}, and these are from {_named(prepared.text)}"
        )
    text, rows = prepared.text, dict[str, Rows]()
    for split in SPLITS:
        examples, about = source.splits[split], prepared.splits[split]
        if len(examples) != about.num:
            raise UserError(f"{where} holds {about.num:,} captions of {split}, but the data have {len(examples):,}: prepare them again")
        if spread(examples) != about.spread:
            now = source.contents.also(captions=digests(source, captions_of(source, "config.text.embeddings")))
            named = "".join(f" ({each})" for each in changes(_kept(path, prepared) or Contents(), now))
            raise UserError(f"{where}: the captions of {split} have changed since they were encoded{named}: prepare them again")
        rows[split] = _opened(path, split, about, text, where).rows
    spec = {"embed": Field(shape=(text.length, text.features), dtype="float32"), "embed_mask": Field(shape=(text.length,), dtype="bool")}
    facts = {"the text encoder": text.sha256[:16]}
    facts |= {f"the embeddings of {split}": each.values[:16] for split, each in prepared.splits.items()}
    said = repr((source.fingerprint, text.sha256, text.length, [(each.values, each.lengths) for each in prepared.splits.values()]))
    return source.with_condition(
        text,
        spec,
        rows,
        fingerprint=hashlib.sha256(said.encode()).hexdigest()[:16],
        contents=source.contents.also(facts=facts),
        summary=(*source.about(), *_summary(prepared)),
    )


def carried_over(source: DataSource, images: DataSource) -> DataSource:
    """The images of latents with the embeddings of the latents' captions; both are in the same order."""
    text = source.codec.embeddings
    assert text is not None
    spec = {name: source.codec.spec[name] for name in text.keys}
    rows = {split: each.rows for split, each in source.splits.items() if isinstance(each, ExtendedExamples)}
    return images.with_condition(text, spec, rows)


def digest(captions: Iterable[str]) -> str:
    """SHA-256 of captions in order."""
    total = hashlib.sha256()
    for caption in captions:
        total.update(caption.encode("utf-8", "surrogateescape") + b"\0")
    return total.hexdigest()


def spread(examples: Examples) -> str:
    """`digest` of a sample of captions, spread over the examples."""
    indices = np.unique(np.linspace(0, max(len(examples) - 1, 0), SPREAD).astype(int)) if len(examples) else np.zeros(0, int)
    return digest(map(normal, examples.captions(indices)))


def _opened(folder: Path, split: str, about: Split, text: CaptionEmbeddings, where: str) -> Embeddings:
    """Raises UserError for damaged files."""
    found = []
    for file, shape, kind in zip(files_of(folder, split), ((about.tokens, text.features), (about.num,)), ("<f2", "<i4"), strict=True):
        try:
            if not file.stat().st_size:
                raise ValueError("it is empty")
            array = npy.mapped(file)
            if array.shape != shape or array.dtype != np.dtype(kind):
                raise ValueError(f"{array.dtype}{list(array.shape)} instead of {kind}{list(shape)}")
        except (OSError, ValueError, EOFError, OverflowError, MemoryError) as error:
            said = "it is missing" if isinstance(error, FileNotFoundError) else str(error)[:160]
            raise UserError(f"{where}: {file.name} is damaged ({said}): copy the folder again, or prepare them again") from error
        found.append(array)
    values, lengths = found
    if hashlib.sha256(np.ascontiguousarray(lengths).tobytes()).hexdigest() != about.lengths or (about.num and lengths.max() > text.length):
        raise UserError(f"{where}: {files_of(folder, split)[1].name} is damaged: copy the folder again, or prepare them again")
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    if ends[-1] != about.tokens or lengths.min(initial=0) < 0:
        raise UserError(f"{where}: its lengths do not add up to {about.tokens:,} tokens: prepare them again")
    return Embeddings(files_of(folder, split)[0], values.offset, ends, text)


def _kept(folder: Path, prepared: Prepared) -> Contents | None:
    """The contents of the data that were prepared there, if stored."""
    try:
        return Contents.of(json.loads((folder / FILE).read_text("utf-8")), prepared.data)
    except (OSError, ValueError, RecursionError):
        return None


def _named(text: CaptionEmbeddings) -> str:
    return f"{text.encoder} (sha256 {text.sha256[:16]}), {text.length} tokens of {text.features} features"


def _summary(prepared: Prepared) -> list[str]:
    counts = counted({split: (each.captioned, each.num) for split, each in prepared.splits.items()})
    lines = [f"{counts}, as embeddings by {_named(prepared.text)}"]
    for split, each in prepared.splits.items():
        if each.cut:
            lines.append(f"{each.cut:,} captions of {split} are truncated to {prepared.text.length} tokens")
    return lines
