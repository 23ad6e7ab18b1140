"""The value of `config.distributed`: how the processes of one run find each other."""

import dataclasses
import re

from tinygen.errors import UserError

FORM = "HOST:PORT,PROCESSES,PROCESS"


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The coordinator's address, the number of processes, and the index of this one; `None` is left to JAX to detect."""

    coordinator: str | None = None
    processes: int | None = None
    process: int | None = None


def parse(distributed: str) -> Cluster | None:
    """Parses "auto" or "HOST:PORT,PROCESSES,PROCESS"; None for "", a single process. Raises UserError for anything else."""
    if not distributed:
        return None
    if distributed == "auto":
        return Cluster()
    match = re.fullmatch(r"([^\s,]+:(\d+)),(\d+),(\d+)", distributed)
    if not match or int(match[2]) > 65535:
        raise UserError(f"distributed={distributed!r} is neither auto nor {FORM}, for example 10.0.0.1:9876,4,0 on the first of four")
    processes, process = max(1, int(match[3])), int(match[4])
    if process >= processes:
        raise UserError(f"distributed={distributed!r}: processes are numbered from 0 to {processes - 1}")
    return Cluster(match[1], processes, process)
