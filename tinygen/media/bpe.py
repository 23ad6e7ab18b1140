"""Byte-level BPE (Sennrich et al. 2016; Radford et al. 2019), by the package `tokenizers`: whatever is written has tokens.

Its names of bytes are GPT-2's: a character for each, printable ones for themselves. In the order of their code points, which is GPT-2's
too, the bytes are tokens 0 to 255; what merges make follows.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from tinygen.errors import UserError

BYTES = 256
MOST_MERGES = 2**17
LONGEST_TOKEN = 64  # characters: a row of dashes is no word
PAIRED = 2  # a pair of tokens that occurs less often becomes none of its own

Merges = tuple[tuple[str, str], ...]


def alphabet() -> list[str]:
    """The names of the 256 bytes, in the order of their tokens."""
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_values() -> list[int]:
    """The byte that each of the first 256 tokens is: what prints, in its order, then the others."""
    printing = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    return printing + [byte for byte in range(BYTES) if byte not in printing]


def names(merges: Merges) -> dict[str, int]:
    """The tokens and their numbers. Raises UserError for merges of what is no token yet."""
    known = {name: number for number, name in enumerate(alphabet())}
    for first, second in merges:
        if first not in known or second not in known:
            raise UserError(f"the merge of {first[:40]!r} and {second[:40]!r} is none: one of them is no token")
        known.setdefault(first + second, len(known))  # two merges may come to the same
    return known


def make_tokenizer(merges: Merges) -> Any:
    """What encodes by these merges. Raises UserError for merges of what is no token yet."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(names(merges), list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def train(texts: Iterable[str], tokens: int) -> Merges:
    """The merges of a BPE of at most `tokens` tokens, bytes included; fewer where the texts have no more pairs."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=tokens,
        min_frequency=PAIRED,
        initial_alphabet=alphabet(),
        show_progress=False,
        special_tokens=[],
        max_token_length=LONGEST_TOKEN,
    )
    tokenizer.train_from_iterator(texts, trainer)
    merges: Sequence[Any] = json.loads(tokenizer.to_str())["model"]["merges"]
    return tuple((first, second) for first, second in (merge.split(" ") if isinstance(merge, str) else merge for merge in merges))
