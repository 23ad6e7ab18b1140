"""What a model sees of a medium: its values as they are, or an autoencoder's latents (`tinygen.data.latents.provenance.Latents`)."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from tinygen.errors import UserError
from tinygen.media.field import Spec


@dataclasses.dataclass(frozen=True)
class Domain:
    """The domain of values as they are; a subclass overrides what differs. `tinygen.pretrained.latents` leads from latents to a medium."""

    raw: ClassVar[bool] = True

    def to_json(self) -> dict[str, Any]:
        return {}

    def check_spec(self, spec: Spec) -> None:
        """Raises UserError where the arrays of an example cannot hold it."""

    def check(self, batch: Mapping[str, np.ndarray]) -> None:
        """Raises UserError where the first batch is not of this domain."""

    def moved(self, autoencoder: str) -> "Domain":
        """The same, after its autoencoder has moved to another file or run. Raises UserError where there is none."""
        raise UserError(f"--autoencoder={autoencoder}: this run was not trained on latents: it needs no autoencoder")

    def differences(self, old: "Domain") -> list[str]:
        """What makes weights trained on the domain `old` mean something else here, one line each."""
        return []
