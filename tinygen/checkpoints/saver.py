"""Checkpointing during a run: recovery at the start, and asynchronous saves whose failure does not end the run."""

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
from tinygen.workdir import manifest
from tinygen.workdir.files import Folder, folder
from tinygen.workdir.reading import Refused


def recover(workdir: epath.Path) -> None:
    """Sets aside unfinished saves and damaged newest checkpoints, so that a run resumes from an intact one.

    Call this on the process that owns the workdir. Raises UserError if all are damaged: starting over is the user's decision.
    """
    checkpoints, steps, place = checksums.checkpoints_of(workdir), store.saved_steps(workdir), folder(workdir)
    for within in ("", "samples", "codec"):
        with contextlib.suppress(OSError):  # what cannot be listed cannot be written either, which is reported later
            place.sweep(within)
    _sweep(checkpoints)
    for torn in checksums.unfinished(checkpoints):
        moved = checksums.set_aside(checkpoints, torn.name, "torn")
        logging.warning("%s was not finished when the run ended: moved to %s", checkpoints.path(torn.name), moved)
        manifest.note(place, steps[-1] if steps else 0, "torn", folder=torn.name)
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
            f"{checkpoints} has no intact checkpoint ({listed}).\n"
            "Restore one from a copy, or start over in another --workdir (--config.init.ckpt warm-starts from another run)."
        )
    for step, why in damaged.items():
        moved = checksums.set_aside(checkpoints, str(step), "damaged")
        logging.warning("%s is damaged (%s): moved to %s", checkpoints.path(str(step)), why, moved)
        manifest.note(place, step, "damaged", reason=why)


def _sweep(checkpoints: Folder) -> None:
    """Deletes folders that are marked for deletion, on process 0."""
    if processes.leads():
        with contextlib.suppress(OSError):  # the next sweep retries
            checkpoints.remove(checksums.DELETED)


