"""Metric writers for the services in `config.train.writers`. Each is an extra to install.

A writer has some of the methods of CLU's: `write_scalars`, `write_images`, `write_texts` and `close`. To add one, add a class and a row.
"""

import importlib
import importlib.util
import os
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tinygen.errors import UserError, unknown
from tinygen.workdir.files import Folder

PAUSE = 60.0  # seconds without calls after a writer has failed
LONGEST = 100  # maximum bytes of a run's name at wandb


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


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]
