"""Integrity of checkpoints: SHA256SUMS, the checksums of all files, written last; damaged checkpoints are set aside.

`sha256sum --check --quiet SHA256SUMS` in a checkpoint's folder is equivalent to `fault`.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from etils import epath

from tinygen.errors import UserError
from tinygen.workdir.disk import Entry
from tinygen.workdir.files import TEXT, Folder, folder, read_json

SUMS = "SHA256SUMS"
NOTED = "noted.json"
SEALED = "sealed"  # in the manifest of a checkpoint with checksums: without them it is torn, not of an early version
UNSEALED = (SUMS, "_CHECKPOINT_METADATA", "commit_success.txt")  # the latter two are written by Orbax when the folder is renamed
DELETED = "deleted"  # within checkpoints/: folders to be deleted, so that a half-deleted one does not look like a checkpoint
BLOCK = 2**20  # bytes read at a time
LARGE = 2**30  # bytes
ASIDE = "set_aside"  # within checkpoints/
UNFINISHED = ".orbax-checkpoint-tmp"  # in the name of a folder that Orbax is still writing


def checkpoints_of(workdir: epath.Path, held: bool = False) -> Folder:
    """The folder of a run's checkpoints, by its absolute path, which Orbax requires (but checks only when it saves)."""
    return folder(workdir if "://" in str(workdir) else workdir.resolve(), "checkpoints", held=held)


def seal(saved: Folder, notes: Mapping[str, Any]) -> None:
    """Writes the notes and the checksums of all files in a folder, and syncs everything to disk."""
    saved.write(NOTED, json.dumps(notes) + "\n")
    saved.write(SUMS, "".join(f"{_sum(saved, name)}  {name}\n" for name in _files(saved)))
    _settle(saved)


def fault(saved: Folder) -> str:
    """What is wrong with a checkpoint; "" if it is intact. Checkpoints of early versions, without checksums, are accepted.

    Raises OSError if the disk cannot be read, which says nothing about the checkpoint.
    """
    if saved.type_of() != "folder":
        return "not a folder"
    for name, entry in _tree(saved):
        if entry.type not in ("file", "folder"):
            return f"{name} is neither a file nor a folder"
        if entry.size > LARGE and entry.stored < entry.size / 100:  # hashing it could take forever, and no array is sparse
            return f"{name} has {entry.size:,} bytes, almost none of them on the disk"
    sums = saved.read(SUMS, TEXT)
    if sums is None:
        manifest = _mapping(saved, "manifest/metadata")
        return "" if manifest is not None and SEALED not in manifest else f"{SUMS} is missing"
    lines = sums.decode("utf-8", "replace").splitlines()
    stated = {name: digest for digest, separator, name in (line.partition("  ") for line in lines) if separator}
    if not stated or len(stated) < len(lines) or any(len(digest) != hashlib.sha256().digest_size * 2 for digest in stated.values()):
        return f"{SUMS} is damaged"
    found = set(_files(saved))
    for name in sorted({*stated, *found}):
        if name not in found:
            return f"{name} is missing"
        if name not in stated:
            return f"{name} is not listed in {SUMS}"
        if _sum(saved, name) != stated[name]:
            return f"{name} has changed since it was written"
    return ""


def noted(saved: Folder) -> dict[str, Any]:
    """The notes of a checkpoint; empty for early versions."""
    return _mapping(saved, NOTED) or {}


def _mapping(saved: Folder, name: str) -> dict[str, Any] | None:
    """The content of a JSON file; None if it is missing, damaged or something else than a mapping."""
    try:
        content = read_json(saved, name)
    except UserError:
        return None
    return content if isinstance(content, dict) else None


def unfinished(checkpoints: Folder) -> list[Entry]:
    """The folders of unfinished saves."""
    return [entry for entry in checkpoints.entries() if UNFINISHED in entry.name]


def set_aside(checkpoints: Folder, name: str, kind: str) -> epath.Path:
    """Moves a folder out of checkpoints/ and returns its new path. Only the newest torn one is kept.

    kind: "torn" or "damaged"
    In a bucket, which cannot rename, torn folders are deleted.
    """
    if kind == "torn":
        for older in checkpoints.entries(ASIDE):
            if "-torn" in older.name:
                checkpoints.remove(f"{ASIDE}/{older.name}")
        if "://" in str(checkpoints):
            checkpoints.remove(name)
            return checkpoints.path(name)
    checkpoints.make(ASIDE)
    target = f"{ASIDE}/{name.split('.')[0]}-{kind}"
    others = (f"{target}-{number}" for number in range(2, 10_000))
    target = next(each for each in (target, *others) if checkpoints.type_of(each) is None)
    checkpoints.move(name, target)
    return checkpoints.path(target)


def _tree(saved: Folder, prefix: str = "") -> Iterator[tuple[str, Entry]]:
    """(name within the folder, entry) of everything below it, depth first."""
    for entry in saved.entries(prefix):
        yield f"{prefix}{entry.name}", entry
        if entry.type == "folder":
            yield from _tree(saved, f"{prefix}{entry.name}/")


def _files(saved: Folder) -> list[str]:
    """The names of all files with checksums."""
    return [name for name, entry in _tree(saved) if entry.type != "folder" and name not in UNSEALED]


def _settle(saved: Folder) -> None:
    """Syncs all files and folders below a folder to disk."""
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
    """The SHA-256 of a file. hashlib.file_digest needs `readinto`, which files in a bucket do not have."""
    digest = hashlib.sha256()
    with saved.open(name) as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
