"""Where runs, checkpoints and reports may lie: on this machine's file systems, or in a bucket of Google's."""

import importlib
import os
import re

from tinygen.errors import UserError

ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def check(path: str | os.PathLike[str], option: str) -> None:
    """Raises UserError for an address of another kind, and for a bucket where what Orbax needs for one is not installed.

    option: what the path was given as
    """
    if not (address := ADDRESS.match(os.fspath(path))):
        return
    if address[1] != "gs":
        raise UserError(f"{option}={path}: {address[0]} is not supported; give a path on this machine, or gs://BUCKET/PATH")
    try:
        importlib.import_module("google.cloud.storage")
    except ImportError as error:
        raise UserError(f"{option}={path}: Google's client for buckets is not installed: pip install 'tinygen[gcs]'") from error
