"""Captions as a text encoder's embeddings, stored in a folder that `scripts/prepare/prepare_text.py` writes.

A split has two files: `<split>.npy`, float16 [T, D], holds the embeddings of its captions' tokens, concatenated, and
`<split>_lengths.npy`, int32 [N], the number of tokens of each example; 0 is an example without a caption. Captions are far shorter than a
model's limit, so a padded file [N, S, D] would be mostly padding. The sum of the preceding lengths locates an example's tokens, and only
those are read. `text.json` describes the encoder. float16 rounds by 5e-4 of a value.
"""

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from tinygen.data.captions.tokenizer import normal
from tinygen.data.condition import BLOCK, Batch, Prompted
from tinygen.data.examples import Examples
from tinygen.errors import UserError
from tinygen.media.base import Medium, Spec

ABOUT, VERSION = "text.json", 1
SPLITS = ("train", "validation")
LONGEST, MOST_FEATURES, LONGEST_NAME = 4096, 2**16, 4096  # tokens, features, characters
MAKING = (
    "Embeddings are made, in a checkout of tinygen, by\npython scripts/prepare/prepare_text.py --config=RECIPE --encoder=DIR --out={folder}"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaptionEmbeddings(Prompted):
    """Captions as the embeddings of a frozen text encoder; stored with the run. `tinygen.sampling.conditions` encodes prompts.

    encoder: the encoder's folder or name; a hint, for a folder may move
    sha256: the SHA-256 of its weights
    length: tokens per caption that the model reads, the encoder's special tokens included
    features: features per token
    """

    encoder: str
    sha256: str
    length: int
    features: int

    keys: ClassVar[tuple[str, ...]] = ("embed", "embed_mask")
    answers: ClassVar[tuple[str, ...]] = ("prompts", "negative", "encoder")
    needs_examples: ClassVar[bool] = True
    fact: ClassVar[str] = "text_length"

    def __post_init__(self) -> None:
        if not isinstance(self.encoder, str) or len(self.encoder) > LONGEST_NAME or not re.fullmatch("[0-9a-f]{64}", str(self.sha256)):
            raise UserError("these embeddings do not say which text encoder made them")
        for name, value, most in (("tokens", self.length, LONGEST), ("features per token", self.features, MOST_FEATURES)):
            if type(value) is not int or not 1 <= value <= most:
                raise UserError(f"embeddings of a caption have 1 to {most:,} {name}, not {str(value)[:40]}")

    @classmethod
    def from_json(cls, tree: Mapping[str, Any], medium: Medium) -> "CaptionEmbeddings | None":
        text = tree.get("text")
        return cls(**text) if text is not None and "encoder" in text else None

    def to_json(self) -> dict[str, Any]:
        return {"text": dataclasses.asdict(self)}

    def facts(self) -> dict[str, Any]:
        return {"text_length": self.length, "text_features": self.features}

    def check_spec(self, spec: Spec) -> None:
        wanted = {"embed": (self.length, self.features), "embed_mask": (self.length,)}
        if {name: spec[name].shape for name in self.keys if name in spec} != wanted:
            raise UserError(f"an example does not have embeddings of the shape that its text encoder gives, {list(wanted['embed'])}")

    def preview(self, num: int, held_out: Examples) -> tuple[Batch, list[str]]:
        """Captions of held-out examples, whose embeddings are stored: the text encoder is not loaded."""
        return {}, list(map(normal, held_out.captions(np.arange(num) % len(held_out))))

    def of_examples(self, examples: Examples, indices: np.ndarray) -> Batch:
        return {
            "embed": Rows(lambda rows: examples.take(rows)["embed"], indices),
            "embed_mask": np.concatenate(
                [examples.take(indices[first : first + BLOCK])["embed_mask"] for first in range(0, len(indices), BLOCK)]
            ),
        }

    @classmethod
    def differences(cls, old: Self | None, new: Self | None) -> list[str]:
        if old is None or new is None or old.sha256 == new.sha256:
            return []
        return [f"text encoder: {old.encoder} -> {new.encoder}"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """The description of a split's embeddings.

    num: examples
    captioned: examples with a caption
    cut: captions truncated to the encoder's limit
    tokens: rows in the file of values
    captions: SHA-256 of all captions
    spread: SHA-256 of a sample of them, spread over the split
    values, lengths: SHA-256 of the arrays in the files
    """

    num: int
    captioned: int
    cut: int
    tokens: int
    captions: str
    spread: str
    values: str
    lengths: str

    def __post_init__(self) -> None:
        numbers = (self.num, self.captioned, self.cut, self.tokens)
        if not all(type(number) is int and 0 <= number < 2**40 for number in numbers):
            raise ValueError("numbers of examples and tokens are whole numbers")
        if not all(re.fullmatch("[0-9a-f]{64}", str(digest)) for digest in (self.captions, self.spread, self.values, self.lengths)):
            raise ValueError("a SHA-256 has 64 digits")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """The content of `text.json`.

    data: the fingerprint of the captioned data
    """

    text: CaptionEmbeddings
    data: str
    splits: Mapping[str, Split]

    def write(self, folder: Path) -> None:
        (folder / ABOUT).write_text(json.dumps({"version": VERSION, **dataclasses.asdict(self)}, indent=1) + "\n", "utf-8")

    @classmethod
    def read(cls, folder: Path) -> "Prepared":
        """Raises UserError if the file is missing or damaged."""
        where, again = f"config.text.embeddings={folder}", "prepare the embeddings again"
        try:
            tree = json.loads((folder / ABOUT).read_text("utf-8"))
            if tree["version"] != VERSION:
                raise UserError(f"its version is {str(tree['version'])[:20]}, and this program reads {VERSION}: {again}")
            splits = {split: Split(**tree["splits"][split]) for split in SPLITS}
            return cls(text=CaptionEmbeddings(**tree["text"]), data=str(tree["data"]), splits=splits)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise UserError(f"{where}: {ABOUT} is not there. {MAKING.format(folder=folder)}") from error
        except UserError as error:
            raise UserError(f"{where}: {ABOUT}: {error}") from error
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OSError) as error:
            raise UserError(f"{where}: {ABOUT} is damaged ({str(error)[:120]}): {again}") from error


def files_of(folder: Path, split: str) -> tuple[Path, Path]:
    """(file of values, file of lengths)"""
    return folder / f"{split}.npy", folder / f"{split}_lengths.npy"


@dataclasses.dataclass(frozen=True)
class Embeddings:
    """The embeddings of a split, float16 in a file and read on demand.

    A memory map would count every page read as this process's memory, and kill the process if the file were truncated.

    start: byte offset of the first token
    ends: int64 [N + 1], the bounds of each example's tokens
    """

    path: Path
    start: int
    ends: np.ndarray
    text: CaptionEmbeddings

    def rows(self, indices: np.ndarray) -> Batch:
        """`embed` and `embed_mask` of the examples at `indices`. Raises UserError if they can no longer be read."""
        num, features = len(indices), self.text.features
        embed, there = np.zeros((num, self.text.length, features), np.float32), np.zeros((num, self.text.length), bool)
        firsts, counts = self.ends[indices], self.ends[indices + 1] - self.ends[indices]
        try:
            with open(self.path, "rb") as file:
                for row, (first, count) in enumerate(zip(firsts.tolist(), counts.tolist(), strict=True)):
                    found = os.pread(file.fileno(), 2 * features * count, self.start + 2 * features * first)
                    if len(found) != 2 * features * count:
                        raise OSError(0, "it has become shorter")
                    embed[row, :count], there[row, :count] = np.frombuffer(found, "<f2").reshape(count, features), True
        except OSError as error:
            raise UserError(f"{self.path} can no longer be read as it was at the start ({error.strerror}): put it back") from error
        return {"embed": embed, "embed_mask": there}


class Rows:
    """Rows of examples in any order, read on demand: the conditions of many samples do not fit into memory."""

    def __init__(self, read: Any, index: np.ndarray) -> None:
        """read: indices of examples -> their rows of an array. index: the example of each row"""
        self.read, self.index = read, index

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, rows: Any) -> np.ndarray:
        return self.read(self.index[rows])
