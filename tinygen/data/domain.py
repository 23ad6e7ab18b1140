"""Domains: how models see a medium, as raw values or as latents (`tinygen.data.latents.provenance.Latents`)."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from tinygen.errors import UserError
from tinygen.media.field import Spec


@dataclasses.dataclass(frozen=True)
class Domain:
    """The domain of raw values; subclasses override what differs. `tinygen.pretrained.latents` decodes latents."""

    raw: ClassVar[bool] = True

    def to_json(self) -> dict[str, Any]:
        return {}

    def check_spec(self, spec: Spec) -> None:
        """Raises UserError if an example's arrays do not fit it."""

    def check(self, batch: Mapping[str, np.ndarray]) -> None:
        """Raises UserError if the first batch is not of this domain."""

    def moved(self, autoencoder: str) -> "Domain":
        """The domain with its autoencoder in another file or run. Raises UserError without an autoencoder."""
        raise UserError(f"--autoencoder={autoencoder}: this run was not trained on latents and needs no autoencoder")

    def differences(self, old: "Domain") -> list[str]:
        """The differences from `old` that change the meaning of trained weights, one line each."""
        return []
