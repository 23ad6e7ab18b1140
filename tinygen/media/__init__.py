"""Media: how examples and samples are shown and stored. A medium is one class in one file, and one row here."""

from collections.abc import Mapping
from typing import Any

from tinygen.media.array import Array
from tinygen.media.base import Medium
from tinygen.media.curve import Curve
from tinygen.media.image import Image
from tinygen.media.text import Text
from tinygen.media.vocabulary import Vocabulary

__all__ = ["MEDIA", "Array", "Curve", "Image", "Medium", "Text", "Vocabulary", "element_of", "from_json"]

MEDIA: dict[str, type[Medium]] = {"image": Image, "plot": Curve, "text": Text}


def element_of(name: str) -> str:
    """The HTML element that shows a preview's file of this name; "" for a file that no medium writes."""
    return next((medium.element for medium in MEDIA.values() if medium.sheet_suffix == name.rpartition(".")[2]), "")


def from_json(tree: Mapping[str, Any]) -> Medium:
    """The medium that `codec.json` describes; unknown kinds are arrays. Raises UserError, LookupError or TypeError for an invalid tree."""
    return MEDIA.get(tree["kind"], Array).from_json(tree)
