"""Latents of images, written by `scripts/prepare/prepare_latents.py`: a folder with one ArrayRecord file per split, and `latents.json`.

A record is the mean and standard deviation of one image's posterior (float16 [h, w, c] each), its label (int32, -1 = none) and its caption
(UTF-8). float16 halves disk space and reading, and rounds by at most 5e-4 of a value, less than the spread of a posterior.
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
from tinygen.data.domain import Latents
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

    latents: Latents
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
            latents, labels = Latents.from_tree(tree["latents"]), tuple(map(str, tree["labels"]))
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


def packed(mean: np.ndarray, std: np.ndarray, label: int, caption: str) -> bytes:
    """One record. Raises UserError for values that float16 cannot represent."""
    halves = np.stack([mean, std]).astype(HALF)
    if not np.isfinite(halves).all():
        raise UserError("the autoencoder gives latents that are not finite, or beyond 65,504: is it trained?")
    return halves.tobytes() + np.asarray(label, NUMBER).tobytes() + caption.encode()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatentExamples(Examples):
    """One split.

    rows: random access to its records
    label: whether batches include labels
    """

    rows: Any
    path: Path
    latents: Latents
    label: bool

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indices: np.ndarray) -> Batch:
        """The posteriors' means. Raises UserError for damaged records."""
        means, _, labels = self._read(indices)
        return self._batch(means, labels)

    def draw(self, indices: np.ndarray, generators: Sequence[np.random.Generator]) -> Batch:
        """A sample of each posterior, mean + std · ε, with ε from its generator."""
        means, stds, labels = self._read(indices)
        noise = np.stack([generator.standard_normal(self.latents.shape, np.float32) for generator in generators])
        return self._batch(means + stds * noise, labels)

    def captions(self, indices: np.ndarray) -> list[str]:
        return [record[self._head :].decode("utf-8", "replace") for record in self._records(indices)]

    @property
    def _head(self) -> int:
        """Bytes of a record before its caption."""
        return 2 * HALF.itemsize * int(np.prod(self.latents.shape)) + NUMBER.itemsize

    def _batch(self, z: np.ndarray, labels: np.ndarray) -> Batch:
        batch = {"x": self.latents.scaled(z)}
        return {**batch, "label": labels} if self.label else batch

    def _read(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(means, standard deviations, labels)"""
        records, head = self._records(indices), self._head
        labels = [np.frombuffer(record[head - NUMBER.itemsize : head], NUMBER)[0] for record in records]
        halves = np.stack([np.frombuffer(record[: head - NUMBER.itemsize], HALF) for record in records]).astype(np.float32)
        means, stds = halves.reshape(len(records), 2, *self.latents.shape).swapaxes(0, 1)
        return means, stds, np.asarray(labels, np.int32)

    def _records(self, indices: np.ndarray) -> Sequence[bytes]:
        try:
            records = self.rows.__getitems__([int(index) for index in indices])
        except (RuntimeError, ValueError) as error:  # a wrong checksum, or a missing file
            raise UserError(f"{self.path} cannot be read ({str(error)[:120]}): prepare the latents again") from error
        if any(len(record) < self._head for record in records):
            raise UserError(f"{self.path}: records are too short for latents of {list(self.latents.shape)}: prepare the latents again")
        return records


def latents(*, path: str, autoencoder: str, sample: bool, label: bool) -> DataSource:
    """Prepared latents: `x` float32 [h, w, c] of mean 0 and variance 1 over the training split, and `label` if they have labels.

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
    return DataSource(
        codec=Codec(medium=Image(), spec={"x": Field(shape=about.shape, dtype="float32")}, domain=about).labelled(labels),
        splits=splits,
        fingerprint=hashlib.sha256(f"{prepared.identity} {sample} {label}".encode()).hexdigest()[:16],
        contents=Contents(facts=_facts(prepared)),
        draw=splits["train"].draw if sample else None,
        summary=(
            f"latents of {len(splits['train']):,} images of {size} to train on, {len(splits['validation']):,} held out, "
            f"{list(about.shape)} each; {len(labels)} labels",
            f"made by {about.name} (sha256 {about.sha256[:16]}), expected in {about.source}",
        ),
    )


def _facts(prepared: Prepared) -> dict[str, str]:
    counts = {f"latents of {split}": f"{num:,}" for split, num in prepared.counts.items()}
    about = prepared.latents
    scale = f"{about.scale:.9g}, {short(repr(about.shift))}"
    return {**counts, "their content": prepared.fingerprint, "their autoencoder": about.sha256[:16], "their scale and shift": scale}


def _examples(folder: Path, split: str, prepared: Prepared, latents: Latents, label: bool) -> LatentExamples:
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
    return LatentExamples(rows=rows, path=path, latents=latents, label=label)
