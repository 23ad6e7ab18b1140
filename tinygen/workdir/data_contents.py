"""What the data of a run consisted of, kept once in its workdir, so that a refusal of changed data can say which files have changed.

It is data_files.json, beside the checkpoints and not in each: 100,000 files take 5 MB. Without it, as in the workdirs of earlier versions,
a refusal has only the fingerprints to show.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tinygen.data import contents
from tinygen.data.contents import FILE, Contents
from tinygen.data.source import DataSource
from tinygen.distributed import processes
from tinygen.errors import UserError
from tinygen.workdir.files import Folder, read_json


def keep(workdir: Folder, source: DataSource) -> None:
    """Writes the contents of a run's data, unless they are there. Process 0 does."""
    if source.contents and processes.leads() and _kept(workdir, source.fingerprint) is None:
        workdir.write(FILE, source.contents.kept(source.fingerprint))


def change(workdir: Folder, manifest: Mapping[str, Any], source: DataSource) -> str:
    """What tells the data from those that a checkpoint's manifest names, in a line; "" where nothing does."""
    before = manifest.get("data_fingerprint", source.fingerprint)
    return "" if before == source.fingerprint else difference(workdir, before, source)


def difference(workdir: Folder, before: str | None, source: DataSource, keys: Sequence[str] = ()) -> str:
    """What tells a run's data from those of the fingerprint `before`, in a line. keys: of the recipe, that have changed."""
    return contents.difference(_kept(workdir, before), before, source.contents, source.fingerprint, keys)


def _kept(workdir: Folder, fingerprint: str | None) -> Contents | None:
    """What the data of that fingerprint consisted of; None where that is not known."""
    try:
        return Contents.of(read_json(workdir, FILE), fingerprint)
    except (UserError, OSError):  # it only explains; a damaged one is written anew
        return None
