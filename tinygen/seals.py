"""What makes a checkpoint whole: SHA256SUMS, the sums of its files, written last; and where those go that are not whole.

`sha256sum --check --quiet SHA256SUMS`, in a checkpoint's folder, says the same as `fault`.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from etils import epath

SUMS = "SHA256SUMS"
NOTED = "noted.json"
UNSEALED = (SUMS, "_CHECKPOINT_METADATA")  # the latter has Orbax's times, and is written again when the folder has its name
BLOCK = 2**20  # bytes read at once
ASIDE = "set_aside"  # within checkpoints/
UNFINISHED = ".orbax-checkpoint-tmp"  # in the name of a folder that Orbax has not yet finished


def seal(folder: epath.Path, notes: Mapping[str, Any]) -> None:
    """Writes the notes, and the sums of all files in a folder."""
    (folder / NOTED).write_text(json.dumps(notes) + "\n")
    lines = [f"{_sum(path)}  {name}\n" for name, path in _files(folder)]
    (folder / SUMS).write_text("".join(lines))


def fault(folder: epath.Path) -> str:
    """What is wrong with a checkpoint; "" where it is whole. Those of the first versions, which have no sums, are taken as they are."""
    sums = folder / SUMS
    try:
        if not sums.exists():
            return f"{SUMS} is missing" if (folder / NOTED).exists() else ""
        stated = [line.split("  ", 1) for line in sums.read_text().splitlines()]
        if not stated or any(len(pair) != 2 or len(pair[0]) != hashlib.sha256().digest_size * 2 for pair in stated):
            return f"{SUMS} is damaged"
        found = dict(_files(folder))
        for digest, name in stated:
            if name not in found:
                return f"{name} is missing"
            if _sum(found[name]) != digest:
                return f"{name} has changed since it was written"
    except (OSError, ValueError) as error:  # ValueError: text that is none
        return f"it cannot be read: {getattr(error, 'strerror', None) or error}"
    return ""


def noted(folder: epath.Path) -> dict[str, Any]:
    """What a checkpoint was sealed with; nothing for those of the first versions."""
    path = folder / NOTED
    return json.loads(path.read_text()) if path.exists() else {}


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


def _sum(path: epath.Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
