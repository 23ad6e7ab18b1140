"""The beginning of a text, as a condition of language models."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tinygen.data.condition import Batch, Prompted, Request
from tinygen.data.examples import Examples
from tinygen.media import Medium, Text, Vocabulary


@dataclasses.dataclass(frozen=True)
class Prompt(Prompted):
    """vocabulary: encodes prompts"""

    vocabulary: Vocabulary

    answers: ClassVar[tuple[str, ...]] = ("prompts", "stop")
    guides: ClassVar[bool] = False

    @classmethod
    def from_json(cls, tree: Mapping[str, Any], medium: Medium) -> "Prompt | None":
        return cls(medium.vocabulary) if isinstance(medium, Text) else None

    def encode(self, request: Request, num: int) -> Batch:
        """`prompt`, int32 [num, P], right-padded, and `prompt_mask`, bool [num, P]; no token = a new document."""
        rows = self.vocabulary.encode_many(self.asked(request))
        mask = np.arange(max(1, *map(len, rows))) < np.array([len(row) for row in rows])[:, None]
        tokens = np.zeros(mask.shape, np.int32)
        tokens[mask] = np.concatenate(rows)
        index = np.arange(num) % len(rows)
        return {"prompt": tokens[index], "prompt_mask": mask[index]}

    def asked(self, request: Request) -> Sequence[str]:
        return request.prompts or [""]

    def number(self, request: Request) -> int | None:
        """One text per prompt."""
        return len(request.prompts) or None

    def preview(self, num: int, held_out: Examples) -> tuple[Batch, list[str]]:
        """Empty: the objective continues held-out windows."""
        return {}, []
