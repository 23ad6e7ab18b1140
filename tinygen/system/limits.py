"""Limits of this machine: free disk space, and the memory of devices and of this process.

psutil reports a machine's memory, but not the limit of a container's cgroup.
"""

import os
import shutil
from pathlib import Path

import jax
from etils import epath

CGROUPS = Path("/sys/fs/cgroup")
UNLIMITED = 2**62  # a cgroup without a limit reports more than this


def nearest_existing(path: epath.Path) -> epath.Path:
    """The path itself, or its nearest parent that exists: the file system of anything created there."""
    return next((each for each in (path, *path.parents) if each.exists()), path)


def free_bytes(path: epath.Path) -> int | None:
    """Free disk space where `path` is or will be; None for an object store."""
    return None if "://" in str(path) else shutil.disk_usage(nearest_existing(path)).free


def device_bytes() -> int:
    """The smallest memory limit of a local device; on a CPU, which reports none, an equal share of this process's limit."""
    limits = [stats["bytes_limit"] for device in jax.local_devices() if "bytes_limit" in (stats := device.memory_stats() or {})]
    return min(limits) if limits else process_bytes() // len(jax.local_devices())


def process_bytes(groups: Path = CGROUPS) -> int:
    """The machine's memory, or the limit of this process's cgroup if that is lower.

    groups: where cgroups are mounted; version 2 has a single tree, version 1 a separate one for memory
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for tree, file in ((groups, "memory.max"), (groups / "memory", "memory.limit_in_bytes")):
        for place in (tree / own_group(), tree):
            limits += [int(text) for each in (place, *place.parents) if (text := _read(each / file)).isdigit() and int(text) < UNLIMITED]
    return min(limits)


def own_group(listed: Path = Path("/proc/self/cgroup")) -> str:
    """The path of this process's cgroup in its tree, "" for the root. With version 1, the memory cgroup."""
    lines = [line.split(":", 2) for line in _read(listed).splitlines()]
    paths = [path for _, controllers, path in (line for line in lines if len(line) == 3) if controllers in ("", "memory")]
    return paths[-1].lstrip("/") if paths else ""


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
