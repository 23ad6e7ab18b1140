"""What the data of a run consisted of, kept once in its workdir, so that a refusal of changed data can say which files have changed.

It is data_files.json, beside the checkpoints and not in each: 100,000 files take 5 MB. Without it, as in the workdirs of earlier versions,
a refusal has only the fingerprints to show.
"""

import json
from collections.abc import Sequence

from etils import epath

from tinygen import processes, rundir
from tinygen.data.base import DataSource
from tinygen.data.contents import Contents, changes
from tinygen.errors import UserError

FILE = "data_files.json"


def keep(workdir: epath.Path, source: DataSource) -> None:
    """Writes the contents of a run's data, unless they are there. Process 0 does."""
    if source.contents and processes.leads() and _kept(workdir, source.fingerprint) is None:
        listed = {"fingerprint": source.fingerprint, **source.contents.to_json()}
        rundir.write_whole(workdir / FILE, json.dumps(listed, indent=0) + "\n")


def difference(workdir: epath.Path, before: str | None, source: DataSource, keys: Sequence[str] = ()) -> str:
    """What tells a run's data from those of the fingerprint `before`, in a line.

    keys: of the recipe, that have changed
    """
    earlier = _kept(workdir, before)
    said = [*keys, *(changes(earlier, source.contents) if earlier else ())]
    unknown = f"{FILE} names no difference" if earlier else f"{FILE}, which would say what they were, is not there"
    return "; ".join(said) or f"their fingerprint was {before} and is {source.fingerprint}; {unknown}"


def _kept(workdir: epath.Path, fingerprint: str | None) -> Contents | None:
    """What the data of that fingerprint consisted of; None where that is not known."""
    try:
        tree = rundir.read_json(workdir / FILE)
    except (UserError, OSError):  # it only explains; a damaged one is written anew
        return None
    return Contents.from_json(tree) if isinstance(tree, dict) and tree.get("fingerprint") == fingerprint else None
