"""Supported locations of runs, checkpoints and reports: local file systems and Google Cloud Storage."""

import importlib
import os
import re

from tinygen.errors import UserError

ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def check(path: str | os.PathLike[str], option: str) -> None:
    """Raises UserError for any other kind of address, and for a bucket if Orbax's dependencies for it are not installed.

    option: the option that the path was given with
    """
    if not (address := ADDRESS.match(os.fspath(path))):
        return
    if address[1] != "gs":
        raise UserError(f"{option}={path}: {address[0]} is not supported; give a path on this machine, or gs://BUCKET/PATH")
    try:
        importlib.import_module("google.cloud.storage")
    except ImportError as error:
        raise UserError(f"{option}={path}: Google's client for buckets is not installed: pip install 'tinygen[gcs]'") from error
