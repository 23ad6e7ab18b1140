"""What people look at. A medium is one class in one file, and one row here."""

from collections.abc import Mapping
from typing import Any

from tinygen.media.array import Array
from tinygen.media.base import Medium, Preview, View
from tinygen.media.curve import Curve
from tinygen.media.image import Image
from tinygen.media.text import Text
from tinygen.media.vocabulary import Vocabulary

__all__ = ["MEDIA", "Array", "Curve", "Image", "Medium", "Preview", "Text", "View", "Vocabulary", "from_json"]

MEDIA: dict[str, type[Medium]] = {"image": Image, "text": Text}


def from_json(tree: Mapping[str, Any]) -> Medium:
    """The medium that `codec.json` describes; an unknown kind is arrays. Raises UserError, LookupError or TypeError for what is none."""
    return MEDIA.get(tree["kind"], Array).from_json(tree)
