"""Tokenised documents on disk: made once and cached for the user, under a hash of everything they depend on.

A file is a JSON header, the tokens [S], then the start of each document, int64 [N]. It is written to a temporary file and renamed, so it
is complete or absent; a file that does not match its header is made again. Making a file deletes others that no process reads, the least
recently used first, until at most KEPT bytes are left.
"""

import contextlib
import functools
import hashlib
import json
import os
import tempfile
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tinygen.data import naming
from tinygen.data.text.documents import Documents
from tinygen.data.text.packing import NO_BYTE, Stream
from tinygen.errors import UserError
from tinygen.media.bpe import BYTES
from tinygen.media.vocabulary import Vocabulary
from tinygen.system.cache import alone, hold, prune

RULES = 2  # version of the tokenisation and of the file format
KEPT = 4 * 2**30  # bytes of cached tokens; TinyStories, 1.9 GB of text, takes about 1 GB with GPT-2's tokens, 1.9 GB as bytes
HEAD = 4096  # bytes
TOGETHER = 2**22  # characters tokenised at once
MANY = 2**24  # bytes of documents above which tokenising is logged
ALIGNED = 8


def stored(documents: Documents, vocabulary: Vocabulary, facts: Mapping[str, Any], what: str) -> Stream:
    """The documents' tokens from the disk, tokenised now if they are not cached.

    facts: everything the documents' content depends on, as JSON
    what: a name for the documents, for messages
    Raises UserError if the tokens cannot be stored.
    """
    facts = {**facts, "vocabulary": vocabulary.digest, "rules": RULES}
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tinygen" / "tokens"
    path = home / key
    if (found := _read(path, facts, vocabulary)) is not None:
        return found
    try:
        home.mkdir(parents=True, exist_ok=True)
        waiting = functools.partial(logging.info, "Another process is tokenising %s; waiting for it", what)
        with alone(path.with_name(f"{key}.lock"), waiting) as locked:
            if (found := _read(path, facts, vocabulary)) is None:  # unless another process has made them meanwhile
                if locked:
                    for left in home.glob(f"{key}.*.new"):  # by a process that was killed
                        left.unlink(missing_ok=True)
                found = _make(path, documents, vocabulary, facts, what)
                num, size = prune(home, KEPT)
                if num:
                    said = f"{naming.plural(num, 'file')} of tokens, {size / 1e6:,.0f} MB"
                    logging.info("%s keeps at most %d GiB: deleted the least recently used %s", home, KEPT >> 30, said)
    except OSError as error:
        cure = "make room, or name another folder in XDG_CACHE_HOME"
        raise UserError(f"the tokens of {what} cannot be kept in {home} ({error.strerror}): {cure}") from error
    if found is None:
        raise UserError(f"{path}: the tokens written there cannot be read back: name another folder in XDG_CACHE_HOME")
    return found


def _make(path: Path, documents: Documents, vocabulary: Vocabulary, facts: Mapping[str, Any], what: str) -> Stream | None:
    fresh = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f"{path.name}.", suffix=".new", delete=False) as file:
            hold(file)
            fresh = Path(file.name)
            file.write(bytes(HEAD))
            about = _write(file, documents, vocabulary, what)
            head = json.dumps({"facts": facts, **about}).encode()
            file.seek(0)
            file.write(head.ljust(HEAD))
            file.flush()
            os.fsync(file.fileno())
            fresh.replace(path)
            return _read(path, facts, vocabulary)  # before the file is closed: then others may delete it
    except BaseException:
        if fresh is not None:
            fresh.unlink(missing_ok=True)
        raise


def _write(file: Any, documents: Documents, vocabulary: Vocabulary, what: str) -> dict[str, Any]:
    """Writes everything after the header. Returns the header's fields about it."""
    dtype, digest, starts = _dtype(vocabulary), hashlib.sha256(), array("q")
    num = spelled = single = 0
    end = NO_BYTE if dtype == np.uint8 else vocabulary.end

    def put(content: bytes) -> None:
        digest.update(content)
        file.write(content)

    def written(tokens: np.ndarray) -> bytes:
        return np.where(tokens == vocabulary.end, end, tokens).astype(dtype).tobytes()

    for texts, begins in _batches(documents, what):
        parts: list[np.ndarray] = []
        for row, first in zip(vocabulary.encode_many(texts), begins, strict=True):
            if first:
                starts.append(num)
                parts.append(np.asarray([vocabulary.end], np.int32))
            num += len(row) + first
            parts.append(row)
        tokens = np.concatenate(parts)
        spelled += int(vocabulary.byte_lengths[tokens].sum())
        single += int(((tokens >= 0x80) & (tokens <= 0xFF)).sum()) if vocabulary.kind == "characters" else 0
        put(written(tokens))
    put(written(np.asarray([vocabulary.end])))
    num += 1
    put(bytes(-num * dtype.itemsize % ALIGNED))
    put(np.frombuffer(starts, np.int64).tobytes() if starts else b"")
    return {"tokens": num, "documents": len(starts), "bytes": spelled, "fallback": single, "sha256": digest.hexdigest()}


def _batches(documents: Documents, what: str) -> Iterator[tuple[list[str], list[bool]]]:
    """Batches of (texts, whether each begins a document). Shows a progress bar on a terminal, else logs a line."""
    console, size = Console(stderr=True), documents.size
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    if size is None or size > MANY:
        logging.info("Tokenising %s, once", what)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"tokenising {what}", total=size)
        texts: list[str] = []
        begins: list[bool] = []
        held = 0
        for text, first in documents.pieces(range(len(documents))):
            texts.append(text)
            begins.append(first)
            held += len(text)
            if held >= TOGETHER:
                yield texts, begins
                progress.advance(task, held)
                texts, begins, held = [], [], 0
        if texts:
            yield texts, begins


def _read(path: Path, facts: Mapping[str, Any], vocabulary: Vocabulary) -> Stream | None:
    """None if the file is missing, does not match its header, or has other contents."""
    dtype = _dtype(vocabulary)
    try:
        with path.open("rb") as file:
            hold(file)
            head = json.loads(file.read(HEAD))
            num, documents, spelled, fallback = (int(head[key]) for key in ("tokens", "documents", "bytes", "fallback"))
            middle = HEAD + num * dtype.itemsize
            middle += -middle % ALIGNED
            found = (head["facts"], path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())
            if found != (facts, middle + documents * 8, head["sha256"]):
                raise ValueError("another content")
            with contextlib.suppress(OSError):  # another user's
                os.utime(file.fileno())  # file systems may not note when a file is read
            tokens = np.asarray(np.memmap(file, dtype, "r", HEAD, (num,)))  # the map keeps the descriptor, and with it the lock
            starts = np.asarray(np.memmap(file, np.int64, "r", middle, (documents,))) if documents else np.zeros(0, np.int64)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        logging.warning("%s is damaged and will be made again (%s)", path, str(error)[:80])
        return None
    return Stream(tokens=tokens, starts=starts, bytes=spelled, fallback=fallback)


def _dtype(vocabulary: Vocabulary) -> np.dtype:
    """The smallest dtype for every token, the same on every machine. Bytes and the end token fit in a byte: see `Stream`."""
    if vocabulary.end == BYTES:
        return np.dtype(np.uint8)
    return np.min_scalar_type(vocabulary.end).newbyteorder("<")
