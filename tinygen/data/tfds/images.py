"""Images from TensorFlow Datasets, by name or from a builder's folder, read with random access and without TensorFlow.

A set is prepared once, as ArrayRecord. The image is its only image feature, or the one named; the label is a ClassLabel, a bool or an
integer feature, nested ones by path ("attributes/Smiling"); the caption is a Text feature called caption or text. Each whole number that
occurs is a label, as in the metadata of a folder.
"""

import contextlib
import dataclasses
import hashlib
import io
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging
from etils import epath, epy
from PIL import Image

from tinygen.data.codec import encode_pixels, image_codec
from tinygen.data.contents import Contents
from tinygen.data.examples import Batch, Examples
from tinygen.data.images import pixels
from tinygen.data.source import DataSource
from tinygen.data.tfds.features import at, features_of, image_of, label_of, own_frame, values_of
from tinygen.data.tfds.trust import check_classes, check_name
from tinygen.errors import UserError, unknown

with epy.lazy_imports():  # importing takes most of a second, which other sources need not pay
    import tensorflow_datasets as library
    from tensorflow_datasets.core import dataset_info, registered
    from tensorflow_datasets.core.utils import gcs_utils

PATIENCE = 6.0  # seconds to wait for a server's answer


@dataclasses.dataclass(frozen=True, kw_only=True)
class TfdsExamples(Examples):
    """A split of a prepared set.

    rows: TFDS's random access; images are undecoded files, so that they are decoded as in other sources
    image, label, caption: paths of features; "" = none
    values: [K], the label feature's value for each label; None = the label itself
    options: keywords of `pixels.fitted`
    """

    rows: Any
    values: np.ndarray | None
    image: str
    label: str
    caption: str
    options: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indices: np.ndarray) -> Batch:
        rows = self._rows(indices)
        try:
            images = [pixels.fitted(Image.open(io.BytesIO(at(row, self.image)), formats=pixels.FORMATS), **self.options) for row in rows]
        except Exception as error:  # a damaged file can make a decoder raise anything
            raise UserError(f"an image of the TFDS set cannot be used ({str(error)[:120]}): one of {indices[:8].tolist()}") from error
        batch = {"x": encode_pixels(np.stack(images))}
        if self.label:
            found = np.asarray([at(row, self.label) for row in rows])
            batch["label"] = (found if self.values is None else np.searchsorted(self.values, found)).astype(np.int32)
        return batch

    def captions(self, indices: np.ndarray) -> list[str]:
        if not self.caption:
            return super().captions(indices)
        return [at(row, self.caption).decode("utf-8", "replace") for row in self._rows(indices)]

    def _rows(self, indices: np.ndarray) -> Any:
        return self.rows.__getitems__([int(index) for index in indices])


def tfds(
    *, dataset: str, train: str, validation: str, image: str, label: str, size: Sequence[int], fit: str, channels: int, flip: bool,
    data_dir: str, prepares: bool,
) -> DataSource:  # fmt: skip
    """A TFDS image set. The keywords are described in `tinygen.config.schema.DATASETS`.

    Raises UserError for a set that does not exist, cannot be prepared or read with random access, or has no image.
    """
    if not dataset:
        raise UserError("config.data.dataset is missing: a name that TFDS knows, such as cifar10, or a prepared builder's folder")
    builder = builder_of(dataset, data_dir)
    return source(builder, train, validation, image, label, size, fit, channels, flip, prepares or not data_dir)


def celeb_a(*, label: str, size: Sequence[int], fit: str, flip: bool, data_dir: str, prepares: bool) -> DataSource:
    """202,599 photographs of celebrities (Liu et al. 2015), 178x218, with 40 attributes: label="attributes/Smiling"."""
    return source(builder_of("celeb_a", data_dir), "train", "", "", label, size, fit, 3, flip, prepares or not data_dir)


