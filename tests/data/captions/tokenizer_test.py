"""Words as numbers: nothing is unknown, nothing is lost, and a tokenizer that is stored says the same for ever."""

import json

import numpy as np
import pytest

from tinygen.data.captions.tokenizer import BYTES, CaptionTokens, trained_merges
from tinygen.data.codec import Codec, Field
from tinygen.data.condition import Request, check_answered
from tinygen.errors import UserError
from tinygen.media import Image

CAPTIONS = [f"a person with {colour} hair, on a {ground} background" for colour in ("red", "blond", "grey") for ground in ("blue", "pink")]
MERGES = trained_merges(CAPTIONS, BYTES + 40)


def text(**changes):
    return CaptionTokens(**(dict(length=12, merges=MERGES) | changes))


def spelled(tokens):
    """The bytes that tokens stand for, from the merges alone: byte-level BPE names byte b as a character of its own."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    names = {chr(byte): byte for byte in printable} | {chr(256 + number): byte for number, byte in enumerate(others)}
    known = sorted(names) + [first + second for first, second in MERGES]
    return bytes(names[letter] for token in tokens for letter in known[token - 1])


@pytest.mark.parametrize("words", ["a person with red hair", "Ärger, 123 \U0001f642!", "x"])
def test_tokens_spell_what_was_written(words):
    assert bytes(token - 1 for token in CaptionTokens(length=4).tokens(words)) == words.encode()
    assert spelled(text().tokens(words)) == words.encode()


def test_merges_make_the_captions_they_were_trained_on_short():
    bytewise, merged = (sum(len(each.tokens(caption)) for caption in CAPTIONS) for each in (CaptionTokens(length=4), text()))
    assert len(MERGES) == 40
    assert merged < bytewise / 3


def test_merges_depend_on_the_captions_alone():
    assert trained_merges(iter(CAPTIONS), BYTES + 40) == MERGES
    assert trained_merges(CAPTIONS[:1], BYTES + 40) != MERGES


def test_spaces_and_line_breaks_are_all_one():
    assert text().tokens("  red\n  hair ") == text().tokens("red hair")


def test_rows_are_padded_with_zeros_and_cut_where_they_are_too_long():
    rows, counts = CaptionTokens(length=3).rows(["ab", "", "abcde"])
    assert rows.dtype == np.int32
    np.testing.assert_array_equal(rows, [[98, 99, 0], [0, 0, 0], [98, 99, 100]])
    np.testing.assert_array_equal(counts, [2, 0, 5])


@pytest.mark.parametrize(("prompt", "said"), [("", "is empty"), (" \n", "is empty"), ("four", "has 4 tokens, and this model reads 3")])
def test_a_prompt_that_cannot_be_read_is_refused(prompt, said):
    with pytest.raises(UserError, match=said):
        CaptionTokens(length=3).prompts([prompt])


def test_a_stored_codec_reads_words_as_before():
    spec = {"text": Field(shape=(12,), dtype="int32", low=0, high=text().vocabulary - 1)}
    codec = Codec(medium=Image(), spec=spec, conditions=(text(examples=("red hair",)),))
    again = Codec.from_json(json.loads(json.dumps(codec.to_json())))
    assert again == codec
    np.testing.assert_array_equal(again.encode(3)["text"], text().prompts(["red hair"] * 3))
    assert again.facts()["text_vocabulary"] == 1 + BYTES + 40


def test_prompts_are_taken_in_turn():
    codec = Codec(medium=Image(), spec={}, conditions=(text(),))
    assert codec.conditions[0].words(Request(prompts=["a", "b"]), 3) == ["a", "b", "a"]
    np.testing.assert_array_equal(codec.encode(3, Request(prompts=["a", "b"]))["text"], text().prompts(["a", "b", "a"]))


def test_a_prompt_for_a_model_without_captions_is_refused():
    with pytest.raises(UserError, match="without captions"):
        check_answered(Request(prompts=["a"]), ())


@pytest.mark.parametrize(
    "damage",
    [
        dict(length=0), dict(length="x"), dict(length=10**9), dict(merges=[["a"]]), dict(merges=[[1, 2]]), dict(merges=3),
        dict(examples=["x" * 5000]), dict(examples=["x"] * 100), dict(more=1),
    ],
    ids=str,
)  # fmt: skip
def test_a_damaged_codec_is_named(damage):
    tree = Codec(medium=Image(), spec={}, conditions=(text(),)).to_json()
    tree["text"] |= damage
    with pytest.raises(UserError, match=r"^here: "):
        Codec.from_json(tree, "here")


def test_merges_of_what_is_no_token_are_refused():
    with pytest.raises(UserError, match="is not a token"):
        CaptionTokens(length=4, merges=(("qq", "x"),)).tokens("red")


def test_half_a_character_becomes_a_question_mark():
    """JSON can hold one: what cuts words after so many UTF-16 units leaves them."""
    half = "a \ud83d door"
    assert CaptionTokens(length=9).tokens(half) == CaptionTokens(length=9).tokens("a ? door")
    assert trained_merges([half, half], BYTES + 4)


def test_a_row_of_dashes_becomes_no_token_of_its_own():
    merges = trained_merges(["a door", "=" * 9000, "=" * 9000], BYTES + 200)
    assert 2 <= max(len(first + second) for first, second in merges) <= 64


def test_what_is_shortened_is_read_whole_and_ends_with_a_word():
    assert CaptionTokens(length=9).shortened("one two three") == "one two"
    assert CaptionTokens(length=2).shortened("one two") == ""
