"""Encodes a recipe's captions with a text encoder (CLIP or T5) once, to train on their embeddings.

    pip install 'tinygen[text]'
    python scripts/prepare/prepare_text.py --config=microdit_avatars_text --encoder=openai/clip-vit-large-patch14 \\
        --out=embeddings/avatars
    tinygen train --config=microdit_avatars_text --config.text.tokens= --config.text.embeddings=embeddings/avatars

The encoder is a folder with config.json, weights and tokenizer, or a model name on the Hugging Face Hub, which is
downloaded once. Only the section `data` of the recipe is used, with any --config.data.KEY=VALUE overrides. The captions
of both splits are encoded in order, each on its own, and truncated to --length tokens. Examples without a caption get
no tokens.

The output folder only appears once it is complete. `tinygen/data/captions/embeddings.py` describes its contents; its
`text.json` records the encoder, the data and the captions. Models take the embeddings instead of tokens, and `tinygen
sample --prompt` encodes prompts with the same encoder.
"""

import argparse
import hashlib
import secrets
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from etils import epath
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tinygen import build
from tinygen import config as config_lib
from tinygen.cli import main as cli
from tinygen.config import Config
from tinygen.data.captions.embedded import digest, spread
from tinygen.data.captions.embeddings import SPLITS, CaptionEmbeddings, Prepared, Split, files_of
from tinygen.data.captions.tokenized import captions_of, digests
from tinygen.data.contents import FILE
from tinygen.data.source import DataSource
from tinygen.errors import UserError
from tinygen.pretrained import text_encoder
from tinygen.pretrained.text_encoder import Encoder
from tinygen.profiling.footprint import si
from tinygen.system.limits import free_bytes

