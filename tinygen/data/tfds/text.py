"""Text from TensorFlow Datasets, by name or from a builder's folder: each example is a document."""

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from etils import epy

from tinygen.data.codec import Codec
from tinygen.data.source import DataSource
from tinygen.data.text.documents import cut
from tinygen.data.text.fitting import Reading
from tinygen.data.text.sources import source
from tinygen.data.tfds import images
from tinygen.data.tfds.features import at, features_of, only
from tinygen.errors import UserError

with epy.lazy_imports():  # importing takes most of a second, which other sources need not pay
    import tensorflow_datasets as library

BLOCK = 1024  # examples read at once


@dataclasses.dataclass(frozen=True)
class TfdsDocuments:
    """A split of a prepared set.

    rows: TFDS's random access
    feature: the path of the text
    """

    rows: Any
    feature: str
    size: int | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def pieces(self, indices: Iterable[int]) -> Iterator[tuple[str, bool]]:
        """Invalid UTF-8 becomes U+FFFD."""
        numbers = [int(index) for index in indices]
        for start in range(0, len(numbers), BLOCK):
            for row in self.rows.__getitems__(numbers[start : start + BLOCK]):
                yield from cut(at(row, self.feature).decode("utf-8", "replace"))


def tfds_text(
    *, dataset: str, train: str, validation: str, feature: str, data_dir: str,
    tokenizer: str, vocabulary: int, files: str, length: int, pack: bool, known: Codec | None, prepares: bool,
) -> DataSource:  # fmt: skip
    """A TFDS set of texts. The keywords are described in `tinygen.config.schema.DATASETS`.

    Raises UserError for a set that does not exist, cannot be prepared or read with random access, or has no text.
    """
    reading = Reading(tokenizer, vocabulary, files, length, pack, known)
    if not dataset:
        raise UserError("config.data.dataset is missing: a name that TFDS knows, such as tiny_shakespeare, or a prepared builder's folder")
    builder = images.builder_of(dataset, data_dir)
    chosen = only(builder, dict(features_of(builder.info.features)), library.features.Text, "text", "feature", feature)
    first, second = images.splits_of(images.prepared(builder, prepares or not data_dir), train, validation)
    splits = {name: TfdsDocuments(images.rows_of(builder, split), chosen) for name, split in {"train": first, "validation": second}.items()}
    name, counts = builder.info.full_name, [builder.info.splits[split].num_examples for split in sorted(builder.info.splits)]
    said = f"{name}: {len(splits['train']):,} documents to train on ({first}), {len(splits['validation']):,} held out ({second})"
    version = f"{name} {counts} {first} {second} {chosen}"  # not the bytes: compression may differ between machines
    facts = {"content": _content(Path(builder.data_path)), "set": version}
    contents = images.contents_of(builder, counts, first, second, chosen)
    return source(splits, reading, facts, contents, [f"{said}, in {builder.data_path}"], builder.name, version)


def _content(folder: Path) -> str:
    """The SHA-256 of the set's files: sets of the same name may differ."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.array_record*")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
