"""Byte-level BPE (Sennrich et al. 2016; Radford et al. 2019) with the package `tokenizers`: every text has tokens.

Bytes have GPT-2's names: one character each, printable bytes their own. Sorted by code point, as in GPT-2, the bytes are tokens 0 to
255; the results of merges follow.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from tinygen.errors import UserError

BYTES = 256
MOST_MERGES = 2**17
LONGEST_TOKEN = 64  # characters, so that a row of dashes is not one token
PAIRED = 2  # minimum occurrences of a pair that is merged

Merges = tuple[tuple[str, str], ...]


def alphabet() -> list[str]:
    """The names of the 256 bytes, in the order of their tokens."""
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_values() -> list[int]:
    """The bytes of the first 256 tokens: printable ones in order, then the others."""
    printing = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    return printing + [byte for byte in range(BYTES) if byte not in printing]


def names(merges: Merges) -> dict[str, int]:
    """The tokens' numbers by name. Raises UserError for a merge of something that is not a token yet."""
    known = {name: number for number, name in enumerate(alphabet())}
    for first, second in merges:
        if first not in known or second not in known:
            raise UserError(f"the merge of {first[:40]!r} and {second[:40]!r} is invalid: one of them is not a token")
        known.setdefault(first + second, len(known))  # two merges may have the same result
    return known


def make_tokenizer(merges: Merges) -> Any:
    """A tokenizer with these merges. Raises UserError for a merge of something that is not a token yet."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(names(merges), list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def train(texts: Iterable[str], tokens: int) -> Merges:
    """The merges of a BPE of `tokens` tokens, including the bytes, or fewer if the texts have no more pairs."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=tokens, min_frequency=PAIRED, initial_alphabet=alphabet(), show_progress=False, special_tokens=[],
        max_token_length=LONGEST_TOKEN,
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    merges: Sequence[Any] = json.loads(tokenizer.to_str())["model"]["merges"]
    return tuple((first, second) for first, second in (merge.split(" ") if isinstance(merge, str) else merge for merge in merges))
