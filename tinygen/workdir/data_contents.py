"""data_files.json: the contents of a run's data, so that a refusal of changed data can say which files have changed.

It is written once per workdir, not in every checkpoint, since 100,000 files take 5 MB. Without it, as in workdirs of earlier versions,
a refusal can show only the fingerprints.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tinygen.data import contents
from tinygen.data.contents import FILE, Contents
from tinygen.data.source import DataSource
from tinygen.distributed import processes
from tinygen.workdir.files import Folder, sound_json


def keep(workdir: Folder, source: DataSource) -> None:
    """Writes the contents of a run's data on process 0, unless they exist."""
    if source.contents and processes.leads() and _kept(workdir, source.fingerprint) is None:
        workdir.write(FILE, source.contents.kept(source.fingerprint))


def change(workdir: Folder, manifest: Mapping[str, Any], source: DataSource) -> str:
    """How the data differs from that in a checkpoint's manifest, in one line; "" if it does not."""
    before = manifest.get("data_fingerprint", source.fingerprint)
    return "" if before == source.fingerprint else difference(workdir, before, source)


def difference(workdir: Folder, before: str | None, source: DataSource, keys: Sequence[str] = ()) -> str:
    """How a run's data differs from that with fingerprint `before`, in one line. keys: the recipe's keys that have changed"""
    return contents.difference(_kept(workdir, before), before, source.contents, source.fingerprint, keys)


def _kept(workdir: Folder, fingerprint: str | None) -> Contents | None:
    """The contents of the data with that fingerprint; None if unknown."""
    return Contents.of(sound_json(workdir, FILE), fingerprint)  # it only serves messages; a damaged one is rewritten
