"""best.json: how well a run's samples scored step by step, so that the best one's checkpoint is kept and can be found."""

import json
from collections.abc import Sequence

from absl import logging

from tinygen.distributed.processes import leads
from tinygen.errors import UserError
from tinygen.workdir.files import Folder, read_json

FILE = "best.json"


class Best:
    """The scores up to the step that a run goes on from, and those that come. Of other rules than `by` they are forgotten.

    by: what decides a score: the name of it, the network, the number of samples; None: none will come, those that are there count
    """

    def __init__(self, workdir: Folder, by: str | None, start: int):
        self.workdir, self.by = workdir, by
        try:
            stored = read_json(workdir, FILE)
            known = stored["scored"] if stored and by in (None, stored["by"]) else {}
            self.by = stored["by"] if stored and by is None else by
            self.ranks = {int(step): float(rank) for step, rank in known.items()}
        except (UserError, OSError, LookupError, TypeError, ValueError, AttributeError):
            logging.warning("%s is damaged: the scores before step %d do not count among the best", workdir.path(FILE), start)
            self.ranks = {}
        self.go_back(start)

    def go_back(self, to: int) -> None:
        """Forgets what came after a step: it comes again, and its checkpoint is gone."""
        later = [step for step in self.ranks if step > to]
        for step in later:
            del self.ranks[step]
        if later:
            self._write()

    def add(self, step: int, rank: float) -> bool:
        """Takes down a score, less is better. Whether it is the best so far."""
        better = all(rank < other for other in self.ranks.values())
        self.ranks[step] = rank
        self._write()
        return better

    def of(self, steps: Sequence[int]) -> int | None:
        """Of those steps the one with the best score, the first of equals; None where none was scored."""
        return min((step for step in steps if step in self.ranks), key=self.ranks.__getitem__, default=None)

    def _write(self) -> None:
        if not leads():
            return
        whole = {"by": self.by, "best": self.of(list(self.ranks)), "scored": self.ranks}
        try:
            self.workdir.write(FILE, json.dumps(whole, indent=1) + "\n")
        except OSError as error:
            logging.warning("%s cannot be written: %s", self.workdir.path(FILE), error.strerror)
