"""Encodes a sampling request as arrays of conditions, with the run's text encoder if it had one."""

import dataclasses
from typing import NamedTuple

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
    cond, words = _encoded(codec, request, num), tuple(each.words(request, num) for each in codec.conditions)
    if request.negative is None:
        return Asked(cond, None, words)
    return Asked(cond, _encoded(codec, dataclasses.replace(request, prompts=[request.negative]), num), words)


def _encoded(codec: Codec, request: Request, num: int) -> Batch:
    arrays = codec.encode(num, request)
    return {**arrays, **embedded(codec.embeddings, request, num)} if codec.embeddings else arrays


def embedded(text: CaptionEmbeddings, request: Request, num: int) -> Batch:
    """The prompts in turn, as embeddings by the run's text encoder, or by its copy at `request.encoder`.

    Returns `embed`, float32 [num, length, features], read when indexed, and `embed_mask`, bool [num, length].
    """
    if not request.prompts:
        raise UserError("this model draws from a prompt: give --prompt=WORDS, or --prompts=FILE")
    option = "--encoder" if request.encoder else "the run's text encoder"
    try:
        with processes.lead_first("the text encoder"):  # may download it
            found = text_encoder.load(request.encoder or text.encoder, option)
    except UserError as error:
        raise UserError(str(error) if request.encoder else f"{error}\nIf it has moved, give --encoder=DIR.") from error
    if found.sha256 != text.sha256 or found.features != text.features:
        raise UserError(
            f"{option}={found.name} has other weights (sha256 {found.sha256[:16]}) than the encoder of this run's captions "
            f"({text.encoder}, {text.sha256[:16]}): give --encoder=DIR"
        )
    words = list(map(normal, request.prompts))  # as the captions were
    blocks = [found.prompts(words[first : first + BLOCK], text.length) for first in range(0, len(words), BLOCK)]
    halves = np.concatenate([embed.astype(np.float16) for embed, _ in blocks])  # as the captions were stored
    there = np.concatenate([mask for _, mask in blocks])
    index = np.arange(num) % len(words)
    return {"embed": Rows(lambda rows: halves[rows].astype(np.float32), index), "embed_mask": there[index]}
