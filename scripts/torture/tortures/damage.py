"""Damages files of a killed run before it is resumed."""

import os
from collections.abc import Callable
from pathlib import Path

from tortures import mounts
from tortures.cases import Case, Skipped
from tortures.compare import SUMS
from tortures.runs import whole


def flipped_byte(case: Case) -> None:
    """a byte in the middle of the newest checkpoint's largest file is flipped"""
    damaged(case, lambda folder: flip(largest(folder)))


def truncated_file(case: Case) -> None:
    """the newest checkpoint's largest file ends in its middle"""
    damaged(case, lambda folder: halve(largest(folder)))


def deleted_file(case: Case) -> None:
    """the newest checkpoint's largest file is gone"""
    damaged(case, lambda folder: largest(folder).unlink())


def torn_sums(case: Case) -> None:
    """the newest checkpoint's SHA256SUMS ends in its middle"""
    damaged(case, lambda folder: halve(folder / SUMS))


def every_checkpoint(case: Case) -> None:
    """a byte in the largest file of every checkpoint is flipped, and then flipped back"""
    case.begin_stopped()
    steps = whole(case.workdir)
    files = [largest(case.folder(step)) for step in steps]
    for file in files:
        flip(file)
    before = content(case.workdir / "checkpoints")
    case.refused(case.train(status=2), "checkpoints")
    case.check("nothing moved", content(case.workdir / "checkpoints") == before)
    for file in files:
        if file.exists():
            flip(file)
    case.goes_on_from(case.train(), steps[-1])
    case.equals()


def torn_metrics(case: Case) -> None:
    """the last line of metrics.jsonl ends in its middle"""
    case.begin_stopped()
    path = case.workdir / "metrics.jsonl"
    path.write_text(path.read_text()[:-40])
    case.goes_on_from(case.train(), whole(case.stopped)[-1])
    case.equals()


def torn_config(case: Case) -> None:
    """config.json ends in its middle; where the program refuses, the file is put back"""
    case.begin_stopped()
    path = case.workdir / "config.json"
    before = path.read_text()
    halve(path)
    with case.start() as run:
        status = run.wait()
        case.heard(run)
    case.check("refused or of no matter", status in ([0], [2]))
    if status == [2]:
        case.refused(run.said, "config.json")
        path.write_text(before)
        case.goes_on_from(case.train(), whole(case.stopped)[-1])
    case.equals()


def deleted_config(case: Case) -> None:
    """config.json is gone"""
    case.begin_stopped()
    (case.workdir / "config.json").unlink()
    case.goes_on_from(case.train(), whole(case.stopped)[-1])
    case.check("config.json there again", (case.workdir / "config.json").exists())
    case.equals()


def garbage_in_the_cache(case: Case) -> None:
    """every file of compiled programs is garbage"""
    case.begin_stopped()
    home = case.workdir.with_name(f"{case.workdir.name}-cache")
    for path in compiled(case.setup.home):
        place = home / path.relative_to(case.setup.home)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(os.urandom(1000))
    case.check("compiled programs there", bool(compiled(home)))
    case.goes_on_from(case.train(environment={"XDG_CACHE_HOME": str(home)}), whole(case.stopped)[-1])
    case.equals()


def full_cache(case: Case) -> None:
    """the folder of compiled programs is on a disk that is full"""
    if not mounts.able():
        raise Skipped("no right to mount a disk")
    case.begin_stopped()
    home = case.workdir.with_name(f"{case.workdir.name}-cache")
    with mounts.small_disk(home, 1), mounts.filled(home):
        said = case.train(environment={"XDG_CACHE_HOME": str(home)})
    case.check("a line that programs are not kept", "the compilation cache is disabled" in said)
    case.goes_on_from(said, whole(case.stopped)[-1])
    case.equals()


FAULTS: dict[str, Callable[[Case], None]] = {
    "flipped byte": flipped_byte,
    "truncated file": truncated_file,
    "deleted file": deleted_file,
    "torn SHA256SUMS": torn_sums,
    "every checkpoint damaged": every_checkpoint,
    "torn metrics.jsonl": torn_metrics,
    "torn config.json": torn_config,
    "deleted config.json": deleted_config,
    "garbage in the cache": garbage_in_the_cache,
    "full cache": full_cache,
}


def damaged(case: Case, injure: Callable[[Path], None]) -> None:
    """Damages the newest checkpoint, which must be named and set aside unchanged; the run must resume from the one before."""
    case.begin_stopped()
    before, newest = whole(case.workdir)[-2:]
    injure(case.folder(newest))
    injured = content(case.folder(newest))
    said = case.train()
    case.check(f"checkpoints/{newest} named", f"checkpoints/{newest}" in said)
    aside = case.workdir / "checkpoints" / "set_aside" / f"{newest}-damaged"
    case.check("set aside as it was", aside.exists() and content(aside) == injured)
    case.goes_on_from(said, before)
    case.equals()


def largest(folder: Path) -> Path:
    """The largest file of arrays in a checkpoint's state. Small arrays may have larger metadata."""
    return max((path for path in (folder / "state").rglob("d/*") if path.is_file()), key=lambda path: path.stat().st_size)


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)


def halve(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def compiled(home: Path) -> list[Path]:
    return [path for path in (home / "tinygen" / "compilation").rglob("*") if path.is_file()]
