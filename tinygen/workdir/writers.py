"""Metric writers: TensorBoard's event files, and the services in `config.train.writers`, each of which is an extra to install.

A writer has some of the methods of CLU's: `write_scalars`, `write_images`, `write_texts` and `close`. To add one, add a class and a row.
"""

import importlib
import importlib.util
import io
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.plugins.image import metadata as image
from tensorboard.plugins.scalar import metadata as scalar
from tensorboard.plugins.text import metadata as text
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto

from tinygen.distributed.processes import leads
from tinygen.errors import UserError, unknown
from tinygen.media.image import png
from tinygen.workdir.files import Folder

# Protobuf creates the classes of these modules on import, invisible to type checkers.
events: Any = event_pb2
summaries: Any = summary_pb2

LARGEST = 2**26  # bytes after which a new event file is started, since appending in an object store reads the whole file
PAUSE = 60.0  # seconds without calls after a writer has failed
LONGEST = 100  # maximum bytes of a run's name at wandb


class EventFile:
    """TensorBoard's event files, with its own messages and records, without TensorFlow, which takes seconds to import.

    If a write fails, its events are kept, up to LARGEST bytes, and written with the next.
    """

    def __init__(self, workdir: Folder):
        self.workdir = workdir
        self.written = time.monotonic()
        self._begin()

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        about = scalar.create_summary_metadata(display_name="", description="")
        self._add(step, about, {name: make_tensor_proto(value, dtype="float32") for name, value in scalars.items()})

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """images: {name: uint8 [N, H, W, C]}"""
        about = image.create_summary_metadata(display_name="", description="")
        sizes = {name: [str(size).encode() for size in (batch.shape[2], batch.shape[1])] for name, batch in images.items()}
        self._add(step, about, {name: make_tensor_proto([*sizes[name], *map(png, batch)]) for name, batch in images.items()})

    def write_texts(self, step: int, texts: Mapping[str, Sequence[str]]) -> None:
        """texts: shown verbatim, line by line, although TensorBoard renders Markdown."""
        about = text.create_summary_metadata(display_name="", description="")
        blocks = {name: ["    " + row.replace("\n", "\n    ") for row in rows] for name, rows in texts.items()}  # code blocks
        self._add(step, about, {name: make_tensor_proto(rows, dtype="string") for name, rows in blocks.items()})

    def flush(self) -> None:
        if content := self.pending.getvalue():
            try:
                self.workdir.append(self.name, content)
            except BaseException:
                if len(content) > LARGEST:
                    self._begin()  # drops the pending events, which must not exhaust memory
                raise
            self.pending, self.size = io.BytesIO(), self.size + len(content)
        self.written = time.monotonic()
        if self.size > LARGEST:
            self._begin()

    def close(self) -> None:
        self.flush()

    def _begin(self) -> None:
        """Starts a new file with an unguessable name, so that no link can have been planted there."""
        self.name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{secrets.token_hex(8)}.v2"
        self.pending, self.size = io.BytesIO(), 0
        self._put(events.Event(wall_time=time.time(), file_version="brain.Event:2"))

    def _add(self, step: int, about: Any, values: Mapping[str, Any]) -> None:
        rows = [summaries.Summary.Value(tag=name, metadata=about, tensor=tensor) for name, tensor in values.items()]
        self._put(events.Event(wall_time=time.time(), step=step, summary=summaries.Summary(value=rows)))
        if time.monotonic() - self.written >= self.workdir.append_interval:
            self.flush()

    def _put(self, event: Any) -> None:
        RecordWriter(self.pending).write(event.SerializeToString())


