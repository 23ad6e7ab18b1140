"""The drawn faces of `avatars` as a TFDS data set, `avatars/<style>-<num>`: drawn once, stored as ArrayRecord.

Importing this module registers the set: `tfds.builder("avatars/micah")` has the default number of faces. Neither drawing nor
reading needs a network or TensorFlow.
"""

import contextlib
import dataclasses
import functools
import io
import itertools
import re
import time
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

import tensorflow_datasets as tfds
from absl import logging
from etils import epath
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tensorflow_datasets.core.utils import tqdm_utils

from tinygen.data.avatars import drawing as avatars
from tinygen.data.avatars.styles import STYLES
from tinygen.errors import UserError
from tinygen.system.cache import alone

DEFAULT_NUM = 20_000


def builder(style: str = "micah", num: int = DEFAULT_NUM, data_dir: str | None = None) -> "Avatars":
    """The data set of the first `num` faces of a style; `download_and_prepare()` draws them if needed.

    Args:
      data_dir: TFDS's folder by default.

    Raises UserError for a style that does not exist, or for fewer faces than two splits need.
    """
    avatars.find_style(style)  # before its name becomes part of a configuration's
    return Avatars(config=f"{style}-{num}", data_dir=data_dir)


@dataclasses.dataclass(eq=False)
class AvatarsConfig(tfds.core.BuilderConfig):
    """`num` faces of `style`."""

    style: str = ""
    num: int = DEFAULT_NUM


def _named(name: str) -> AvatarsConfig:
    """The configuration of a name such as "micah-500"; "micah" has the default number of faces."""
    parts = re.fullmatch("(.+?)(?:-(-?[0-9]+))?", name)
    style, num = (parts[1], int(parts[2] or DEFAULT_NUM)) if parts else (name, DEFAULT_NUM)
    title = avatars.find_style(style).title
    if num < 2:
        raise UserError(f"config.data.num={num}: two are needed, one to train on and one to hold out")
    return AvatarsConfig(name=f"{style}-{num}", description=f"{num:,} faces in the style {title}", style=style, num=num)


