"""Latents or tokens of images, written by `scripts/prepare/prepare_latents.py`: a folder with one ArrayRecord file per split, and
`latents.json`.

A record is the mean and standard deviation of one image's posterior (float16 [h, w, c] each), or its tokens (int32 [h, w]), its label
(int32, -1 = none) and its caption (UTF-8). float16 halves disk space and reading, and rounds by at most 5e-4 of a value, less than the
spread of a posterior.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tinygen.data.codec import Codec, Field
from tinygen.data.contents import Contents, short
from tinygen.data.domain import Encoded, Latents, Tokens
from tinygen.data.examples import Batch, Examples
from tinygen.data.source import DataSource
from tinygen.errors import UserError
from tinygen.media import Image

ABOUT, VERSION, SUM = "latents.json", 1, "sha256"
SPLITS = ("train", "validation")
HALF, NUMBER = np.dtype("<f2"), np.dtype("<i4")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """The content of `latents.json`.

    labels: names of the records' labels; empty without labels
    counts, sizes: records and bytes of each split's file
    fingerprint: the fingerprint of all records
    """

    latents: Encoded
    labels: tuple[str, ...]
    counts: Mapping[str, int]
    sizes: Mapping[str, int]
    fingerprint: str

    def write(self, folder: Path) -> None:
        tree = {"version": VERSION, **dataclasses.asdict(self)}
        (folder / ABOUT).write_text(json.dumps({**tree, SUM: _sum(tree)}, indent=1) + "\n")

    @property
    def identity(self) -> str:
        """A hash of everything a model sees of these latents, independent of their location and their autoencoder's."""
        return _sum(dataclasses.asdict(dataclasses.replace(self, latents=dataclasses.replace(self.latents, source=""))))

    @classmethod
    def read(cls, folder: Path) -> "Prepared":
        """Raises UserError if the file is missing or damaged."""
        path = folder / ABOUT
        try:
            tree = json.loads(path.read_text("utf-8"))
            if tree["version"] != VERSION:
                raise UserError(f"its version is {str(tree['version'])[:20]}, and this program reads {VERSION}: prepare them again")
            if tree.pop(SUM) != _sum(tree):
                raise UserError("it has been changed since it was written. Copy the folder again, or prepare the latents again")
            counts, sizes = ({split: int(tree[key][split]) for split in SPLITS} for key in ("counts", "sizes"))
            latents, labels = Encoded.from_tree(tree["latents"]), tuple(map(str, tree["labels"]))
            return cls(latents=latents, labels=labels, counts=counts, sizes=sizes, fingerprint=str(tree["fingerprint"]))
        except FileNotFoundError as error:
            raise UserError(f"config.data.path={folder}: {ABOUT} is not there. {MAKING.format(folder=folder)}") from error
        except UserError as error:
            raise UserError(f"config.data.path={folder}: {path.name}: {error}") from error
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OSError) as error:
            raise UserError(f"config.data.path={folder}: {path.name} is damaged ({str(error)[:120]}): prepare the latents again") from error


def _sum(tree: Any) -> str:
    """SHA-256 of a JSON tree."""
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


MAKING = (
    "Latents are made, in a checkout of tinygen, by\n"
    "python scripts/prepare/prepare_latents.py --config=RECIPE --autoencoder=FILE|RUN --out={folder}"
)


def file_of(folder: Path, split: str) -> Path:
    return folder / f"{split}.array_record"


def packed(content: np.ndarray, label: int, caption: str) -> bytes:
    """One record. content: `posterior` or `tokens_of`"""
    return content.tobytes() + np.asarray(label, NUMBER).tobytes() + caption.encode()


