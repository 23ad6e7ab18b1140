"""Faults of a run's environment, injected while it trains: disk, folders, data, clock, other processes."""

import contextlib
import dataclasses
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tinygen.checkpoints import checksums
from tortures import mounts
from tortures.cases import Case, Skipped
from tortures.runs import LOOKS, Run, finish, torn, whole

FEW = 400_000  # bytes: less than a checkpoint
PROMPT = 60  # seconds within which a process whose last step is done has ended, whatever saves have failed
MOST = 16_000  # bytes of a file: less than metrics.jsonl has when the limit comes


def full_disk(case: Case) -> None:
    """the disk is full but for part of a checkpoint, from a fifth of the run to two fifths"""
    needs_mounts()
    small = case.workdir.with_name(f"{case.workdir.name}-disk")
    kept, case.workdir = case.workdir, small / "run"
    with mounts.small_disk(small, 24):
        try:
            unwritable(case, lambda: mounts.filled(small, FEW))
        finally:
            shutil.copytree(case.workdir, kept)
            case.workdir = kept
    unsaved_and_equal(case)


def read_only(case: Case) -> None:
    """the workdir is read-only, from a fifth of the run to two fifths"""
    needs_mounts()
    unwritable(case, lambda: mounts.read_only(case.workdir))
    unsaved_and_equal(case)


