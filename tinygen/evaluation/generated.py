"""Samples of a checkpoint as pictures for scoring: drawn lazily, never written to disk."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tinygen import build
from tinygen.data.captions.embeddings import Rows
from tinygen.data.codec import Batch, Codec
from tinygen.data.condition import Request, check_answered
from tinygen.errors import UserError
from tinygen.evaluation.images import Pictures, Read, colour
from tinygen.pretrained import latents
from tinygen.sampling.draw import drawn
from tinygen.train_step import Tree


def of_model(
    weights: tuple[Tree, Tree], parts: build.Parts, cond: Batch, *, num: int, seed: int, size: int, name: str, fingerprint: str,
    step: Any = None,
) -> Pictures:  # fmt: skip
    """`num` samples, `size` drawn at a time. Sample i depends on the weights, the conditions, the seed and i.

    step: as in `draw.drawn`
    """

    def reads(start: int) -> Iterator[Read]:
        for x, _ in drawn(weights, parts, cond, num=num, seed=seed, size=size, start=start, step=step):
            for picture in latents.items(parts.codec, x):
                yield functools.partial(colour, picture)

    return Pictures(name=name, num=num, fingerprint=fingerprint, reads=reads)


def check_draws_pictures(parts: build.Parts, objective: str) -> None:
    """Raises UserError for a model whose samples cannot be scored, and for latents without their autoencoder."""
    if not parts.objective.generates:
        raise UserError(f"objective {objective!r} draws no samples to score")
    if not parts.codec.medium.comparable:
        raise UserError(f"scores compare pictures, and this model's samples are {parts.codec.medium.noun}")
    latents.check(parts.codec.domain)


def conditions(codec: Codec, labels: Sequence[str], num: int, reference: Any) -> tuple[Batch, str]:
    """(conditions of `num` samples, the rule behind them, for the protocol).

    labels: ["data"] = labels or captions of the reference's examples, at the same frequencies | ["all"] = every label, or example
        prompt of the codec, in turn | label names, in turn. Caption embeddings can only be the reference's
    reference: the examples of the reference, if it is a split of the data
    """
    guiding = [each for each in codec.conditions if each.guides]
    as_data = list(labels) == ["data"]
    request = Request(labels=() if as_data or list(labels) == ["all"] else labels)
    if not (as_data and guiding):
        check_answered(request, codec.conditions)
    if not guiding:
        return codec.encode(num), "none"
    if any(each.needs_examples for each in guiding) and not (as_data and reference is not None):
        raise UserError(
            "this model is conditioned on encoded captions: score it with those of a split of its own data, "
            "--labels=data and --ref=train or validation"
        )
    if not as_data:
        return codec.encode(num, request), " and ".join(each.rule(request) for each in guiding)
    if reference is None:
        nouns = " or ".join(f"{each.noun}s" for each in guiding)
        raise UserError(f"--labels=data: the reference has no {nouns} of this model's data; give --labels=all, or names")
    order = np.random.default_rng(0).permutation(len(reference))[:num]  # they may be sorted by class
    cond: Batch = {}
    for each in guiding:
        cond |= each.of_examples(reference, np.resize(order, num))
    return cond, "as the reference's"


def facts_of(cond: Batch, pictures: Pictures | None) -> dict[str, Any]:
    """Identifies conditions for a fingerprint: by value, or by index and source if they are read lazily.

    pictures: the reference that the conditions belong to, if any
    """
    facts = {name: (rows.index if isinstance(rows, Rows) else rows).tolist() for name, rows in cond.items()}
    read = any(isinstance(each, Rows) for each in cond.values())
    return facts | ({"of": pictures and pictures.fingerprint} if read else {})
