"""best.json: the scores of a run's samples by step, so that the best checkpoint is kept and can be found."""

import json
from collections.abc import Sequence

from absl import logging

from tinygen.distributed.processes import leads
from tinygen.errors import UserError
from tinygen.workdir.files import Folder, read_json

FILE = "best.json"


class Best:
    """The scores so far, up to the step that a run resumes from. Scores by criteria other than `by` are discarded.

    by: the criteria: score, feature extractor, number of samples; None: no new scores, keep the existing ones
    """

    def __init__(self, workdir: Folder, by: str | None, start: int):
        self.workdir, self.by = workdir, by
        try:
            stored = read_json(workdir, FILE)
            known = stored["scored"] if stored and by in (None, stored["by"]) else {}
            self.by = stored["by"] if stored and by is None else by
            self.ranks = {int(step): float(rank) for step, rank in known.items()}
        except (UserError, OSError, LookupError, TypeError, ValueError, AttributeError):
            logging.warning("%s is damaged: scores before step %d are ignored", workdir.path(FILE), start)
            self.ranks = {}
        self.go_back(start)

    def go_back(self, to: int) -> None:
        """Discards the scores after a step, for a rollback."""
        later = [step for step in self.ranks if step > to]
        for step in later:
            del self.ranks[step]
        if later:
            self._write()

    def add(self, step: int, rank: float) -> bool:
        """Records a score (lower is better). Returns whether it is the best so far."""
        better = all(rank < other for other in self.ranks.values())
        self.ranks[step] = rank
        self._write()
        return better

    def of(self, steps: Sequence[int]) -> int | None:
        """The one of these steps with the best score, the first if tied; None if none was scored."""
        return min((step for step in steps if step in self.ranks), key=self.ranks.__getitem__, default=None)

    def _write(self) -> None:
        if not leads():
            return
        whole = {"by": self.by, "best": self.of(list(self.ranks)), "scored": self.ranks}
        try:
            self.workdir.write(FILE, json.dumps(whole, indent=1) + "\n")
        except OSError as error:
            logging.warning("%s cannot be written: %s", self.workdir.path(FILE), error.strerror)