class Saves:
    """Asynchronous saves with Orbax. A checkpoint's folder appears when it is complete, and only then an older one is deleted.

    A failed save (a full disk, a read-only folder) is logged and noted in events.jsonl, and the run continues: earlier checkpoints remain.
    In a multi-process run it ends all processes instead.
    """

    def __init__(self, workdir: epath.Path, config: Config, codec: Codec):
        self.workdir, self.config, self.codec = folder(workdir, held=True), config, codec
        self.checkpoints = checksums.checkpoints_of(workdir, held=True)
        self.best: Callable[[Sequence[int]], int | None] = lambda steps: None  # the best-scored of the given steps
        self.failed = 0  # the step of the last save, if it failed
        self.reason = ""
        self.under_way = 0  # the step of a save that may still be in flight
        self.rollbacks = self.losses = 0
        self.unnoted: list[tuple[int, str]] = []  # failures that could not be noted in events.jsonl either
        self.ready: Callable[[], object] = lambda: None
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
        """Waits for the save in flight. Raises UserError if the last save failed."""
        try:
            self.settle()
        finally:
            try:
                self.manager.close()
            except (OSError, ValueError):
                if not self.failed:  # otherwise Orbax repeats an error already reported
                    raise
            self._tidy()
            _sweep(self.checkpoints)
            if self.losses:
                gc.collect()  # half-done objects of a failed save are deleted, and their messages suppressed, before Python shuts down
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raises UserError if the last save failed."""
        if not self.failed:
            return
        good = self.newest
        raise UserError(
            f"step {self.failed} could not be saved: {self.reason}.\n"
            + (f"The checkpoint of step {good} is intact: " if good else "There is no checkpoint: ")
            + "make room, or make the folder writable, and run the same command again."
        )

    @property
    def newest(self) -> int:
        """The step of the newest checkpoint, 0 if there is none."""
        return max(store.saved_steps(self.workdir.root), default=0)

    def streak(self, step: int) -> int:
        """The number of consecutive skips right before a checkpoint."""
        notes = self.notes if step == self.under_way else checksums.noted(self._folder(step))
        streak = notes.get("streak", 0)
        return streak if isinstance(streak, int) else 0

    def pending(self, step: int) -> list[str]:
        """The periodic work that a signal interrupted at a checkpoint's step, to be rerun on resume."""
        pending = checksums.noted(self._folder(step)).get("owes", [])
        return pending if isinstance(pending, list) else []

    def save(self, step: int, state: TrainState, *, streak: int, pending: Sequence[str], ready: Callable[[], object]) -> None:
        """Starts a save. The state may be donated as soon as this returns.

        streak, pending: consecutive skips and interrupted work, stored for the methods of the same names
        ready: waits until the run's other files are on disk, so that no checkpoint is ahead of them
        """
        self.settle()
        self._tidy()
        self.under_way, self.ready, self.notes = step, ready, {"streak": streak, "owes": list(pending)}
        try:
            self.workdir.check()  # before Orbax, which would recreate the folders
            store.save(self.manager, step, state, self.config, self.codec, self.manifest, sealed=True)
            self.failed = 0
        except (OSError, ValueError) as error:
            self._lose(error)

    def look(self) -> None:
        """Reports a save that has failed in the meantime."""
        if self.under_way and processes.count() == 1 and not self.manager.is_saving_in_progress():
            self.settle()

    def settle(self) -> None:
        """Waits for the save in flight."""
        if not self.under_way:
            return
        try:
            self.manager.wait_until_finished()
        except (OSError, ValueError) as error:
            self._lose(error)
        self.under_way = 0
        self._note()
        _sweep(self.checkpoints)

    def give_up(self, step: int, error: OSError) -> None:
        """Counts a save as failed without starting it, since files that must be on disk before it are not."""
        self.settle()
        self.under_way = step
        self._lose(error)

    def back(self) -> int:
        """Rolls back to the newest good checkpoint and deletes later ones. Returns its step, 0 if there is none."""
        self.settle()
        _sweep(self.checkpoints)
        steps = [step for step in store.saved_steps(self.workdir.root) if not checksums.fault(self._folder(step))]
        good = self.good(steps) or 0
        self.rollbacks += 1
        processes.wait_for_all(f"rollback_{self.rollbacks}")  # before process 0 deletes what others still read
        for step in steps:
            if step > good:
                self.manager.delete(step)
        return good

    def good(self, steps: Sequence[int]) -> int | None:
        """The one of these steps to roll back to: the newest regular checkpoint that was not saved during consecutive skips.

        Checkpoints saved on a signal count only if there are no regular ones, so that a stopped and resumed run rolls back like an
        uninterrupted one. If all were saved during skips, it is the first, whose parameters are the last good ones.
        """
        every = self.config.train.checkpoint_every
        regular = [step for step in steps if every and step % every == 0]
        sound = [step for step in regular or steps if not self.streak(step)]
        return max(sound) if sound else min(steps, default=None)

    def _besides(self, steps: Sequence[int]) -> set[int]:
        """The steps to keep regardless of age."""
        return {step for step in (self.good(steps), self.best(steps)) if step is not None}

    def _folder(self, step: int) -> Folder:
        return self.checkpoints / str(step)

    def _finish(self) -> None:
        """Called by Orbax's thread when all arrays are written, before the folder is renamed."""
        self.ready()
        if processes.leads():
            written = [entry for entry in checksums.unfinished(self.checkpoints) if entry.name.split(".")[0] == str(self.under_way)]
            newest = max(written, key=lambda entry: entry.modified, default=None)  # there may be another one that could not be deleted
            # in a bucket it has its final name from the start
            checksums.seal(self.checkpoints / newest.name if newest else self._folder(self.under_way), self.notes)

    def _lose(self, error: Exception) -> None:
        """Reports a failed save and frees its space."""
        try:
            self.workdir.check()  # Orbax raises various errors for a missing folder
        except OSError as gone:
            error = gone
        if not isinstance(error, OSError) and "os_error_code" not in str(error):  # TensorStore's; anything else is a bug
            raise error
        if processes.count() > 1:
            raise UserError(f"step {self.under_way} could not be saved: {_reason(error)}. The checkpoint of step {self.newest} is intact.")
        self.failed, self.reason = self.under_way, _reason(error)
        self.under_way, self.losses = 0, self.losses + 1
        newest = f"the newest checkpoint is of step {self.newest}" if self.newest else "there is no checkpoint yet"
        logging.warning("step %d could not be saved: %s. The run continues; %s", self.failed, self.reason, newest)
        self.manager.reload()  # it counts checkpoints as deleted that it would have deleted after this save
        self._tidy()
        self.unnoted.append((self.failed, self.reason))
        self._note()

    def _note(self) -> None:
        while self.unnoted and manifest.note(self.workdir, self.unnoted[0][0], "unsaved", reason=self.unnoted[0][1]):
            self.unnoted.pop(0)

    def _tidy(self) -> None:
        """Deletes the leftovers of failed saves once none is in flight, since Orbax's threads may still write after a failure."""
        if not self.failed or self.under_way:
            return
        try:
            for entry in checksums.unfinished(self.checkpoints):
                self.checkpoints.remove(entry.name)
        except Refused:  # the workdir was moved or deleted during a save, and Orbax may have recreated it
            place = folder(self.workdir.root)
            with contextlib.suppress(OSError):
                alone = [entry.name for entry in place.entries()] == ["checkpoints"]
                if alone and all(checksums.UNFINISHED in entry.name for entry in place.entries("checkpoints")):
                    place.remove("checkpoints")
                    self.workdir.root.rmdir()
        except OSError:  # the next start sets it aside
            pass


def _reason(error: Exception) -> str:
    """The operating system's message."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} ({error.filename})" if error.filename else error.strerror
    said = re.search(r"(?:.*: )?([^:\[]+) \[os_error_code", str(error))
    return said[1] if said else " ".join(str(error).split())[:160]
