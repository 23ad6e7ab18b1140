"""best.json: how well a run's samples scored step by step, so that the best one's checkpoint is kept and can be found."""

import json
from collections.abc import Sequence

from absl import logging
from etils import epath

from tinygen.errors import UserError
from tinygen.processes import leads
from tinygen.rundir import read_json, write_whole

FILE = "best.json"


class Best:
    """The scores up to the step that a run goes on from, and those that come. Of other rules than `by` they are forgotten.

    by: what decides a score: the name of it, the network, the number of samples
    """

    def __init__(self, workdir: epath.Path, by: str, start: int):
        self.path, self.by = workdir / FILE, by
        try:
            stored = read_json(self.path)
            known = stored["scored"] if stored and stored["by"] == by else {}
            self.ranks = {int(step): float(rank) for step, rank in known.items()}
        except (UserError, LookupError, TypeError, ValueError, AttributeError):
            logging.warning("%s is damaged: the scores before step %d do not count among the best", self.path, start)
            self.ranks = {}
        self.go_back(start)

    def go_back(self, to: int) -> None:
        """Forgets what came after a step: it comes again."""
        self.ranks = {step: rank for step, rank in self.ranks.items() if step <= to}

    def add(self, step: int, rank: float) -> bool:
        """Takes down a score, less is better. Whether it is the best so far."""
        better = all(rank < other for other in self.ranks.values())
        self.ranks[step] = rank
        if leads():
            whole = {"by": self.by, "best": self.of(list(self.ranks)), "scored": self.ranks}
            try:
                write_whole(self.path, json.dumps(whole, indent=1) + "\n")
            except OSError as error:
                logging.warning("%s cannot be written: %s", self.path, error.strerror)
        return better

    def of(self, steps: Sequence[int]) -> int | None:
        """Of those steps the one with the best score, the first of equals; None where none was scored."""
        return min((step for step in steps if step in self.ranks), key=self.ranks.__getitem__, default=None)
