"""What every objective is to the rest of the program. Each member has a default, so nobody asks whether it is there."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax

from tinygen.media.preview import Preview

Batch = Mapping[str, jax.Array]


class Objective:
    """What a model learns, and how it is sampled. Subclasses are frozen dataclasses whose fields are the keys of their configuration.

    A new objective is a subclass in a file of its own, a row of `tinygen.build.OBJECTIVES` and its keys in `tinygen.config.objectives`.
    """

    generates: ClassVar[bool] = False  # whether `draw` gives samples
    streams: ClassVar[bool] = False  # whether samples grow token by token: `begin` and `more` in place of `draw`
    needs_jvp: ClassVar[bool] = False  # whether the loss differentiates the model forward, which rules out some kernels
    inputs: ClassVar[tuple[str, ...]] = ()  # scalars besides the time that the model is given, by name
    max_time_scale: ClassVar[float] = math.inf  # the largest config.model.time_scale that training stays stable with

    @property
    def head(self) -> bool:
        """Whether the model needs a second output."""
        return False

    def loss(self, model: Any, batch: Batch, key: jax.Array, *, train: bool) -> tuple[jax.Array, dict[str, Any]]:
        """(the scalar to minimise, metrics): floats, or (sum, weight) pairs that are added up over batches before they are divided."""
        raise NotImplementedError

    def draw(
        self, model: Any, keys: jax.Array, cond: Batch | None = None, negative: Batch | None = None
    ) -> tuple[jax.Array, jax.Array | None]:
        """(samples [B, ...], one per key; the network evaluations that each took, int32 [B], or None where they are not counted)."""
        raise NotImplementedError

    def evaluations(self, *, conditional: bool) -> int | None:
        """Network evaluations that a sample takes at most; None where they are not counted."""
        return None

    def preview(self, raw: Any, averaged: Any, batch: Batch, keys: jax.Array) -> dict[str, Preview]:
        """What people see of the model while it learns, by name. raw, averaged: the model with its own and with its averaged weights."""
        return {}

    def derived(self, means: Mapping[str, float]) -> dict[str, float]:
        """Metrics that are no means but follow from them, such as the perplexity. Any mean may be missing."""
        return {}
