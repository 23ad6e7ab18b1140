"""Faults in the environment of a run, injected while it trains: disk, folders, data, clock, a second run."""

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
from tortures.runs import POLL, Run, finish, torn, whole

FEW = 400_000  # bytes: less than a checkpoint
PROMPT = 60  # seconds within which a process must exit after its last step, even if saves have failed
MOST = 16_000  # bytes per file: less than the size of metrics.jsonl when the limit is set


def full_disk(case: Case) -> None:
    """from one fifth of the run to two fifths, the disk has less space left than a checkpoint needs"""
    needs_mounts()
    small = case.workdir.with_name(f"{case.workdir.name}-disk")
    kept, case.workdir = case.workdir, small / "run"
    with mounts.small_disk(small, 24):
        try:
            train_with_fault(case, lambda: mounts.filled(small, FEW))
        finally:
            shutil.copytree(case.workdir, kept)
            case.workdir = kept
    check_unsaved(case)


def read_only(case: Case) -> None:
    """from one fifth of the run to two fifths, the workdir is read-only"""
    needs_mounts()
    train_with_fault(case, lambda: mounts.read_only(case.workdir))
    check_unsaved(case)


def file_size_limit(case: Case) -> None:
    """from one fifth of the run on, no file may grow beyond 16 kB (RLIMIT_FSIZE); the restart has no limit"""
    with case.start() as run:
        run.until(last := case.setup.steps // 5)
        run.until(last + case.setup.checkpoint_every // 2)
        resource.prlimit(run.processes[0].child.pid, resource.RLIMIT_FSIZE, (MOST, resource.RLIM_INFINITY))
        output = case.end(run, status=2)
    case.check_error(output, "save")
    newest = max(whole(case.workdir), default=0)
    case.check("a checkpoint just before the limit", newest >= last - case.setup.checkpoint_every, str(newest))
    case.check_intact([newest])
    case.check_resumed(case.train(), newest)
    case.check_equal()


def vanished_image(case: Case) -> None:
    """an image in the data folder is renamed during training, and renamed back before the restart"""
    data, folder = case.workdir.with_name("images"), case.workdir.with_name("images-uninterrupted")
    draw(data, 60)
    settings = {"data.name": "folder", "data.path": str(data), "data.size": 8, "data.channels": 1}
    case.setup = dataclasses.replace(case.setup, settings=settings)
    finish(case.setup, folder)
    image = data / "7.png"
    with case.start() as run:
        run.until(case.setup.steps // 5)
        image.rename(away := data.with_name("7.away"))
        output = case.end(run, status=2)
    case.check_error(output, image.name)
    away.rename(image)
    stopped = max(whole(case.workdir), default=0)
    case.check("a save at the last step", stopped >= case.setup.steps // 5)
    case.check_resumed(case.train(), stopped)
    case.check_equal(reference=folder)


def no_place_for_pictures(case: Case) -> None:
    """from one fifth of the run on, a file is in the place of the folder samples/"""
    samples = case.workdir / "samples"
    with case.start() as run:
        run.until(case.setup.steps // 5 + 2)
        samples.rename(away := samples.with_name("samples.away"))
        samples.touch()
        output = case.end(run)
    case.check(
        "a warning that a picture could not be written",
        re.search(r"samples\b.*(exist|[Nn]ot a directory|cannot|could not)", output) is not None,
    )
    case.check("earlier pictures", any(away.iterdir()))
    samples.unlink()
    away.rename(samples)
    case.check_equal(all_pictures=False)


def jumping_clock(case: Case) -> None:
    """the clock jumps by 29 hours back and forth, once during a save; the run is killed and restarted two days earlier"""
    library, clock = case.workdir.with_suffix(".so"), case.workdir.with_suffix(".clock")
    compiler = shutil.which("cc")
    if compiler is None:
        raise Skipped("no C compiler")
    built = subprocess.run([compiler, "-shared", "-fPIC", "-o", library, Path(__file__).with_name("clock.c"), "-ldl"], capture_output=True)
    if built.returncode:
        raise Skipped("the library could not be compiled")
    clock.write_bytes(bytes(8))

    def shift(hours: int) -> None:
        with clock.open("r+b") as file:  # in place: the process has it mapped into memory
            file.write((hours * 3600).to_bytes(8, sys.byteorder, signed=True))

    environment = dict(LD_PRELOAD=str(library), TORTURE_CLOCK=str(clock))
    with case.start(environment) as run:
        for fifth, hours in ((1, 29), (2, -29), (3, 0)):
            run.until(case.setup.steps * fifth // 5 + case.setup.checkpoint_every // 2)
            shift(hours)
        while not torn(case.workdir) and run.processes[0].running:
            time.sleep(POLL)
        shift(29)
        run.until(case.setup.steps * 4 // 5)
        run.signal(signal.SIGKILL)
        case.check("a kill before the end", run.wait() == [-signal.SIGKILL])
    hours = {line[:2] for line in run.output.splitlines() if re.match(r"\d\d:\d\d:\d\d ", line)}
    case.check("a clock that jumped", len(hours) > 2)
    newest = max(whole(case.workdir), default=0)
    shift(-29)
    case.check_resumed(case.train(environment=environment), newest)
    case.check_equal()


def second_run(case: Case) -> None:
    """the same command is started while a run holds the workdir (paused with SIGSTOP); then the first run gets SIGTERM"""
    with case.start() as run:
        run.until(case.setup.steps // 5)
        run.stop()
        second = case.train(status=2)
        run.signal(signal.SIGTERM)
        run.signal(signal.SIGCONT)
        case.end(run, status=128 + signal.SIGTERM)
    case.check_error(second, str(run.processes[0].child.pid))
    case.check("the host in the error", socket.gethostname() in second)
    stopped = max(whole(case.workdir), default=0)
    case.check("a save at the last step", stopped >= case.setup.steps // 5)
    case.check_resumed(case.train(), stopped)
    case.check_equal()


FAULTS: dict[str, Callable[[Case], None]] = {
    "full disk": full_disk,
    "file size limit": file_size_limit,
    "read-only workdir": read_only,
    "vanished image": vanished_image,
    "no place for pictures": no_place_for_pictures,
    "jumping clock": jumping_clock,
    "second run, SIGTERM": second_run,
}


def needs_mounts() -> None:
    if not mounts.able():
        raise Skipped("mounting a disk is not permitted")


def train_with_fault(case: Case, fault: Callable[[], contextlib.AbstractContextManager[None]]) -> Run:
    """Trains to the end, with a fault that makes the workdir unwritable from one fifth of the steps to two fifths."""
    with case.start() as run:
        run.until(case.setup.steps // 5 + case.setup.checkpoint_every // 2)
        before = pause(run, case.workdir)
        with fault():
            run.signal(signal.SIGCONT)
            run.until(case.setup.steps * 2 // 5 + case.setup.checkpoint_every // 2)
            case.check_intact(before[-1:])
        run.until(case.setup.steps)
        case.end(run, limit=PROMPT)
    return run


def pause(run: Run, workdir: Path) -> list[int]:
    """Stops a run (SIGSTOP) while no checkpoint is being written or deleted, and returns its complete checkpoints."""
    while True:
        run.stop()
        found = whole(workdir)
        deleted = workdir / "checkpoints" / checksums.DELETED  # its removal frees disk space
        if found and not torn(workdir) and not deleted.exists() and len(found) <= 2:  # config.train.keep
            return found
        run.signal(signal.SIGCONT)
        time.sleep(POLL)


def check_unsaved(case: Case) -> None:
    """The run continued after failed saves, recorded them, and equals an uninterrupted one."""
    case.check("an event for each failed save", bool(case.events("unsaved")))
    case.check_equal(all_pictures=False)


def draw(folder: Path, num: int) -> None:
    """Writes images of noise, 16x16."""
    import numpy as np
    from PIL import Image

    folder.mkdir()
    numbers = np.random.default_rng(0)
    for index in range(num):
        Image.fromarray(numbers.integers(0, 256, (16, 16), np.uint8)).save(folder / f"{index}.png")