class Avatars(tfds.core.GeneratorBasedBuilder):
    """Faces 0, 1, ... of a style, in order: the last twentieth is `validation`, the rest `train`."""

    VERSION = tfds.core.Version("1.0.0")  # raise it when the drawing, labels or caption of any face change
    BUILDER_CONFIGS: ClassVar[list[AvatarsConfig]] = [_named(style) for style in STYLES]
    DEFAULT_BUILDER_CONFIG_NAME = f"micah-{DEFAULT_NUM}"

    def __init__(self, *, file_format: str | None = None, **options: Any):
        super().__init__(file_format=file_format or "array_record", **options)

    @property
    def wanted(self) -> AvatarsConfig:
        assert isinstance(self.builder_config, AvatarsConfig)
        return self.builder_config

    def download_and_prepare(self, **options: Any) -> None:
        """Draws the faces if needed. One process draws; others that need the same faces wait for it.

        Takes TFDS's keywords. Raises UserError if the drawing packages are not installed.
        """
        if not options and self._drawn():
            return
        avatars.require_packages()
        # By default TFDS would ask a server for them.
        options.setdefault("download_config", tfds.download.DownloadConfig(try_download_gcs=False))
        with _alone(self.data_path.parent):
            if not self._drawn():
                for torn in (self.data_path, *self.data_path.parent.glob("incomplete.*")):  # left by a killed process
                    torn.rmtree(missing_ok=True)
            drawing = avatars.draw_all(self.wanted.style, self.wanted.num)
            with contextlib.closing(drawing), _progress(self.wanted) as progress:
                self._faces = progress(drawing)
                super().download_and_prepare(**options)

    def _drawn(self) -> bool:
        """Whether any process has drawn the faces. Reads their stored information if so."""
        whole = (self.data_path / "dataset_info.json").exists()
        if whole and not self.info.splits:
            self.info.read_from_directory(self.data_dir)
        return whole

    def _log_download_bytes(self) -> None:
        """Silent: nothing is downloaded."""

    def _log_download_done(self) -> None:
        """Silent: nothing was downloaded."""

    def _create_builder_config(self, builder_config: Any, version: Any) -> Any:
        if isinstance(builder_config, str):
            made = _named(builder_config)
            return self.builder_configs.get(made.name, made)
        return super()._create_builder_config(builder_config, version)

    def _info(self) -> tfds.core.DatasetInfo:
        style = avatars.find_style(self.wanted.style)
        names = avatars.attributes(self.wanted.style)
        credit = f"“{style.title}” by {style.author} ({style.url}), {style.licence}"
        return _Info(
            builder=self,
            description=f"{self.wanted.description}, {avatars.SIZE}x{avatars.SIZE}, with labels and captions of what they show.",
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(avatars.SIZE, avatars.SIZE, 3), encoding_format="png"),
                    "caption": tfds.features.Text(),
                    **{attribute: tfds.features.ClassLabel(names=list(labels)) for attribute, labels in names.items()},
                }
            ),
            disable_shuffling=True,  # faces are independent, so their order is already random
            homepage=style.url,
            license=f"{credit}. Drawn by DiceBear, a remix; selected, coloured and scaled down by tinygen.",
            citation=f"@misc{{{self.wanted.style}, title={{{style.title}}}, author={{{style.author}}}, url={{{style.url}}}}}",
            metadata=tfds.core.MetadataDict(
                {
                    **{"style": self.wanted.style, "num": self.wanted.num},
                    **{"title": style.title, "author": style.author, "licence": style.licence, "url": style.url},
                    "packages": {project: _version(project) for project in avatars.PACKAGES.values()},
                }
            ),
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        del dl_manager
        num, examples = self.wanted.num, self._generate_examples(self._faces)
        held_out = max(1, num // 20)
        return {"train": itertools.islice(examples, num - held_out), "validation": itertools.islice(examples, held_out)}

    def _generate_examples(self, faces: Iterable[avatars.Face]) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, face in enumerate(faces):
            yield number, {"image": io.BytesIO(face.png), "caption": face.caption, **face.labels}


class _Info(tfds.core.DatasetInfo):
    def initialize_from_bucket(self) -> None:
        """Does nothing: no bucket has this set, and without a network TFDS would wait for one."""


def _version(project: str) -> str:
    try:
        return metadata.version(project)
    except metadata.PackageNotFoundError:
        return ""


@contextlib.contextmanager
def _alone(folder: epath.Path) -> Iterator[None]:
    """Makes a folder and locks it, waiting for other processes. Object stores have no locks."""
    folder.mkdir(parents=True, exist_ok=True)
    if "://" in str(folder):
        yield
        return
    waiting = functools.partial(logging.info, "%s: another process is drawing there; waiting for it", folder)
    with alone(Path(folder) / ".lock", waiting):
        yield


@contextlib.contextmanager
def _progress(drawn: AvatarsConfig) -> Iterator[Any]:
    """Yields a function that wraps an iterator of faces with progress: one bar on a terminal instead of TFDS's five, else a line."""
    shown = tqdm_utils._active
    console = Console(stderr=True)
    what = f"drawing {drawn.style} faces"
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn(),
        console=console, disable=not (shown and console.is_terminal),
    )  # fmt: skip
    task = bar.add_task(what, total=drawn.num, rate="")

    def through(faces: Iterable[avatars.Face]) -> Iterator[avatars.Face]:
        began = time.perf_counter()
        for done, face in enumerate(faces, 1):
            yield face
            bar.update(task, completed=done, rate=f"{done / (time.perf_counter() - began):.0f} faces/s")

    logging.info("%s: %d, into TFDS's folder, once", what, drawn.num)
    tfds.disable_progress_bar()
    try:
        with bar:
            yield through
    finally:
        tfds.display_progress_bar(shown)