LENGTH = 77  # tokens per caption, as in CLIP
GAP = 2**20  # bytes to leave free on the disk


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Encode a recipe's captions with a text encoder, for config.text.embeddings.", allow_abbrev=False
    )
    parser.add_argument(
        "--config",
        required=True,
        metavar="RECIPE.py[:VARIANT]",
        help="recipe whose captions are encoded; --config.data.KEY=VALUE overrides its keys",
    )
    parser.add_argument(
        "--encoder",
        required=True,
        metavar="DIR|NAME",
        help="folder of a CLIP or T5 model, or its name on the Hugging Face Hub",
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder to create")
    parser.add_argument(
        "--length",
        type=int,
        metavar="S",
        help=f"maximum tokens per caption (default: {LENGTH}, or the encoder's maximum if that is smaller)",
    )
    parser.add_argument("--batch_size", type=int, default=64, metavar="N", help="captions per batch (default: %(default)s)")
    overrides, rest = cli.split_overrides(list(sys.argv[1:] if argv is None else argv))
    arguments = parser.parse_args(rest)
    try:
        config, _ = cli.configured(arguments.config, overrides)
        flags = " ".join([f"--config={arguments.config}", *overrides])
        print(prepare(config, arguments.encoder, arguments.out.expanduser(), arguments.length, arguments.batch_size, flags))
    except UserError as error:
        print(f"prepare_text: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"prepare_text: {error.filename or arguments.out}: {error.strerror or error}", file=sys.stderr)
        return 2
    return 0


def prepare(config: Config, encoder: str, out: Path, length: int | None, batch_size: int, flags: str) -> str:
    """Writes the folder and returns a summary. Raises UserError for invalid input before anything is encoded.

    flags: the recipe and its overrides, for the suggested next command
    """
    if batch_size < 1:
        raise UserError(f"--batch_size={batch_size} must be positive")
    if out.exists():
        raise UserError(f"--out={out} already exists: choose another folder, or remove it first")
    found = text_encoder.load(encoder, accelerated=True)
    length = min(LENGTH, found.length) if length is None else length
    if not 1 < length <= found.length:
        raise UserError(f"--length={length} must be between 2 and {found.length:,}, the maximum of {found.name}")
    source = build.data_source(config_lib.change(config, dict(text=dict(tokens="", embeddings=""), data=dict(overfit=0))))
    captions = captions_of(source, "--config")
    partial = out.with_name(f".{out.name}.{secrets.token_hex(4)}")
    with progress_bar() as progress:
        counts = {split: count_tokens(texts, found, progress, f"tokenizing {split}") for split, texts in captions.items()}
        check_disk_space(out, [np.minimum(each, length) for each in counts.values()], found.features)
        partial.mkdir(parents=True)
        try:
            prepared = write(partial, source, captions, counts, found, length, batch_size, progress)
            prepared.write(partial)
            if contents := source.contents.also(captions=digests(source, captions)):
                (partial / FILE).write_text(contents.kept(source.fingerprint), "utf-8")
            partial.rename(out)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    tokens = " --config.text.tokens=" if config.text.tokens else ""
    return report(out, prepared, f"{flags}{tokens}")


def count_tokens(captions: Sequence[str], encoder: Encoder, progress: Progress, what: str) -> np.ndarray:
    """int32 [N]: the number of tokens of each caption before truncation; 0 without a caption."""
    blocks, size = [], 1024
    for first in progress.track(range(0, len(captions), size), description=what):
        block = captions[first : first + size]
        blocks.append(np.where([bool(each) for each in block], encoder.count(block), 0))
    return np.concatenate([np.zeros(0, np.int32), *blocks]).astype(np.int32)


def check_disk_space(out: Path, lengths: Sequence[np.ndarray], features: int) -> None:
    """Raises UserError if the embeddings do not fit on the disk."""
    tokens, num = sum(int(each.sum()) for each in lengths), sum(map(len, lengths))
    needed, free = 2 * tokens * features + 4 * num, free_bytes(epath.Path(out.absolute()))
    if free is not None and needed + GAP > free:
        raise UserError(f"--out={out}: embeddings of {tokens:,} tokens need {si(needed, 1024)}B, but only {si(free, 1024)}B are free")


def write(
    folder: Path, source: DataSource, captions: dict[str, list[str]], counts: dict[str, np.ndarray], encoder: Encoder, length: int,
    batch_size: int, progress: Progress,
) -> Prepared:  # fmt: skip
    """Encodes both splits into the folder and returns the content of its `text.json`."""
    splits: dict[str, Split] = {}
    for split in SPLITS:
        lengths = np.minimum(counts[split], length).astype("<i4")
        values, total = files_of(folder, split), hashlib.sha256()
        np.save(values[1], lengths)
        with open(values[0], "wb") as file:
            header = dict(descr="<f2", fortran_order=False, shape=(int(lengths.sum()), encoder.features))
            np.lib.format.write_array_header_2_0(file, header)
            for block in encode_split(captions[split], lengths, encoder, length, batch_size, progress, f"encoding {split}"):
                file.write(block)
                total.update(block)
        splits[split] = Split(
            num=len(lengths), captioned=int((lengths > 0).sum()), cut=int((counts[split] > length).sum()), tokens=int(lengths.sum()),
            captions=digest(captions[split]), spread=spread(source.splits[split]), values=total.hexdigest(),
            lengths=hashlib.sha256(lengths.tobytes()).hexdigest(),
        )  # fmt: skip
    text = CaptionEmbeddings(encoder=encoder.name, sha256=encoder.sha256, length=length, features=encoder.features)
    return Prepared(text=text, data=source.fingerprint, splits=splits)


def encode_split(
    captions: Sequence[str], lengths: np.ndarray, encoder: Encoder, length: int, batch_size: int, progress: Progress, what: str
) -> Iterator[bytes]:
    """Yields the embeddings of a split's tokens in order, as float16. Raises UserError for values outside its range."""
    captioned = np.flatnonzero(lengths)
    for first in progress.track(range(0, len(captioned), batch_size), description=what):
        rows = captioned[first : first + batch_size]
        embeddings, mask = encoder.encode([captions[int(row)] for row in rows], length)
        if not np.array_equal(mask.sum(1), lengths[rows]):
            raise UserError(f"{encoder.name} returned a different number of tokens than its tokenizer: do they belong together?")
        with np.errstate(over="ignore"):  # reported below
            halves = embeddings[mask].astype("<f2")
        if not np.isfinite(halves).all():
            raise UserError(f"{encoder.name} returned values that are not finite, or beyond 65,504: are its weights intact?")
        yield halves.tobytes()


def report(out: Path, prepared: Prepared, flags: str) -> str:
    train, held_out, text = prepared.splits["train"], prepared.splits["validation"], prepared.text
    size, cut = sum(file.stat().st_size for split in SPLITS for file in files_of(out, split)), train.cut + held_out.cut
    return (
        f"{out}: captions of {train.captioned:,} of {train.num:,} training examples, {held_out.captioned:,} of {held_out.num:,} held out; "
        f"{train.tokens + held_out.tokens:,} tokens of {text.features} features, {si(size, 1024)}B\n"
        f"encoded by {text.encoder} (sha256 {text.sha256[:16]}); {cut:,} captions were truncated to {text.length} tokens\n"
        f"next: tinygen train {flags} --config.text.embeddings={out}"
    )


def progress_bar() -> Progress:
    return Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), transient=True)


if __name__ == "__main__":
    sys.exit(main())
