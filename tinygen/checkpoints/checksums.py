"""What makes a checkpoint whole: SHA256SUMS, the sums of its files, written last; and where those go that are not whole.

`sha256sum --check --quiet SHA256SUMS`, in a checkpoint's folder, says the same as `fault`.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from etils import epath

from tinygen.workdir.files import JSON, TEXT, Entry, Folder, folder

SUMS = "SHA256SUMS"
NOTED = "noted.json"
SEALED = "sealed"  # in the manifest of a checkpoint that has sums: without them it is torn, and not of the first versions
UNSEALED = (SUMS, "_CHECKPOINT_METADATA", "commit_success.txt")  # the latter two are Orbax's, written when the folder gets its name
DELETED = "deleted"  # within checkpoints/, for what is on its way out: a folder that is half gone must not look like one
BLOCK = 2**20  # bytes read at once
LARGE = 2**30  # bytes
ASIDE = "set_aside"  # within checkpoints/
UNFINISHED = ".orbax-checkpoint-tmp"  # in the name of a folder that Orbax has not yet finished


def checkpoints_of(workdir: epath.Path, held: bool = False) -> Folder:
    """The folder of a run's checkpoints. Its path is absolute: Orbax wants that, and says so only when it saves."""
    return folder(workdir if "://" in str(workdir) else workdir.resolve(), "checkpoints", held=held)


def seal(saved: Folder, notes: Mapping[str, Any]) -> None:
    """Writes the notes, and the sums of all files in a folder; all of it is on the disk then, should the machine stop."""
    saved.write(NOTED, json.dumps(notes) + "\n")
    saved.write(SUMS, "".join(f"{_sum(saved, name)}  {name}\n" for name in _files(saved)))
    _settle(saved)


def fault(saved: Folder) -> str:
    """What is wrong with a checkpoint; "" where it is whole. Those of the first versions, which have no sums, are taken as they are.

    Raises OSError where the disk cannot be read: that says nothing of the checkpoint.
    """
    if not saved.is_folder():
        return "it is no folder"
    for name, entry in _tree(saved):
        if entry.type not in ("file", "folder"):
            return f"{name} is neither a file nor a folder"
        if entry.size > LARGE and entry.stored < entry.size / 100:  # summing it could take for ever, and no array is stored so
            return f"{name} is of {entry.size:,} bytes, of which next to none are on the disk"
    sums = saved.read(SUMS, TEXT)
    if sums is None:
        return "" if _of_the_first_versions(saved) else f"{SUMS} is missing"
    lines = sums.decode("utf-8", "replace").splitlines()
    stated = {name: digest for digest, separator, name in (line.partition("  ") for line in lines) if separator}
    if not stated or len(stated) < len(lines) or any(len(digest) != hashlib.sha256().digest_size * 2 for digest in stated.values()):
        return f"{SUMS} is damaged"
    found = set(_files(saved))
    for name in sorted({*stated, *found}):
        if name not in found:
            return f"{name} is missing"
        if name not in stated:
            return f"{name} is not among the files of {SUMS}"
        if _sum(saved, name) != stated[name]:
            return f"{name} has changed since it was written"
    return ""


def _of_the_first_versions(saved: Folder) -> bool:
    """Whether a checkpoint's manifest is there and knows of no sums."""
    try:
        manifest = json.loads(saved.read("manifest/metadata", JSON) or b"null")
    except (ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and SEALED not in manifest


def noted(saved: Folder) -> dict[str, Any]:
    """What a checkpoint was sealed with; nothing for those of the first versions."""
    try:
        notes = json.loads(saved.read(NOTED, JSON) or b"{}")
    except (ValueError, RecursionError):
        return {}
    return notes if isinstance(notes, dict) else {}


def unfinished(checkpoints: Folder) -> list[Entry]:
    """The folders of saves that were never finished."""
    return [entry for entry in checkpoints.entries() if UNFINISHED in entry.name]


def set_aside(checkpoints: Folder, name: str, kind: str) -> epath.Path:
    """Moves a folder in checkpoints/ to where no checkpoint is looked for, and returns where. Only the newest of the torn ones is kept.

    kind: "torn" or "damaged"
    In a bucket, where nothing can be moved, what is torn is deleted.
    """
    if kind == "torn":
        for older in checkpoints.entries(ASIDE):
            if "-torn" in older.name:
                checkpoints.remove(f"{ASIDE}/{older.name}")
    if "://" in str(checkpoints) and kind == "torn":
        checkpoints.remove(name)
        return checkpoints.path(name)
    checkpoints.make(ASIDE)
    target = f"{ASIDE}/{name.split('.')[0]}-{kind}"
    others = (f"{target}-{number}" for number in range(2, 10_000))
    target = next(each for each in (target, *others) if checkpoints.type_of(each) is None)
    checkpoints.move(name, target)
    return checkpoints.path(target)


def _tree(saved: Folder, prefix: str = "") -> Iterator[tuple[str, Entry]]:
    """(name within the folder, entry) of all that is below it, depth first."""
    for entry in saved.entries(prefix):
        yield f"{prefix}{entry.name}", entry
        if entry.type == "folder":
            yield from _tree(saved, f"{prefix}{entry.name}/")


def _files(saved: Folder) -> list[str]:
    """The names of all files that are sealed."""
    return [name for name, entry in _tree(saved) if entry.type != "folder" and name not in UNSEALED]


def _settle(saved: Folder) -> None:
    """Has the disk take all files below a folder, and their names."""
    if "://" in str(saved):
        return
    for path, _, files in os.walk(saved.path(), topdown=False):
        for place in [*(os.path.join(path, name) for name in files), path]:
            number = os.open(place, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                os.fsync(number)
            finally:
                os.close(number)


def _sum(saved: Folder, name: str) -> str:
    digest = hashlib.sha256()
    with saved.open(name) as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
