"""What samples are told: labels, words, as tokens or as the embeddings of a run's text encoder, and how a text begins."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tinygen.data.captions.embeddings import Embedded, Rows
from tinygen.data.captions.tokenizer import normal
from tinygen.data.codec import Batch, Codec
from tinygen.data.text.vocabulary import Vocabulary
from tinygen.distributed import processes
from tinygen.errors import UserError
from tinygen.pretrained import text_encoder

BLOCK = 64  # prompts that are encoded at once


class Told(NamedTuple):
    """The conditions of all samples, those that guidance leads away from, and the words of each sample, or none."""

    cond: Batch
    negative: Batch | None
    words: list[str]


def told(
    codec: Codec,
    num: int,
    *,
    labels: Sequence[str] | None = None,
    prompts: Sequence[str] = (),
    negative: str | None = None,
    guidance: float | None = None,
    encoder: str | None = None,
) -> Told:
    """What `num` samples are told.

    encoder: in place of the one that the codec names, where it has moved
    Raises UserError for what a model was not trained with, for words that cannot be read, and for another encoder than the run's.
    """
    if negative is not None and codec.text is None:
        raise UserError("--negative: this model was trained without captions")
    if negative is not None and guidance == 1:
        raise UserError("--negative is what guidance leads away from, and --guidance=1 is off: give a larger one")
    if encoder and not isinstance(codec.text, Embedded):
        raise UserError(f"--encoder={encoder}: this model was trained without a text encoder")
    if codec.vocabulary is not None:
        if labels:
            raise UserError("--labels: this model was trained without labels")
        return _beginnings(codec.vocabulary, num, prompts or [""])
    if isinstance(codec.text, Embedded) and not prompts:
        raise UserError("this model draws what it is told in words: give --prompt=WORDS, or --prompts=FILE")
    cond, words = codec.conditions(num, labels, prompts), codec.prompts(num, prompts)
    if not isinstance(codec.text, Embedded):
        away = None if negative is None or codec.text is None else {"text": codec.text.prompts([negative]).repeat(num, 0)}
    else:
        read = _reader(codec.text, encoder)
        cond |= read(prompts, np.arange(num) % len(prompts))
        away = None if negative is None else read([negative], np.zeros(num, int))
    return Told(cond, None if away is None else {**cond, **away}, words)


def _beginnings(vocabulary: Vocabulary, num: int, prompts: Sequence[str]) -> Told:
    """How `num` texts begin, in turn: tokens, right-padded, as `prompt` and `prompt_mask`. Nothing before a whole document."""
    rows = vocabulary.encode_many(prompts)
    mask = np.arange(max(1, *map(len, rows))) < np.array([len(row) for row in rows])[:, None]
    tokens = np.zeros(mask.shape, np.int32)
    tokens[mask] = np.concatenate(rows)
    index = np.arange(num) % len(rows)
    return Told({"prompt": tokens[index], "prompt_mask": mask[index]}, None, [prompts[each] for each in index.tolist()])


def _reader(text: Embedded, encoder: str | None) -> Callable[[Sequence[str], np.ndarray], dict[str, Any]]:
    """(prompts, which of them each sample is told) -> `embed` and `embed_mask`."""
    option = "--encoder" if encoder else "the run's text encoder"
    try:
        with processes.lead_first("the text encoder"):  # which may have to be downloaded
            found = text_encoder.load(encoder or text.encoder, option)
    except UserError as error:
        raise UserError(str(error) if encoder else f"{error}\nWhere it has moved, give --encoder=DIR.") from error
    if found.sha256 != text.sha256 or found.features != text.features:
        raise UserError(
            f"{option}={found.name} has other weights (sha256 {found.sha256[:16]}) than what read this run's captions "
            f"({text.encoder}, {text.sha256[:16]}): give --encoder=DIR"
        )

    def read(prompts: Sequence[str], index: np.ndarray) -> dict[str, Any]:
        words = list(map(normal, prompts))  # as the captions were
        blocks = [found.prompts(words[first : first + BLOCK], text.length) for first in range(0, len(words), BLOCK)]
        halves = np.concatenate([embed.astype(np.float16) for embed, _ in blocks])  # as the captions were stored
        there = np.concatenate([mask for _, mask in blocks])
        return {"embed": Rows(functools.partial(_whole, halves), index), "embed_mask": there[index]}

    return read


def _whole(halves: np.ndarray, index: np.ndarray) -> np.ndarray:
    return halves[index].astype(np.float32)
