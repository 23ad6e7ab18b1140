"""A small disk and a read-only folder, as real mounts in this process's own mount namespace.

They disappear with the process, and only its children see them.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

INSIDE = "TORTURE_MOUNTS"  # set in a process that has its own namespace, or cannot have one
USER = ["--map-root-user"] if os.geteuid() else []  # without root, mounting needs a user namespace


def enter() -> None:
    """Restarts this program in a namespace where it may mount, if possible and not done yet."""
    if INSIDE in os.environ:
        return
    command = ["unshare", "--mount", *USER]
    try:
        able = subprocess.run([*command, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode == 0
    except FileNotFoundError:
        able = False
    os.environ[INSIDE] = "yes" if able else ""
    if able:
        os.execvp(command[0], [*command, sys.executable, *sys.argv])


def able() -> bool:
    return bool(os.environ.get(INSIDE))


@contextlib.contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[None]:
    """Mounts a disk of `mib` MiB at `folder`."""
    folder.mkdir(parents=True)
    _call("mount", "-t", "tmpfs", "-o", f"size={mib}m", "none", str(folder))
    try:
        yield
    finally:
        _call("umount", "-l", str(folder))


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Makes a folder read-only. Files that are already open stay writable, since the folder is mounted over itself."""
    _call("mount", "--bind", str(folder), str(folder))
    try:
        _call("mount", "-o", "remount,bind,ro", str(folder))
        yield
    finally:
        _call("umount", "-l", str(folder))


@contextlib.contextmanager
def filled(folder: Path, left: int = 0) -> Iterator[None]:
    """Fills the disk of `folder` up to `left` bytes."""
    disk = os.statvfs(folder)
    filler = folder / "filler"
    with filler.open("wb") as file:
        file.write(bytes(max(0, disk.f_bavail * disk.f_frsize - left)))
    try:
        yield
    finally:
        filler.unlink()


def _call(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
