"""Little memory and time, for tests of files that ask for much of both."""

import contextlib
import resource
import time
from collections.abc import Iterator
from pathlib import Path

ROOM = 2 * 2**30  # bytes of address space beyond what the process has: threads and their heaps take some
PATIENCE = 60  # seconds of this process's own work, of which two are usual: others may keep the machine busy


@contextlib.contextmanager
def confined() -> Iterator[None]:
    """What the block does fails where it takes more than ROOM and PATIENCE."""
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 2**30
    before, began = resource.getrlimit(resource.RLIMIT_AS), time.process_time()
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert time.process_time() - began < PATIENCE
