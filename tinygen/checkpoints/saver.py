"""The checkpoints of a run under way: where it goes on from, and saves that may fail without ending it."""

import contextlib
import gc
import re
from collections.abc import Callable, Sequence
from typing import Any

from absl import logging
from etils import epath

from tinygen.checkpoints import checksums, store
from tinygen.config import Config
from tinygen.data.codec import Codec
from tinygen.distributed import processes
from tinygen.errors import UserError
from tinygen.train_step import TrainState
from tinygen.workdir import manifest as rundir
from tinygen.workdir.files import Folder, Refused, folder


def recover(workdir: epath.Path) -> None:
    """Sets aside the saves that were not finished, and newest checkpoints that are damaged: a run goes on from one that is whole.

    For the process that owns the folder. Raises UserError where all are damaged: to begin anew is for the user to decide.
    """
    checkpoints, steps, place = checksums.checkpoints_of(workdir), store.saved_steps(workdir), folder(workdir)
    for within in ("", "samples", "codec"):
        with contextlib.suppress(OSError):  # what cannot be listed cannot be written either, and is warned of then
            place.sweep(within)
    _sweep(checkpoints)
    for torn in checksums.unfinished(checkpoints):
        moved = checksums.set_aside(checkpoints, torn.name, "torn")
        logging.warning("%s was not finished when the run ended: now in %s", checkpoints.path(torn.name), moved)
        rundir.note(place, steps[-1] if steps else 0, "torn", folder=torn.name)
    damaged: dict[int, str] = {}
    for step in reversed(steps):
        try:
            why = checksums.fault(checkpoints / str(step))
        except OSError as error:
            raise UserError(f"{checkpoints.path(str(step))} cannot be read: {error.strerror}. Nothing was changed.") from error
        if not why:
            break
        damaged[step] = why
    if damaged and len(damaged) == len(steps):
        listed = "; ".join(f"{step}: {why}" for step, why in damaged.items())
        raise UserError(
            f"{checkpoints} holds no whole checkpoint ({listed}).\n"
            "Put one back from a copy, or give another --workdir to begin anew (--config.init.ckpt takes weights from elsewhere)."
        )
    for step, why in damaged.items():
        moved = checksums.set_aside(checkpoints, str(step), "damaged")
        logging.warning("%s is damaged (%s): now in %s", checkpoints.path(str(step)), why, moved)
        rundir.note(place, step, "damaged", reason=why)


def _sweep(checkpoints: Folder) -> None:
    """Deletes what was put aside to be deleted."""
    with contextlib.suppress(OSError):  # the next sweep comes
        checkpoints.remove(checksums.DELETED)


