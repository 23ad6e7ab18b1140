"""How a text begins, as a condition of language models."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tinygen.data.condition import Batch, Condition, Examples, Request
from tinygen.media import Medium, Text, Vocabulary


@dataclasses.dataclass(frozen=True)
class Prompt(Condition):
    """vocabulary: what the tokens of a prompt are"""

    vocabulary: Vocabulary

    noun: ClassVar[str] = "prompt"
    answers: ClassVar[tuple[str, ...]] = ("prompts", "stop")
    guides: ClassVar[bool] = False

    @classmethod
    def from_json(cls, tree: Mapping[str, Any], medium: Medium) -> "Prompt | None":
        return cls(medium.vocabulary) if isinstance(medium, Text) else None

    def encode(self, request: Request, num: int) -> Batch:
        """`prompt`, int32 [num, P], right-padded, and `prompt_mask`, bool [num, P]: in turn; a whole document begins with no token."""
        rows = self.vocabulary.encode_many(request.prompts or [""])
        mask = np.arange(max(1, *map(len, rows))) < np.array([len(row) for row in rows])[:, None]
        tokens = np.zeros(mask.shape, np.int32)
        tokens[mask] = np.concatenate(rows)
        index = np.arange(num) % len(rows)
        return {"prompt": tokens[index], "prompt_mask": mask[index]}

    def words(self, request: Request, num: int) -> list[str]:
        prompts = request.prompts or [""]
        return [prompts[index % len(prompts)] for index in range(num)]

    def number(self, request: Request) -> int | None:
        """One text per prompt."""
        return len(request.prompts) or None

    def preview(self, num: int, held_out: Examples) -> tuple[Batch, list[str]]:
        """Nothing: the objective continues held-out windows."""
        return {}, []

    def describe(self, arrays: Mapping[str, Any], words: Sequence[str]) -> list[dict[str, Any]]:
        return [{"prompt": each} for each in words]