def avatars(*, style: str, num: int, size: Sequence[int], label: str, flip: bool, data_dir: str, prepares: bool) -> DataSource:
    """Drawn faces, RGB: see `tinygen.data.avatars.drawing`."""
    from tinygen.data.avatars import builder as avatars_builder  # brings TFDS

    with _quietly():
        builder = avatars_builder.builder(style, num, data_dir or None)
    return source(builder, "train", "validation", "", label, size, "crop", 3, flip, prepares or not data_dir)


def source(
    builder: Any, train: str, validation: str, image: str, label: str, size: Sequence[int], fit: str, channels: int, flip: bool,
    prepares: bool = True,
) -> DataSource:  # fmt: skip
    """The DataSource of a builder. Prepares the data if needed and allowed, after checking that they are usable.

    size: (0,) = as stored
    """
    features = dict(features_of(builder.info.features))
    image = image_of(builder, features, image)
    label, names = label_of(builder, features, label)
    shape = features[image].shape
    frame = pixels.frame_of(size) if any(size) else own_frame(builder, image, shape)
    options: dict[str, Any] = dict(size=frame, fit=fit, channels=channels or shape[-1] or 3, background="white")
    pixels.check_options(**options)
    caption = next((name for name in ("caption", "text") if isinstance(features.get(name), library.features.Text)), "")
    first, second = splits_of(prepared(builder, prepares), train, validation)
    rows = {"train": rows_of(builder, first, image), "validation": rows_of(builder, second, image)}
    values = values_of(rows.values(), label) if names is None else None
    labels = names or () if values is None else tuple(map(str, values.tolist()))
    read: dict[str, Any] = dict(image=image, label=label, caption=caption, options=options)
    # Identifies the set by version, not bytes: its compression may differ between machines.
    stated = {**read, "options": pixels.recorded(options)}
    counts = [builder.info.splits[split].num_examples for split in sorted(builder.info.splits)]
    identity = f"{builder.info.full_name} {counts} {first} {second} {stated} {flip}"
    said = f"{builder.info.full_name}: {len(rows['train']):,} images to train on ({first}), {len(rows['validation']):,} held out ({second})"
    return DataSource(
        codec=image_codec((*frame, options["channels"]), labels),
        splits={split: TfdsExamples(rows=each, values=values, **read) for split, each in rows.items()},
        fingerprint=hashlib.sha256(identity.encode()).hexdigest()[:16],
        contents=contents_of(builder, counts, first, second, str(stated)),
        flip=flip,
        summary=(f"{said}, in {builder.data_path}", f"{len(labels)} labels: {', '.join(labels[:12])}" if labels else "no labels"),
    )


def contents_of(builder: Any, counts: Sequence[int], train: str, validation: str, use: str) -> Contents:
    splits = f"{train}, {validation}"
    return Contents(facts={"the TFDS set": builder.info.full_name, "its examples": str(counts), "its splits": splits, "its use": use})


def prepared(builder: Any, prepares: bool = True) -> Any:
    """`builder` with its data on disk, prepared now, with TFDS's progress bars, if missing.

    Raises UserError if preparing fails, or is needed but not allowed.
    """
    with _quietly():
        if builder.is_prepared():
            return builder
    if not prepares:
        raise UserError(
            f"data set {builder.info.full_name} is not in {builder.data_path}, where the checkpoint expects it, and is not prepared now:\n"
            "a checkpoint is untrusted. To prepare the set there, run 'tinygen train' with the run's recipe."
        )
    _check_reachable(builder)
    logging.warning("Preparing %s, once, in %s", builder.info.full_name, builder.data_path)
    try:
        builder.download_and_prepare()
    except UserError:
        raise
    except Exception as error:  # from the set's own code, a download or the disk: not a fault of tinygen
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(f"data set {builder.info.full_name} cannot be prepared in {builder.data_path}:\n{reason}") from error
    return builder


