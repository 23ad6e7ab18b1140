"""A folder for a while: on the file system of a workdir, and gone afterwards."""

import contextlib
import secrets
import shutil
import signal
from collections.abc import Iterator

from etils import epath

from tinygen.distributed.processes import from_lead, lead_first, leads
from tinygen.errors import UserError
from tinygen.system.limits import nearest_existing


@contextlib.contextmanager
def beside(workdir: epath.Path) -> Iterator[epath.Path]:
    """A folder on the workdir's file system, which is gone when it is left: by a fault, Ctrl-C or SIGTERM too.

    It lies in the workdir or in the nearest folder above it that exists. Raises UserError where none can be made, and where the
    processes of a run don't see the same one.
    """
    above = workdir.parent if "://" in str(workdir) else nearest_existing(workdir)
    place = above / f"{workdir.name}.check-{from_lead('the check', lambda: secrets.token_hex(8))}"

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        with lead_first("the check's folder"):
            _make(place, workdir)
        yield place
    finally:
        signal.signal(signal.SIGTERM, before)
        if "://" not in str(place):  # of several processes each does: one that failed may be the last
            shutil.rmtree(place, ignore_errors=True)
        elif leads():
            place.rmtree()


def _make(place: epath.Path, workdir: epath.Path) -> None:
    """Process 0 makes the folder, the others find it."""
    if not leads() and not place.exists():
        raise UserError(f"--workdir={workdir} is not the folder that process 0 has: all save into one, on a file system that they share")
    try:
        place.mkdir(exist_ok=not leads())
    except Exception as error:  # stores raise kinds of their own
        raise UserError(f"--workdir={workdir} cannot be written: {getattr(error, 'strerror', None) or error}") from error
