"""What this machine can hold: bytes that are free on a disk, and bytes of a device."""

import os
import shutil
from pathlib import Path

import jax
from etils import epath

CGROUPS = Path("/sys/fs/cgroup")
LEAST = 2**62  # what a cgroup without a limit says is more


def standing(path: epath.Path) -> epath.Path:
    """The path itself, or the nearest folder above it that exists: on its file system whatever is made there will lie."""
    return next((each for each in (path, *path.parents) if each.exists()), path)


def free_bytes(path: epath.Path) -> int | None:
    """What is free where `path` is or will be; None for an object store, which does not say."""
    return None if "://" in str(path) else shutil.disk_usage(standing(path)).free


def device_bytes() -> int:
    """What a local device can hold: as the fullest says, or where none does (CPU) its share of the memory of this process."""
    told = [stats["bytes_limit"] for device in jax.local_devices() if "bytes_limit" in (stats := device.memory_stats() or {})]
    return min(told) if told else process_bytes() // len(jax.local_devices())


def process_bytes(groups: Path = CGROUPS) -> int:
    """The machine's memory, or the limit of this process's cgroup if that is less.

    groups: where cgroups are mounted; version 2 has one tree, version 1 a tree for memory
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for tree, file in ((groups, "memory.max"), (groups / "memory", "memory.limit_in_bytes")):
        for place in (tree / own_group(), tree):
            limits += [int(text) for each in (place, *place.parents) if (text := _read(each / file)).isdigit() and int(text) < LEAST]
    return min(limits)


def own_group(listed: Path = Path("/proc/self/cgroup")) -> str:
    """The path of this process's cgroup in its tree, "" for the root: of version 1 that of its memory."""
    lines = [line.split(":", 2) for line in _read(listed).splitlines()]
    paths = [path for _, controllers, path in (line for line in lines if len(line) == 3) if controllers in ("", "memory")]
    return paths[-1].lstrip("/") if paths else ""


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