def builder_of(dataset: str, data_dir: str) -> Any:
    """The builder of a set's name or folder. Raises UserError if there is none, or if it would run code that is not TFDS's."""
    gcs_utils._is_gcs_disabled = True  # without a network its requests to a bucket hang, and nothing here needs them
    place = {"data_dir": str(epath.Path(data_dir).expanduser())} if data_dir else {}
    folder = Path(dataset).expanduser()
    if folder.is_dir() and (folder.is_absolute() or len(folder.parts) > 1 or (folder / "dataset_info.json").exists()):
        check_classes(folder)
        try:
            return library.builder_from_directory(str(folder))
        except dataset_info.DatasetInfoFileError as error:
            raise UserError(
                f"config.data.dataset={dataset}: no TFDS set there (no dataset_info.json); give one version's folder, DIR/name/1.0.0"
            ) from error
    if folder.is_absolute() or folder.parts[:1] in ((), ("..",)) or dataset.startswith("./"):
        raise UserError(f"config.data.dataset={dataset}: there is no such folder")
    check_name(dataset)
    name = dataset.split("/")[0].split(":")[0]
    if name == "avatars":
        from tinygen.data.avatars import builder as avatars_builder  # registers the set

        del avatars_builder
    try:
        with _quietly():
            builder = library.builder(dataset, try_gcs=False, **place)
            if not builder.is_prepared():
                builder = library.builder(dataset, try_gcs=False, file_format="array_record", **place)
    except registered.DatasetNotFoundError as error:
        raise unknown("TFDS data set", name, library.list_builders(with_community_datasets=False)) from error
    except (ValueError, AssertionError, AttributeError, ImportError) as error:  # an unknown configuration or version
        raise UserError(f"config.data.dataset={dataset}: {' '.join(str(error).split())[:300]}") from error
    return builder


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Silences TFDS's warnings about data that are not prepared yet."""
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _check_reachable(builder: Any) -> None:
    """Raises UserError if the set's server does not answer. TFDS itself would retry for minutes."""
    urls = list(builder.url_infos or ())
    if not urls:
        return
    answered = threading.Event()

    def ask() -> None:
        import requests

        try:
            requests.head(urls[0], timeout=PATIENCE)
        except requests.RequestException:
            return
        answered.set()

    thread = threading.Thread(target=ask, daemon=True)  # a DNS look-up has no timeout
    thread.start()
    thread.join(PATIENCE)
    if not answered.is_set():
        raise UserError(
            f"data set {builder.info.full_name} is not in {builder.data_path}, and {urls[0].split('/')[2]} cannot be reached for it.\n"
            "Prepare it where there is a network and give that place as config.data.data_dir; or train on digits or shakespeare."
        )


def splits_of(builder: Any, train: str, validation: str) -> tuple[str, str]:
    """(training, held-out) splits in TFDS's syntax. By default validation or test is held out, else the last 5 % of training."""
    if validation:
        return train, validation
    other = next((name for name in ("validation", "test") if name in builder.info.splits and name != train), "")
    if other:
        return train, other
    if train not in builder.info.splits:
        raise UserError(f"config.data.validation is missing: {builder.name} has the splits {', '.join(builder.info.splits)}")
    return f"{train}[:95%]", f"{train}[95%:]"


def rows_of(builder: Any, split: str, image: str = "") -> Any:
    """TFDS's random access, with images as undecoded files."""
    decoders: Any = library.decode.SkipDecoding()
    for name in reversed(image.split("/")):
        decoders = {name: decoders} if image else None
    try:
        return builder.as_data_source(split=split, decoders=decoders)
    except NotImplementedError as error:
        raise UserError(
            f"{builder.data_path} was prepared as {builder.info.file_format.value}, which has no random access.\n"
            "Give another config.data.data_dir to prepare it there, or prepare your own with file_format='array_record'."
        ) from error
    except ValueError as error:
        reason = "it is empty" if "0 length" in str(error) else " ".join(str(error).split())[:200]
        raise UserError(f"split {split!r} of {builder.name}: {reason}") from error
