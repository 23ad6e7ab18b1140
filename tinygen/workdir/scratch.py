"""A temporary folder on the file system of a workdir."""

import contextlib
import secrets
import shutil
import signal
import sys
from collections.abc import Iterator

from etils import epath

from tinygen.distributed.processes import from_lead, lead_first, leads
from tinygen.errors import UserError
from tinygen.system.limits import nearest_existing


@contextlib.contextmanager
def beside(workdir: epath.Path) -> Iterator[epath.Path]:
    """A temporary folder on the workdir's file system, deleted on exit, including by an exception, Ctrl-C or SIGTERM.

    It is created in the workdir's nearest parent that exists. Raises UserError if it cannot be created, and if the processes of a run
    don't share it.
    """
    above = workdir.parent if "://" in str(workdir) else nearest_existing(workdir)
    place = above / f"{workdir.name}.check-{from_lead('the check', lambda: secrets.token_hex(8))}"
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        with lead_first("the check's folder"):
            _make(place, workdir)
        yield place
    finally:
        signal.signal(signal.SIGTERM, before)
        if "://" not in str(place):  # every process deletes it, since one that failed may be the last
            shutil.rmtree(place, ignore_errors=True)
        elif leads():
            place.rmtree()


def _make(place: epath.Path, workdir: epath.Path) -> None:
    """Creates the folder on process 0, and checks that the others see it."""
    if not leads() and not place.exists():
        raise UserError(f"--workdir={workdir} is not the folder of process 0: all processes need the same workdir, on a shared file system")
    try:
        place.mkdir(exist_ok=not leads())
    except Exception as error:  # stores raise their own types
        raise UserError(f"--workdir={workdir} cannot be written: {getattr(error, 'strerror', None) or error}") from error
