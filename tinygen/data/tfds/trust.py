"""Refuses data sets whose name or files would make TFDS run foreign code."""

import json
import re
from pathlib import Path

from tinygen.errors import UserError

OWN = "tensorflow_datasets."


def check_name(dataset: str) -> None:
    """Raises UserError for a set of a namespace ("author:set"), whose code TFDS fetches and runs. "set:version" is allowed."""
    if re.match(r"\w[\w-]*:(?![0-9*])", dataset):
        raise UserError(
            f"config.data.dataset={dataset[:100]}: a namespace runs its author's code. Prepare the set yourself, and give its folder."
        )


def check_classes(folder: Path) -> None:
    """Raises UserError unless all features of a prepared set are TFDS's own: it imports their classes by name."""
    path = folder / "features.json"
    try:
        found = [json.loads(path.read_text("utf-8"))] if path.exists() else []
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {str(error)[:160]}") from error
    while found:
        tree = found.pop()
        found += tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
        name = tree.get("pythonClassName") or tree.get("type") if isinstance(tree, dict) else None
        if isinstance(name, str) and "." in name and not name.startswith(OWN):
            raise UserError(f"{path} names a class that is not TFDS's own ({name[:100]!r}), which would be imported and run")
