"""Samples of a checkpoint as the pictures that a score compares: drawn when they are asked for, never on the disk."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tinygen import build
from tinygen.data.captions.embeddings import Embedded, Rows
from tinygen.data.captions.tokenizer import Text
from tinygen.data.codec import CONDITIONS, Batch, Codec
from tinygen.errors import UserError
from tinygen.evaluation.images import BLOCK, Pictures, Read, colour
from tinygen.pretrained import latents
from tinygen.sampling.draw import drawn
from tinygen.train_step import Tree


def of_model(
    weights: tuple[Tree, Tree], parts: build.Parts, cond: Batch, *, num: int, seed: int, size: int, name: str, fingerprint: str,
    step: Any = None,
) -> Pictures:  # fmt: skip
    """`num` samples, `size` drawn at a time. Sample i depends on the weights, the conditions, the seed and i.

    step: as for `draw.drawn`
    """

    def reads(start: int) -> Iterator[Read]:
        for x, _ in drawn(weights, parts, cond, num=num, seed=seed, size=size, start=start, step=step):
            for picture in latents.pictures(parts.codec, x):
                yield functools.partial(colour, picture)

    return Pictures(name=name, num=num, fingerprint=fingerprint, reads=reads)


def check_draws_pictures(parts: build.Parts, objective: str) -> None:
    """Raises UserError for a model whose samples no score can compare, and for latents without their autoencoder."""
    if not hasattr(parts.objective, "sample"):
        raise UserError(f"objective {objective!r} draws no samples: there is nothing to compare")
    if parts.codec.kind != "image":
        raise UserError(f"scores compare pictures, and this model's samples are {parts.codec.kind}")
    latents.check(parts.codec)


def conditions(codec: Codec, labels: Sequence[str], num: int, reference: Any) -> tuple[Batch, str]:
    """(the conditions of `num` samples, the rule that gave them, for a protocol).

    labels: ["data"] = those of the reference's examples, captions likewise, so that both have them equally often | ["all"] = every
        label in turn, or every prompt that the codec has for an example | labels in turn. Embeddings of captions are the
        reference's alone
    reference: the examples of the reference, where they are a split of the data
    """
    named = "label" if codec.labels else "prompt"
    if not codec.conditional:
        return codec.conditions(num, None if list(labels) in (["data"], ["all"]) else labels), "none"
    if isinstance(codec.text, Embedded) and (list(labels) != ["data"] or reference is None):
        raise UserError(
            "this model is told captions by a text encoder: score it with those of a split of its own data, "
            "--labels=data and --ref=train or validation"
        )
    if list(labels) == ["all"]:
        examples = len(codec.text.examples) if isinstance(codec.text, Text) else 0
        return codec.conditions(num), "every label in turn" if codec.labels else f"the run's {examples} example prompts in turn"
    if list(labels) != ["data"]:
        return codec.conditions(num, labels), ", ".join(codec.labels[codec.label(name)] for name in labels)
    if reference is None:
        raise UserError(f"--labels=data: the reference has no {named}s of this model's data; give --labels=all, or names")
    order = np.random.default_rng(0).permutation(len(reference))[:num]  # they may lie class by class
    names = [name for name in CONDITIONS if name in codec.spec and name != "embed"]
    parts: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for first in range(0, len(order), BLOCK):  # whole examples: not all at once
        block = reference.take(order[first : first + BLOCK])
        for name in names:
            parts[name].append(block[name])
    present = {name: np.concatenate(rows) for name, rows in parts.items()}
    repeated = np.resize(np.arange(len(order)), num)
    cond: dict[str, Any] = {name: rows[repeated] for name, rows in present.items()}
    if "embed" in codec.spec:
        cond["embed"] = Rows(lambda indices: reference.take(indices)["embed"], order[repeated])
    return cond, "as the reference's"


def told_by(cond: Batch, pictures: Pictures | None) -> dict[str, Any]:
    """What tells conditions from others: themselves, or for those that are read when they are asked for whose they are.

    pictures: the reference whose conditions they are, where they are one's
    """
    rows = {name: rows.index if isinstance(rows, Rows) else rows for name, rows in cond.items()}
    read = any(isinstance(each, Rows) for each in cond.values())
    return {name: each.tolist() for name, each in rows.items()} | ({"of": pictures and pictures.fingerprint} if read else {})
