"""Encodes a sampling request as arrays of conditions, with the run's text encoder if it had one."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tinygen.data.captions.embeddings import CaptionEmbeddings, Rows
from tinygen.data.captions.tokenizer import normal
from tinygen.data.codec import Batch, Codec
from tinygen.data.condition import Request, check_answered
from tinygen.distributed import processes
from tinygen.errors import UserError
from tinygen.pretrained import text_encoder

BLOCK = 64  # prompts encoded at once


class Asked(NamedTuple):
    """The conditions of all samples: arrays with one row per sample, those of the negative prompt, and the captions, if any."""

    cond: Batch
    negative: Batch | None
    words: tuple[list[str], ...]


def asked(codec: Codec, request: Request, num: int, guidance: float | None = None) -> Asked:
    """The conditions of `num` samples.

    Raises UserError for a request that the model was not trained for, for words that cannot be encoded, and for another text encoder
    than the run's.
    """
    check_answered(request, codec.conditions)
    if request.negative is not None and guidance == 1:
        raise UserError("--negative needs guidance, which --guidance=1 turns off: give a larger one")
    request = dataclasses.replace(request, read=reader)
    cond, words = codec.encode(num, request), tuple(each.words(request, num) for each in codec.conditions)
    if request.negative is None:
        return Asked(cond, None, words)
    away = dict(cond)
    for each in codec.conditions:
        away |= each.negative(request, num)
    return Asked(cond, away, words)


def reader(text: CaptionEmbeddings, encoder: str | None) -> Callable[[Sequence[str], np.ndarray], dict[str, Any]]:
    """(prompts, prompt index of each sample) -> `embed` and `embed_mask`, by the run's text encoder, or its copy at `encoder`."""
    option = "--encoder" if encoder else "the run's text encoder"
    try:
        with processes.lead_first("the text encoder"):  # may download it
            found = text_encoder.load(encoder or text.encoder, option)
    except UserError as error:
        raise UserError(str(error) if encoder else f"{error}\nIf it has moved, give --encoder=DIR.") from error
    if found.sha256 != text.sha256 or found.features != text.features:
        raise UserError(
            f"{option}={found.name} has other weights (sha256 {found.sha256[:16]}) than the encoder of this run's captions "
            f"({text.encoder}, {text.sha256[:16]}): give --encoder=DIR"
        )

    def read(prompts: Sequence[str], index: np.ndarray) -> dict[str, Any]:
        words = list(map(normal, prompts))  # as the captions were
        blocks = [found.prompts(words[first : first + BLOCK], text.length) for first in range(0, len(words), BLOCK)]
        halves = np.concatenate([embed.astype(np.float16) for embed, _ in blocks])  # as the captions were stored
        there = np.concatenate([mask for _, mask in blocks])
        return {"embed": Rows(lambda rows: halves[rows].astype(np.float32), index), "embed_mask": there[index]}

    return read
