"""TensorBoard event files, written with TensorBoard's own messages and records, without TensorFlow, which takes seconds to import."""

import io
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.plugins.image import metadata as image
from tensorboard.plugins.scalar import metadata as scalar
from tensorboard.plugins.text import metadata as text
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto

from tinygen.media.image import png
from tinygen.workdir.files import Folder

# Protobuf creates the classes of these modules on import, invisible to type checkers.
events: Any = event_pb2
summaries: Any = summary_pb2

LARGEST = 2**26  # bytes after which a new file is started, since appending in an object store reads the whole file


class EventFile:
    """Writes events to a workdir. If a write fails, its events are kept, up to LARGEST bytes, and written with the next."""

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
