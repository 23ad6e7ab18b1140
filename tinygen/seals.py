"""What makes a checkpoint whole: SHA256SUMS, the sums of its files, written last; and where those go that are not whole.

`sha256sum --check --quiet SHA256SUMS`, in a checkpoint's folder, says the same as `fault`.
"""

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from typing import Any

from etils import epath

SUMS = "SHA256SUMS"
NOTED = "noted.json"
SEALED = "sealed"  # in the manifest of a checkpoint that has sums: without them it is torn, and not of the first versions
UNSEALED = (SUMS, "_CHECKPOINT_METADATA", "commit_success.txt")  # the latter two are Orbax's, written when the folder gets its name
DELETED = "deleted"  # within checkpoints/, for what is on its way out: a folder that is half gone must not look like one
BLOCK = 2**20  # bytes read at once
ASIDE = "set_aside"  # within checkpoints/
UNFINISHED = ".orbax-checkpoint-tmp"  # in the name of a folder that Orbax has not yet finished


def seal(folder: epath.Path, notes: Mapping[str, Any]) -> None:
    """Writes the notes, and the sums of all files in a folder; all of it is on the disk then, should the machine stop."""
    (folder / NOTED).write_text(json.dumps(notes) + "\n")
    lines = [f"{_sum(path)}  {name}\n" for name, path in _files(folder)]
    (folder / SUMS).write_text("".join(lines))
    _settle(folder)


def fault(folder: epath.Path) -> str:
    """What is wrong with a checkpoint; "" where it is whole. Those of the first versions, which have no sums, are taken as they are.

    Raises OSError where the disk cannot be read: that says nothing of the checkpoint.
    """
    if not folder.is_dir():
        return "it is no folder"
    if odd := next(_odd(folder), ""):
        return f"{odd} is neither a file nor a folder"
    sums = folder / SUMS
    if not sums.exists():
        return "" if _of_the_first_versions(folder) else f"{SUMS} is missing"
    lines = sums.read_bytes().decode("utf-8", "replace").splitlines()
    stated = {name: digest for digest, separator, name in (line.partition("  ") for line in lines) if separator}
    if not stated or len(stated) < len(lines) or any(len(digest) != hashlib.sha256().digest_size * 2 for digest in stated.values()):
        return f"{SUMS} is damaged"
    found = dict(_files(folder))
    for name in sorted({*stated, *found}):
        if name not in found:
            return f"{name} is missing"
        if name not in stated:
            return f"{name} is not among the files of {SUMS}"
        if _sum(found[name]) != stated[name]:
            return f"{name} has changed since it was written"
    return ""


def _of_the_first_versions(folder: epath.Path) -> bool:
    """Whether a checkpoint's manifest is there and knows of no sums."""
    path = folder / "manifest" / "metadata"
    try:
        manifest = json.loads(path.read_bytes()) if path.exists() else None
    except (ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and SEALED not in manifest


def noted(folder: epath.Path) -> dict[str, Any]:
    """What a checkpoint was sealed with; nothing for those of the first versions."""
    path = folder / NOTED
    try:
        notes = json.loads(path.read_text()) if path.exists() else {}
    except (ValueError, RecursionError):
        return {}
    return notes if isinstance(notes, dict) else {}


def unfinished(checkpoints: epath.Path) -> list[epath.Path]:
    """The folders of saves that were never finished."""
    return [path for path in sorted(checkpoints.iterdir()) if UNFINISHED in path.name] if checkpoints.exists() else []


def set_aside(folder: epath.Path, kind: str) -> epath.Path:
    """Moves a folder in checkpoints/ to where no checkpoint is looked for, and says where. Of the torn ones only the newest is kept.

    kind: "torn" or "damaged"
    In a bucket, where nothing can be moved, what is torn is deleted.
    """
    aside = folder.parent / ASIDE
    if kind == "torn":
        for older in aside.glob("*-torn*") if aside.exists() else ():
            older.rmtree()
    if "://" in str(folder) and kind == "torn":
        folder.rmtree()
        return folder
    aside.mkdir(exist_ok=True)
    name = f"{folder.name.split('.')[0]}-{kind}"
    target = next(path for number in range(1, 10_000) if not (path := aside / (name if number == 1 else f"{name}-{number}")).exists())
    folder.rename(target)
    return target


def _files(folder: epath.Path, prefix: str = "") -> Iterator[tuple[str, epath.Path]]:
    """(name within the folder, path) of every file that is sealed."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            yield from _files(path, f"{prefix}{path.name}/")
        elif prefix or path.name not in UNSEALED:
            yield f"{prefix}{path.name}", path


def _odd(folder: epath.Path) -> Iterator[str]:
    """What lies in a folder that is no plain file: links, pipes, devices. To read those may never end, or lead elsewhere."""
    if "://" in str(folder):  # a bucket has none
        return
    for path, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            mode = os.lstat(os.path.join(path, name)).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                yield os.path.relpath(os.path.join(path, name), folder)


def _settle(folder: epath.Path) -> None:
    """Has the disk take all files below a folder, and their names."""
    if "://" in str(folder):
        return
    for path, _, files in os.walk(folder, topdown=False):
        for place in [*(os.path.join(path, name) for name in files), path]:
            number = os.open(place, os.O_RDONLY)
            try:
                os.fsync(number)
            finally:
                os.close(number)


def _sum(path: epath.Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