class Saves:
    """Saves in the background, by Orbax; a checkpoint's folder appears when it is whole, and only then an older one is deleted.

    A save that fails - a full disk, a folder that can no longer be written - is told and noted, and the run goes on: what was saved
    before is still there. Of several processes all end instead.

    keep, keep_every: the newest checkpoints that are kept, and those whose step is a multiple (0: none)
    """

    def __init__(self, workdir: epath.Path, config: Config, codec: Codec):
        self.workdir, self.config, self.codec = folder(workdir, held=True), config, codec
        self.checkpoints = checksums.checkpoints_of(workdir, held=True)
        self.best: Callable[[Sequence[int]], int | None] = lambda steps: None  # which of some steps scored best
        self.failed = 0  # the step of the last save, if it failed
        self.reason = ""
        self.under_way = 0  # the step of a save that may not have ended yet
        self.rollbacks = self.losses = 0
        self.unnoted: list[tuple[int, str]] = []  # failures for which there was no room in events.jsonl either
        self.ready: Callable[[], None] = lambda: None
        self.notes: dict[str, Any] = {}
        self.manifest: dict[str, Any] = {}  # saved with each checkpoint
        store.hide_late_errors()
        train = config.train
        self.manager = store.make_manager(
            workdir, keep=train.keep, keep_every=train.keep_every, besides=self._besides, when_written=self._finish
        )

    def __enter__(self) -> "Saves":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        """Waits for the save under way. Raises UserError where the last one failed."""
        try:
            self.settle()
        finally:
            try:
                self.manager.close()
            except (OSError, ValueError):
                if not self.failed:  # else Orbax raises once more what has been said
                    raise
            self._tidy()
            if processes.leads():
                _sweep(self.checkpoints)
            if self.losses:
                gc.collect()  # what a failed save has left half done says so, unheard, while Python is still all there
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raises UserError where the last save failed."""
        if not self.failed:
            return
        good = self.newest
        raise UserError(
            f"step {self.failed} could not be saved: {self.reason}.\n"
            + (f"The checkpoint of step {good} is whole: " if good else "No checkpoint is there. ")
            + "make room, or make the folder writable, and give the same command again."
        )

    @property
    def newest(self) -> int:
        """The step of the newest checkpoint, 0 where there is none."""
        return max(store.saved_steps(self.workdir.root), default=0)

    def streak(self, step: int) -> int:
        """How many of the last updates before a checkpoint were left out, in a row."""
        notes = self.notes if step == self.under_way else checksums.noted(self._folder(step))
        streak = notes.get("streak", 0)
        return streak if isinstance(streak, int) else 0

    def pending(self, step: int) -> list[str]:
        """The periodic work that a signal has interrupted at a checkpoint's step, to be rerun on resume."""
        pending = checksums.noted(self._folder(step)).get("owes", [])
        return pending if isinstance(pending, list) else []

    def save(self, step: int, state: TrainState, *, streak: int, pending: Sequence[str], ready: Callable[[], None]) -> None:
        """Begins a save; the state may be donated as soon as this returns.

        streak, pending: what the methods of those names will return for it
        ready: waits until all else that the run has left up to here is on disk: no checkpoint may be ahead of that
        """
        self.settle()
        self._tidy()
        self.under_way, self.ready, self.notes = step, ready, {"streak": streak, "owes": list(pending)}
        try:
            self.workdir.check()  # before Orbax, which would make the folders anew
            store.save(self.manager, step, state, self.config, self.codec, self.manifest, sealed=True)
            self.failed = 0
        except (OSError, ValueError) as error:
            self._lose(error)

    def look(self) -> None:
        """Tells of a save that has failed since."""
        if self.under_way and processes.count() == 1 and not self.manager.is_saving_in_progress():
            self.settle()

    def settle(self) -> None:
        """Waits for the save under way."""
        if not self.under_way:
            return
        try:
            self.manager.wait_until_finished()
        except (OSError, ValueError) as error:
            self._lose(error)
        self.under_way = 0
        self._note()
        if processes.leads():
            _sweep(self.checkpoints)

    def give_up(self, step: int, error: OSError) -> None:
        """Counts a save as failed that was not begun, since something that has to be on disk before is not."""
        self.settle()
        self.under_way = step
        self._lose(error)

    def back(self) -> int:
        """The step of the newest whole checkpoint that a run is rolled back to, 0 where there is none; later ones are deleted."""
        self.settle()
        if processes.leads():
            _sweep(self.checkpoints)
        steps = [step for step in store.saved_steps(self.workdir.root) if not checksums.fault(self._folder(step))]
        good = self.good(steps) or 0
        self.rollbacks += 1
        processes.wait_for_all(f"rollback_{self.rollbacks}")  # before process 0 deletes what another has yet to read
        for step in steps:
            if step > good:
                self.manager.delete(step)
        return good

    def good(self, steps: Sequence[int]) -> int | None:
        """Of those steps the one that a run is rolled back to: the newest regular one that was saved while updates were finite.

        What a signal saved is none where there are regular ones: a run that one has stopped must not be rolled back to elsewhere than a
        run that none has. Where all were saved while updates were left out it is the first: its parameters are the last good ones.
        """
        every = self.config.train.checkpoint_every
        regular = [step for step in steps if every and step % every == 0]
        sound = [step for step in regular or steps if not self.streak(step)]
        return max(sound) if sound else min(steps, default=None)

    def _besides(self, steps: Sequence[int]) -> set[int]:
        """What is kept however old it is."""
        return {step for step in (self.good(steps), self.best(steps)) if step is not None}

    def _folder(self, step: int) -> Folder:
        return self.checkpoints / str(step)

    def _finish(self) -> None:
        """Called by Orbax's thread when all arrays are written, before the folder gets its name."""
        self.ready()
        if processes.leads():
            written = [entry for entry in checksums.unfinished(self.checkpoints) if entry.name.split(".")[0] == str(self.under_way)]
            newest = max(written, key=lambda entry: entry.modified, default=None)  # one that could not be deleted may lie beside it
            # in a bucket it has its name from the start
            checksums.seal(self.checkpoints / newest.name if newest else self._folder(self.under_way), self.notes)

    def _lose(self, error: Exception) -> None:
        """Tells of a save that failed, and makes room."""
        try:
            self.workdir.check()  # what Orbax raises over a folder that has gone is of any kind
        except OSError as gone:
            error = gone
        if not isinstance(error, OSError) and "os_error_code" not in str(error):  # TensorStore's; all else is a fault of ours
            raise error
        if processes.count() > 1:
            raise UserError(f"step {self.under_way} could not be saved: {_reason(error)}. The checkpoint of step {self.newest} is whole.")
        self.failed, self.reason = self.under_way, _reason(error)
        self.under_way, self.losses = 0, self.losses + 1
        newest = f"the newest checkpoint is of step {self.newest}" if self.newest else "no checkpoint is in its place"
        logging.warning("step %d could not be saved: %s. The run continues; %s", self.failed, self.reason, newest)
        self.manager.reload()  # it counts as deleted what it meant to delete after this save
        self._tidy()
        self.unnoted.append((self.failed, self.reason))
        self._note()

    def _note(self) -> None:
        while self.unnoted and rundir.note(self.workdir, self.unnoted[0][0], "unsaved", reason=self.unnoted[0][1]):
            self.unnoted.pop(0)

    def _tidy(self) -> None:
        """Deletes what a failed save has left, once none is under way. Orbax's threads may still have been writing when it failed."""
        if not self.failed or self.under_way:
            return
        try:
            for entry in checksums.unfinished(self.checkpoints):
                self.checkpoints.remove(entry.name)
        except Refused:  # the workdir was moved or deleted in the midst of a save
            _remove_stub(self.workdir.root)
        except OSError:  # then the next start sets it aside
            pass


def _remove_stub(workdir: epath.Path) -> None:
    """Deletes what Orbax has made anew in the place of a workdir, if it holds unfinished saves alone."""
    place = folder(workdir)
    with contextlib.suppress(OSError):
        alone = [entry.name for entry in place.entries()] == ["checkpoints"]
        if alone and all(checksums.UNFINISHED in entry.name for entry in place.entries("checkpoints")):
            place.remove("checkpoints")
            workdir.rmdir()


def _reason(error: Exception) -> str:
    """What the operating system said."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} ({error.filename})" if error.filename else error.strerror
    said = re.search(r"(?:.*: )?([^:\[]+) \[os_error_code", str(error))
    return said[1] if said else " ".join(str(error).split())[:160]