def posterior(mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """[B, 2, h, w, c] in float16. Raises UserError for values that it cannot represent."""
    halves = np.stack([mean, std], 1).astype(HALF)
    if not np.isfinite(halves).all():
        raise UserError("the autoencoder gives latents that are not finite, or beyond 65,504: is it trained?")
    return halves


def tokens_of(tokens: np.ndarray) -> np.ndarray:
    """[B, h, w] in the byte order of a record."""
    return tokens.astype(NUMBER)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodedExamples(Examples):
    """One split.

    rows: random access to its records
    label: whether batches include labels
    """

    rows: Any
    path: Path
    latents: Any  # the domain
    label: bool

    def __len__(self) -> int:
        return len(self.rows)

    def captions(self, indices: np.ndarray) -> list[str]:
        return [record[self._head :].decode("utf-8", "replace") for record in self._records(indices)]

    @property
    def _content(self) -> tuple[np.dtype, tuple[int, ...]]:
        """(dtype, shape) of a record's content."""
        raise NotImplementedError

    @property
    def _head(self) -> int:
        """Bytes of a record before its caption."""
        dtype, shape = self._content
        return dtype.itemsize * int(np.prod(shape)) + NUMBER.itemsize

    def _read(self, indices: np.ndarray) -> tuple[np.ndarray, Batch]:
        """(the records' contents [B, ...], their labels if batches include them). Raises UserError for damaged records."""
        records, head, (dtype, shape) = self._records(indices), self._head, self._content
        labels = [np.frombuffer(record[head - NUMBER.itemsize : head], NUMBER)[0] for record in records]
        content = np.stack([np.frombuffer(record[: head - NUMBER.itemsize], dtype).reshape(shape) for record in records])
        return content, {"label": np.asarray(labels, np.int32)} if self.label else {}

    def _records(self, indices: np.ndarray) -> Sequence[bytes]:
        try:
            records = self.rows.__getitems__([int(index) for index in indices])
        except (RuntimeError, ValueError) as error:  # a wrong checksum, or a missing file
            raise UserError(f"{self.path} cannot be read ({str(error)[:120]}): prepare the latents again") from error
        if any(len(record) < self._head for record in records):
            raise UserError(f"{self.path}: records are too short for latents of {list(self.latents.shape)}: prepare the latents again")
        return records


class LatentExamples(EncodedExamples):
    """Posteriors of latents."""

    def take(self, indices: np.ndarray) -> Batch:
        """The posteriors' means."""
        halves, labels = self._read(indices)
        return {"x": self.latents.scaled(halves[:, 0].astype(np.float32)), **labels}

    def draw(self, indices: np.ndarray, generators: Sequence[np.random.Generator]) -> Batch:
        """A sample of each posterior, mean + std · ε, with ε from its generator."""
        halves, labels = self._read(indices)
        means, stds = halves.astype(np.float32).swapaxes(0, 1)
        noise = np.stack([generator.standard_normal(self.latents.shape, np.float32) for generator in generators])
        return {"x": self.latents.scaled(means + stds * noise), **labels}

    @property
    def _content(self) -> tuple[np.dtype, tuple[int, ...]]:
        return HALF, (2, *self.latents.shape)


class TokenExamples(EncodedExamples):
    """Tokens."""

    def take(self, indices: np.ndarray) -> Batch:
        tokens, labels = self._read(indices)
        return {"tokens": tokens.astype(np.int32), **labels}

    @property
    def _content(self) -> tuple[np.dtype, tuple[int, ...]]:
        return NUMBER, self.latents.shape


def latents(*, path: str, autoencoder: str, sample: bool, label: bool) -> DataSource:
    """Prepared latents: `x` float32 [h, w, c] of mean 0 and variance 1 over the training split, or `tokens` int32 [h, w] of a tokenizer;
    and `label` if they have labels.

    In training each epoch samples every posterior anew; held-out latents, and all with sample=False, are the posteriors' means. Samples
    depend only on the seed, the attempt, the batch's number and the position in the batch.

    Args: as explained in `tinygen.config.schema.DATASETS`. Raises UserError if the folder is incomplete.
    """
    if not path:
        raise UserError(f"config.data.path is empty: give a folder of latents. {MAKING.format(folder='DIR')}")
    folder = Path(path).expanduser()
    prepared = Prepared.read(folder)
    source = os.path.abspath(os.path.expanduser(autoencoder)) if autoencoder else prepared.latents.source
    about = dataclasses.replace(prepared.latents, source=source)
    labels = prepared.labels if label else ()
    splits = {split: _examples(folder, split, prepared, about, bool(labels)) for split in SPLITS}
    size = f"{about.image[0]}x{about.image[1]}"
    field = Field(shape=about.shape, dtype="float32")
    if isinstance(about, Tokens):
        field = Field(shape=about.shape, dtype="int32", low=0, high=about.codes - 1)
    train, what = splits["train"], "latents" if about.key == "x" else "tokens"
    return DataSource(
        codec=Codec(medium=Image(), spec={about.key: field}, domain=about).labelled(labels),
        splits=splits,
        fingerprint=hashlib.sha256(f"{prepared.identity} {sample} {label}".encode()).hexdigest()[:16],
        contents=Contents(facts=_facts(prepared)),
        draw=train.draw if sample and isinstance(train, LatentExamples) else None,
        summary=(
            f"{what} of {len(train):,} images of {size} to train on, {len(splits['validation']):,} held out, "
            f"{list(about.shape)} each; {len(labels)} labels",
            f"made by {about.name} (sha256 {about.sha256[:16]}), expected in {about.source}",
        ),
    )


def _facts(prepared: Prepared) -> dict[str, str]:
    counts = {f"latents of {split}": f"{num:,}" for split, num in prepared.counts.items()}
    about = prepared.latents
    facts = {**counts, "their content": prepared.fingerprint, "their autoencoder": about.sha256[:16]}
    if isinstance(about, Latents):
        facts["their scale and shift"] = f"{about.scale:.9g}, {short(repr(about.shift))}"
    return facts


def _examples(folder: Path, split: str, prepared: Prepared, latents: Encoded, label: bool) -> EncodedExamples:
    """Raises UserError if a split's file is missing or damaged."""
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    path, wanted = file_of(folder, split), prepared.sizes[split]
    size = os.stat(path).st_size if path.exists() else None
    if size != wanted:
        found = "is not there" if size is None else f"has {size:,} bytes instead of {wanted:,}"
        raise UserError(f"config.data.path={folder}: {path.name} {found}: copy the folder again, or prepare the latents again")
    try:
        rows = ArrayRecordDataSource(str(path))
    except RuntimeError as error:
        raise UserError(f"{path} cannot be read ({str(error)[:120]}): prepare the latents again") from error
    if len(rows) != prepared.counts[split]:
        raise UserError(f"{path} holds {len(rows):,} records instead of {prepared.counts[split]:,}: prepare the latents again")
    kind = TokenExamples if isinstance(latents, Tokens) else LatentExamples
    return kind(rows=rows, path=path, latents=latents, label=label)