def file_size_limit(case: Case) -> None:
    """from a fifth of the run on no file may grow beyond 16 kB (RLIMIT_FSIZE); lifted when it is started again"""
    with case.start() as run:
        run.until(last := case.setup.steps // 5)
        run.until(last + case.setup.checkpoint_every // 2)
        resource.prlimit(run.processes[0].child.pid, resource.RLIMIT_FSIZE, (MOST, resource.RLIM_INFINITY))
        said = case.end(run, status=2)
    case.refused(said, "save")
    newest = max(whole(case.workdir), default=0)
    case.check("a checkpoint just before the limit", newest >= last - case.setup.checkpoint_every, str(newest))
    case.intact([newest])
    case.goes_on_from(case.train(), newest)
    case.equals()


def vanished_image(case: Case) -> None:
    """an image of the data folder is renamed while training, and named back before the next start"""
    data, folder = case.workdir.with_name("images"), case.workdir.with_name("images-uninterrupted")
    draw(data, 60)
    settings = {"data.name": "folder", "data.path": str(data), "data.size": 8, "data.channels": 1}
    case.setup = dataclasses.replace(case.setup, settings=settings)
    finish(case.setup, folder)
    image = data / "7.png"
    with case.start() as run:
        run.until(case.setup.steps // 5)
        image.rename(away := data.with_name("7.away"))
        said = case.end(run, status=2)
    case.refused(said, image.name)
    away.rename(image)
    stopped = max(whole(case.workdir), default=0)
    case.check("saved where it stopped", stopped >= case.setup.steps // 5)
    case.goes_on_from(case.train(), stopped)
    case.equals(reference=folder)


def no_place_for_pictures(case: Case) -> None:
    """from a fifth of the run on a file is where the folder samples/ should be"""
    samples = case.workdir / "samples"
    with case.start() as run:
        run.until(case.setup.steps // 5 + 2)
        samples.rename(away := samples.with_name("samples.away"))
        samples.touch()
        said = case.end(run)
    case.check(
        "a line that a picture could not be written",
        re.search(r"samples\b.*(exist|[Nn]ot a directory|cannot|could not)", said) is not None,
    )
    case.check("earlier pictures there", any(away.iterdir()))
    samples.unlink()
    away.rename(samples)
    case.equals(all_pictures=False)


def jumping_clock(case: Case) -> None:
    """the time of day jumps by 29 hours forth and back, also in the midst of a save; then a kill, and a second start two days earlier"""
    library, clock = case.workdir.with_suffix(".so"), case.workdir.with_suffix(".clock")
    compiler = shutil.which("cc")
    if compiler is None:
        raise Skipped("no C compiler")
    built = subprocess.run([compiler, "-shared", "-fPIC", "-o", library, Path(__file__).with_name("clock.c"), "-ldl"], capture_output=True)
    if built.returncode:
        raise Skipped("the library could not be compiled")
    clock.write_bytes(bytes(8))

    def shift(hours: int) -> None:
        with clock.open("r+b") as file:  # in place: the process has it in its memory
            file.write((hours * 3600).to_bytes(8, sys.byteorder, signed=True))

    environment = dict(LD_PRELOAD=str(library), TORTURE_CLOCK=str(clock))
    with case.start(environment) as run:
        for fifth, hours in ((1, 29), (2, -29), (3, 0)):
            run.until(case.setup.steps * fifth // 5 + case.setup.checkpoint_every // 2)
            shift(hours)
        while not torn(case.workdir) and run.processes[0].running:
            time.sleep(LOOKS)
        shift(29)
        run.until(case.setup.steps * 4 // 5)
        run.signal(signal.SIGKILL)
        case.check("killed before its end", run.wait() == [-signal.SIGKILL])
    hours = {line[:2] for line in run.said.splitlines() if re.match(r"\d\d:\d\d:\d\d ", line)}
    case.check("a clock that jumped", len(hours) > 2)
    newest = max(whole(case.workdir), default=0)
    shift(-29)
    case.goes_on_from(case.train(environment=environment), newest)
    case.equals()


def neighbour(case: Case) -> None:
    """while a run trains (held by SIGSTOP) the same command is started beside it; then the first gets SIGTERM"""
    with case.start() as run:
        run.until(case.setup.steps // 5)
        run.stop()
        second = case.train(status=2)
        run.signal(signal.SIGTERM)
        run.signal(signal.SIGCONT)
        case.end(run, status=128 + signal.SIGTERM)
    case.refused(second, str(run.processes[0].child.pid))
    case.check("the host named", socket.gethostname() in second)
    stopped = max(whole(case.workdir), default=0)
    case.check("saved where it stopped", stopped >= case.setup.steps // 5)
    case.goes_on_from(case.train(), stopped)
    case.equals()


FAULTS: dict[str, Callable[[Case], None]] = {
    "full disk": full_disk,
    "file size limit": file_size_limit,
    "read-only workdir": read_only,
    "vanished image": vanished_image,
    "no place for pictures": no_place_for_pictures,
    "jumping clock": jumping_clock,
    "second run, SIGTERM": neighbour,
}


def needs_mounts() -> None:
    if not mounts.able():
        raise Skipped("no right to mount a disk")


def unwritable(case: Case, fault: Callable[[], contextlib.AbstractContextManager[None]]) -> Run:
    """A run whose workdir cannot be written from one fifth to two fifths of its steps."""
    with case.start() as run:
        run.until(case.setup.steps // 5 + case.setup.checkpoint_every // 2)
        before = held(run, case.workdir)
        with fault():
            run.signal(signal.SIGCONT)
            run.until(case.setup.steps * 2 // 5 + case.setup.checkpoint_every // 2)
            case.intact(before[-1:])
        run.until(case.setup.steps)
        case.end(run, limit=PROMPT)
    return run


def held(run: Run, workdir: Path) -> list[int]:
    """The complete checkpoints of a run, stopped (SIGSTOP) at a moment when none is being written or deleted."""
    while True:
        run.stop()
        found = whole(workdir)
        deleted = workdir / "checkpoints" / checksums.DELETED  # makes room when it goes
        if found and not torn(workdir) and not deleted.exists() and len(found) <= 2:  # config.train.keep
            return found
        run.signal(signal.SIGCONT)
        time.sleep(LOOKS)


def unsaved_and_equal(case: Case) -> None:
    """Checks that the run continued past failed saves, noted them, and is complete."""
    case.check("events.jsonl with what was not saved", bool(case.events("unsaved")))
    case.equals(all_pictures=False)


def draw(folder: Path, num: int) -> None:
    """Writes images of noise, 16x16."""
    import numpy as np
    from PIL import Image

    folder.mkdir()
    numbers = np.random.default_rng(0)
    for index in range(num):
        Image.fromarray(numbers.integers(0, 256, (16, 16), np.uint8)).save(folder / f"{index}.png")
