"""Three small image sets and 16 plays bundled with the package: no download, no heavy import.

| name          | x                        | labels                                                     | licence             |
|---------------|--------------------------|------------------------------------------------------------|---------------------|
| `digits`      | uint8 [5000, 28, 28, 1]  | `label`                                                    | CC BY-SA 3.0        |
| `digits8`     | uint8 [1797, 8, 8, 1]    | `label`                                                    | CC BY 4.0           |
| `pixel_faces` | uint8 [10000, 16, 16, 3] | `skin`, `hair_color`, `glasses`, `hat`, `beard`, ... (16)  | CC0 1.0             |

The pixels of `digits` and `pixel_faces` span 0..255, those of `digits8` are the integers 0..16 (`meta["max_value"]`).

The rows are in a fixed shuffled order, so any slice mixes the classes. The split is fixed too: the LAST tenth of the rows
is validation (`meta["validation"]` rows: 500, 179 and 1000), the rest is train. The held-out digits are stratified:
exactly 50 of each class of `digits`, 17 or 18 of each of `digits8`. No image is in both splits.

`plays()` returns 1.96 MB of Shakespeare (MIT); a comedy and a tragedy are held out.

LICENSES.md beside this file lists the origins; scripts/prepare/prepare_embedded.py makes the files again.
"""

import hashlib
import io
import json
import lzma
from importlib import resources
from typing import Any

import numpy as np

NAMES = ("digits", "digits8", "pixel_faces")
"""The names that `load` and `fingerprint` know."""

PLAYS = "shakespeare.json.xz"


def load(name: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of one data set, with the examples [N] on the leading axis, and its metadata.

    Returns:
      arrays: `x` uint8 [N, H, W, C], and one uint8 [N] column for each key of `meta["labels"]`.
      meta: `name`, `source` (package and version), `licence`, `attribution`, `max_value` (of a pixel), `validation` (how many
        of the last rows are held out), `labels` (column -> the names of its values, in the order of their indices).

    Raises:
      KeyError: an unknown name; the message lists the known ones.

    >>> arrays, meta = load("digits")
    >>> arrays["x"].shape, arrays["label"].shape, meta["validation"]
    ((5000, 28, 28, 1), (5000,), 500)
    """
    with np.load(io.BytesIO(lzma.decompress(_read(name))), allow_pickle=False) as stored:
        arrays = {key: stored[key] for key in stored.files}
    meta = json.loads(str(arrays.pop("meta")))
    return arrays, meta


def fingerprint(name: str) -> str:
    """The sha256 (hex) of the stored file: it changes when the data does. Raises KeyError like `load`."""
    return hashlib.sha256(_read(name)).hexdigest()


def plays() -> tuple[dict[str, str], dict[str, Any]]:
    """Plays by Shakespeare, {title: text}, and metadata as from `load`; `validation` lists the titles of held-out plays.

    >>> texts, meta = plays()
    >>> len(texts), texts["Macbeth"].split("\\n\\n")[4]
    (16, 'First Witch:\\nWhen shall we three meet again\\nIn thunder, lightning, or in rain?')
    """
    meta = json.loads(lzma.decompress((resources.files(__name__) / PLAYS).read_bytes()))
    return meta.pop("plays"), meta


def fingerprint_of_plays() -> str:
    """The sha256 (hex) of the stored file."""
    return hashlib.sha256((resources.files(__name__) / PLAYS).read_bytes()).hexdigest()


def _read(name: str) -> bytes:
    if name not in NAMES:
        raise KeyError(f"unknown embedded data set {name!r}; known: {', '.join(NAMES)}")
    return (resources.files(__name__) / f"{name}.npz.xz").read_bytes()