class WandbWriter:
    """Weights & Biases: project $WANDB_PROJECT (default "tinygen"); a resumed run continues the same wandb run.

    Raises UserError if wandb cannot start: not logged in, no network.
    """

    def __init__(self, workdir: Folder, settings: Mapping[str, Any]):
        self.wandb: Any = importlib.import_module("wandb")
        folder = None if "://" in str(workdir) else str(workdir)  # wandb writes its own files to a disk only
        if workdir.type_of("wandb") not in (None, "folder"):
            raise UserError(f"{workdir.path('wandb')} is not a folder, and wandb needs one there: remove it.")
        if workdir.read("wandb_id", LONGEST) is None:
            workdir.write("wandb_id", secrets.token_hex(8))
        identity = (workdir.read("wandb_id", LONGEST) or b"").decode("ascii", "replace")
        try:
            self.run = self.wandb.init(
                project=os.environ.get("WANDB_PROJECT", "tinygen"), name=workdir.path().name, id=identity, resume="allow",
                dir=folder, config=dict(settings), settings=self.wandb.Settings(init_timeout=20),
            )  # fmt: skip
        except self.wandb.Error as error:
            reason = " ".join(str(error).split())[:160]
            raise UserError(
                f"wandb: {reason}\nRun 'wandb login', or set WANDB_MODE=offline to write to {workdir.path('wandb')}."
            ) from error

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        self.run.log(dict(scalars), step=step)

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """images: {name: uint8 [N, H, W, C]}"""
        self.run.log({name: [self.wandb.Image(image) for image in batch] for name, batch in images.items()}, step=step)

    def write_texts(self, step: int, texts: Mapping[str, list[str]]) -> None:
        self.run.log({name: self.wandb.Table(columns=["text"], data=[[text] for text in rows]) for name, rows in texts.items()}, step=step)

    def close(self) -> None:
        self.run.finish()


class Steady:
    """Wraps a writer so that its errors are reported and never end the run.

    tell: called with the name and the error, or None after a success
    pause: seconds without calls after an error, for services that take long to fail; metrics in that time are not written
    """

    def __init__(self, name: str, writer: Any, tell: Callable[[str, Exception | None], None], pause: float = PAUSE):
        self.name, self.writer, self.tell, self.pause = name, writer, tell, pause
        self.left_alone_until = 0.0

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        self._call(self.writer.write_scalars, step, scalars)

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        self._call(self.writer.write_images, step, images)

    def write_texts(self, step: int, texts: Mapping[str, list[str]]) -> None:
        self._call(self.writer.write_texts, step, texts)

    def close(self) -> None:
        self.left_alone_until = 0.0
        self._call(self.writer.close)

    def _call(self, method: Callable[..., None], *arguments: Any) -> None:
        if time.monotonic() < self.left_alone_until:
            return
        try:
            method(*arguments)
        except Exception as error:  # services raise their own types
            self.left_alone_until = time.monotonic() + self.pause
            self.tell(self.name, error)
        else:
            self.tell(self.name, None)


WRITERS: dict[str, Callable[[Folder, Mapping[str, Any]], Any]] = {"wandb": WandbWriter}


def check_writers(names: str) -> None:
    """Raises UserError for a writer that is unknown or not installed."""
    for name in _split(names):
        if name not in WRITERS:
            raise unknown("config.train.writers", name, WRITERS)
        if importlib.util.find_spec(name) is None:
            raise UserError(f"config.train.writers={names}: the package {name} is not installed: pip install 'tinygen[{name}]'")


def extra_writers(names: str, workdir: Folder, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Starts the writers with these names, "a,b"."""
    return {name: WRITERS[name](workdir, settings) for name in _split(names)}


def make_writers(workdir: Folder, extra: str, settings: Mapping[str, Any], tell: Callable[[str, Exception | None], None]) -> list[Steady]:
    """TensorBoard and the `extra` writers; none unless this is the coordinator process. tell: see `Steady`"""
    if not leads():
        return []
    board = Steady("TensorBoard", EventFile(workdir), tell, pause=0.0)  # no pause: it keeps events that it could not write
    return [board, *(Steady(name, writer, tell) for name, writer in extra_writers(extra, workdir, settings).items())]


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]
