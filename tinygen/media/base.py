"""The interface of all media: images, text, and later video and audio."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tinygen.errors import UserError, unknown

Batch = Mapping[str, np.ndarray]
FREE = -1  # in place of a token that is not given
LARGEST = 2**26  # values per example: readers of a codec allocate arrays of its shapes
DTYPES = ("float32", "float16", "int32", "int64", "uint8", "bool")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """One array of an example: its shape, its dtype and the closed range of its values."""

    shape: tuple[int, ...]
    dtype: str
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if len(self.shape) > 8 or not all(isinstance(side, int) and side > 0 for side in self.shape) or math.prod(self.shape) >= LARGEST:
            shown = str(list(self.shape[:8]))[:80]
            raise UserError(f"an example of shape {shown}: sides must be positive integers, and its values fewer than {LARGEST:,}")
        if self.dtype not in DTYPES:
            raise unknown("dtype of an array", self.dtype, DTYPES)
        if not all(bound is None or (isinstance(bound, int | float) and abs(bound) < 1e38) for bound in (self.low, self.high)):
            raise UserError("the bounds of an array must be finite numbers")


Spec = Mapping[str, Field]
"""The arrays of an example, by name."""


@dataclasses.dataclass(frozen=True)
class Medium:
    """How examples and samples are shown, saved, logged, checked, augmented and compared.

    Each medium is a subclass in a file of its own and a row of `tinygen.media.MEDIA`. The defaults suit arrays that cannot be shown.

    name: what `codec.json` calls the medium
    """

    name: ClassVar[str] = ""

    suffix: ClassVar[str] = ""  # of an item's own file; "" = items have none
    sheet: ClassVar[str] = ""  # the name of one file with all the items of a call; "" = there is none
    sheet_suffix: ClassVar[str] = ""  # of a preview's file, which shows several items; "" = they cannot be shown
    element: ClassVar[str] = ""  # the HTML element that shows such a file
    comparable: ClassVar[bool] = False  # whether scores over image features make sense
    animates: ClassVar[bool] = False  # whether `animate` can make a file of several overviews
    printed: ClassVar[bool] = False  # whether samples go to stdout as well
    doubt: ClassVar[str] = "is its scale wrong?"  # asked where values are out of range

    @property
    def noun(self) -> str:
        """One item, for rates ("images/s") and messages."""
        return self.name

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "Medium":
        """The medium of a `codec.json`. Raises UserError if the tree is invalid."""
        return cls()

    def to_json(self) -> dict[str, Any]:
        """The medium's description in `codec.json`; the inverse of `from_json`."""
        return {"kind": self.name}

    def facts(self, spec: Spec) -> dict[str, Any]:
        """Values for constructors of models and objectives, by the names of `tinygen.data.codec.FACTS`."""
        return {}

    def check_spec(self, spec: Spec) -> None:
        """Raises UserError if arrays of these shapes cannot hold this medium."""

    def check(self, batch: Batch, spec: Spec) -> None:
        """Raises UserError if the first batch contradicts the spec. Shapes, dtypes and ranges have been checked already."""
        if "x" not in spec:
            return
        field, x = spec["x"], batch["x"]
        low, high = field.low or 0.0, field.high or 0.0
        if field.low is not None and x.min() >= (low + high) / 2:
            raise UserError(f"first batch: 'x' never falls below {(low + high) / 2:g}, the middle of its range: was it scaled to another?")
        spread = float(np.std(x))
        if spread == 0.0 or spread < 0.005 * (high - low):
            raise UserError(f"first batch: 'x' hardly varies (standard deviation {spread:.2g}): is its scale wrong, or is it blank?")

    def augment(self, batch: dict[str, np.ndarray], draws: np.ndarray) -> dict[str, np.ndarray]:
        """A training batch with random changes that preserve its meaning. draws: uniform in [0, 1), one per example"""
        raise UserError(f"config.data.flip=True: {self.noun} data cannot be mirrored")

    def decode(self, x: np.ndarray) -> Any:
        """The items of a model's samples [N, ...], after any autoencoder has decoded them."""
        return x

    def read_given(self, value: str, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """(an item of `shape`, bool [...] where it is known) from the option --given. Raises UserError if it does not fit."""
        raise UserError(f"--given={value}: {self.noun} data cannot be infilled")

    def animate(self, frames: Sequence[Any]) -> bytes:
        """The content of a file of overviews, one after another. Raises NotImplementedError unless the medium `animates`."""
        raise NotImplementedError(self.name)

    def growing(self, stops: Sequence[str]) -> Any:
        """An item that grows token by token. Raises NotImplementedError for items that appear whole."""
        raise NotImplementedError(self.name)

    def of_batch(self, batch: Batch, to_medium: Callable[[Batch], np.ndarray]) -> Any:
        """The items of a batch of examples. to_medium: maps a batch of the model's domain to the medium"""
        return self.decode(to_medium(batch))

    def first(self, value: Any, num: int) -> Any:
        """The first `num` items of a preview, before or after `decode`."""
        return value[:num]

    def encode(self, item: Any) -> bytes | str:
        """The content of an item's file. Raises NotImplementedError without a `suffix`."""
        raise NotImplementedError(self.name)

    def contents(self, items: Any, columns: int | None, conditions: Mapping[str, Any]) -> bytes | str:
        """The content of the `sheet`. columns: of a grid; conditions: the samples' conditions, a row per item"""
        return self.encode(self.overview(items, columns))

    def overview(self, items: Any, columns: int | None = None) -> Any:
        """One item that shows several: a grid of images, numbered texts. Raises NotImplementedError without a `sheet_suffix`."""
        raise NotImplementedError(self.name)

    def log(self, writer: Any, step: int, name: str, items: Any, overview: Any) -> None:
        """Passes a preview to a metric writer: `write_images(step, {name: [N, H, W, C]})` or `write_texts(step, {name: texts})`."""

    def glimpse(self, items: Any) -> str:
        """A preview in a line of the log; "" = nothing worth reading."""
        return ""

    def differences(self, old: "Medium") -> list[str]:
        """The differences that make weights trained on the medium `old` unusable here, one line each."""
        return [f"kind: {old.name!r} -> {self.name!r}"] if old.name != self.name else []

    def seen_by_weights(self, name: str, field: Field, *, rotary: bool) -> dict[str, Any]:
        """The part of an array's description that weights depend on.

        rotary: whether positions are rotations, on which no weight depends
        """
        return dataclasses.asdict(field)

    def positions(self, spec: Spec) -> tuple[int, int] | None:
        """The height and width over which positions can be interpolated; None if they cannot."""
        return None
