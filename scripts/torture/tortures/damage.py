"""Faults in the files of a killed run, injected before it is restarted."""

import os
from collections.abc import Callable
from pathlib import Path

from tortures import mounts
from tortures.cases import Case, Skipped
from tortures.compare import SUMS
from tortures.runs import whole


def flipped_byte(case: Case) -> None:
    """a byte in the middle of the newest checkpoint's largest file is flipped"""
    damage_newest(case, lambda folder: flip(largest(folder)))


def truncated_file(case: Case) -> None:
    """the newest checkpoint's largest file is truncated to half its size"""
    damage_newest(case, lambda folder: halve(largest(folder)))


def deleted_file(case: Case) -> None:
    """the newest checkpoint's largest file is deleted"""
    damage_newest(case, lambda folder: largest(folder).unlink())


def torn_sums(case: Case) -> None:
    """the newest checkpoint's SHA256SUMS is truncated to half its size"""
    damage_newest(case, lambda folder: halve(folder / SUMS))


def every_checkpoint(case: Case) -> None:
    """a byte in the largest file of every checkpoint is flipped, and then flipped back"""
    case.copy_stopped()
    steps = whole(case.workdir)
    files = [largest(case.folder(step)) for step in steps]
    for file in files:
        flip(file)
    before = content(case.workdir / "checkpoints")
    case.check_error(case.train(status=2), "checkpoints")
    case.check("unmoved checkpoints", content(case.workdir / "checkpoints") == before)
    for file in files:
        if file.exists():
            flip(file)
    case.check_resumed(case.train(), steps[-1])
    case.check_equal()


def torn_metrics(case: Case) -> None:
    """the last line of metrics.jsonl is truncated"""
    case.copy_stopped()
    path = case.workdir / "metrics.jsonl"
    path.write_text(path.read_text()[:-40])
    case.check_resumed(case.train(), whole(case.stopped)[-1])
    case.check_equal()


def torn_config(case: Case) -> None:
    """config.json is truncated to half its size; if the run refuses to start, the file is restored"""
    case.copy_stopped()
    path = case.workdir / "config.json"
    before = path.read_text()
    halve(path)
    with case.start() as run:
        status = run.wait()
        case.record(run)
    case.check("exit status 0 or 2", status in ([0], [2]))
    if status == [2]:
        case.check_error(run.output, "config.json")
        path.write_text(before)
        case.check_resumed(case.train(), whole(case.stopped)[-1])
    case.check_equal()


def deleted_config(case: Case) -> None:
    """config.json is deleted"""
    case.copy_stopped()
    (case.workdir / "config.json").unlink()
    case.check_resumed(case.train(), whole(case.stopped)[-1])
    case.check("a new config.json", (case.workdir / "config.json").exists())
    case.check_equal()


def garbage_in_the_cache(case: Case) -> None:
    """all cached compiled programs are overwritten with garbage"""
    case.copy_stopped()
    home = case.workdir.with_name(f"{case.workdir.name}-cache")
    for path in compiled_programs(case.setup.home):
        place = home / path.relative_to(case.setup.home)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(os.urandom(1000))
    case.check("cached compiled programs", bool(compiled_programs(home)))
    case.check_resumed(case.train(environment={"XDG_CACHE_HOME": str(home)}), whole(case.stopped)[-1])
    case.check_equal()


def full_cache(case: Case) -> None:
    """the cache of compiled programs is on a full disk"""
    if not mounts.able():
        raise Skipped("mounting a disk is not permitted")
    case.copy_stopped()
    home = case.workdir.with_name(f"{case.workdir.name}-cache")
    with mounts.small_disk(home, 1), mounts.filled(home):
        output = case.train(environment={"XDG_CACHE_HOME": str(home)})
    case.check("a warning that the compilation cache is disabled", "the compilation cache is disabled" in output)
    case.check_resumed(output, whole(case.stopped)[-1])
    case.check_equal()


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


def damage_newest(case: Case, damage: Callable[[Path], None]) -> None:
    """Damages the newest checkpoint. It must be named and set aside, and the run must resume from the one before."""
    case.copy_stopped()
    before, newest = whole(case.workdir)[-2:]
    damage(case.folder(newest))
    damaged = content(case.folder(newest))
    output = case.train()
    case.check(f"checkpoints/{newest} in the output", f"checkpoints/{newest}" in output)
    aside = case.workdir / "checkpoints" / "set_aside" / f"{newest}-damaged"
    case.check("the damaged checkpoint set aside unchanged", aside.exists() and content(aside) == damaged)
    case.check_resumed(output, before)
    case.check_equal()


def largest(folder: Path) -> Path:
    """The largest array file in a checkpoint's state. The metadata of small arrays may be larger."""
    return max((path for path in (folder / "state").rglob("d/*") if path.is_file()), key=lambda path: path.stat().st_size)


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)


def halve(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def compiled_programs(home: Path) -> list[Path]:
    return [path for path in (home / "tinygen" / "compilation").rglob("*") if path.is_file()]
