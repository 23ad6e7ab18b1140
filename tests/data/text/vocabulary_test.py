"""Any text has tokens and comes back from them, a vocabulary that is stored says the same for ever, and one that is none is refused."""

import dataclasses
import importlib.util
import json

import numpy as np
import pytest

from tinygen.data.codec import Codec, Field
from tinygen.data.text import gpt2
from tinygen.data.text.prompt import Prompt
from tinygen.errors import UserError
from tinygen.media import Text, bpe
from tinygen.media.vocabulary import Vocabulary

TEXT = "The cat sat. The cat, the mat: naïve café — 東京 🙂!\n\n  It's  \t\r\n1234 <|endoftext|>\x00\x7f\u00a0ÿ"
MERGES = bpe.train([TEXT, "the cat sat on the mat, the cat", "東京東京"], 256 + 40)
VOCABULARIES = [
    Vocabulary(kind="bytes"),
    Vocabulary(kind="characters", characters="—é東🙂"),
    Vocabulary(kind="characters", characters="ab"),
    Vocabulary(kind="bpe", merges=MERGES),
]


@pytest.mark.parametrize("vocabulary", VOCABULARIES, ids=str)
@pytest.mark.parametrize("text", [TEXT, "", " ", "a", "\n\n\n", "<|endoftext|>"])
def test_any_text_comes_back_from_its_tokens_and_none_is_the_end(text, vocabulary):
    tokens = vocabulary.encode(text)
    assert tokens.dtype == np.int32
    assert vocabulary.decode(tokens) == text
    assert vocabulary.bytes_of(tokens) == text.encode()
    assert vocabulary.end not in tokens
    assert vocabulary.byte_lengths[tokens].sum() == len(text.encode())


@pytest.mark.slow
@pytest.mark.parametrize("vocabulary", VOCABULARIES, ids=str)
def test_every_character_of_unicode_comes_back(vocabulary):
    every = "".join(chr(point) for point in range(0x110000) if not 0xD800 <= point <= 0xDFFF)
    assert vocabulary.decode(vocabulary.encode(every)) == every


@pytest.mark.parametrize("vocabulary", VOCABULARIES, ids=str)
def test_the_end_is_the_last_token_and_says_nothing(vocabulary):
    assert vocabulary.end == vocabulary.size - 1 == len(vocabulary.byte_lengths) - 1
    assert vocabulary.decode([vocabulary.end]) == ""
    assert vocabulary.byte_lengths[-1] == 0
    assert vocabulary.byte_lengths[:-1].min() >= 1


def test_a_byte_is_its_own_token_and_characters_follow():
    assert Vocabulary(kind="bytes").encode("aé").tolist() == [97, 0xC3, 0xA9]
    assert Vocabulary(kind="characters", characters="é—").encode("aé—東").tolist() == [97, 256, 257, 0xE6, 0x9D, 0xB1]


def test_bytes_of_bpe_stand_where_gpt2_has_them():
    assert Vocabulary(kind="bpe", merges=MERGES).bytes_of(range(256)) == bytes(
        [*range(33, 127), *range(161, 173), *range(174, 256)]
    ) + bytes([*range(33), *range(127, 161), 173])


def test_merges_make_text_short():
    merged = Vocabulary(kind="bpe", merges=MERGES)
    assert merged.size == 256 + len(MERGES) + 1
    assert len(merged.encode("the cat sat")) <= 4


def test_bytes_that_are_half_a_character_are_shown_as_such():
    assert Vocabulary(kind="bytes").decode([97, 0xC3]) == "a\ufffd"
    assert Vocabulary(kind="bytes").decode([0xC3, 0xA9]) == "é"


def test_half_a_character_becomes_a_question_mark():
    for vocabulary in VOCABULARIES:
        assert vocabulary.decode(vocabulary.encode("a\ud83db")) == "a?b"


@pytest.mark.parametrize("number", [-1, 257, 10**6])
def test_a_number_that_is_no_token_is_refused(number):
    with pytest.raises(UserError, match=f"{number} is not a token: this vocabulary has 0 to 256"):
        Vocabulary(kind="bytes").decode([97, number])


def codec_of(vocabulary, length=8):
    field = Field(shape=(length,), dtype="int32", low=0, high=vocabulary.end)
    spec = {"tokens": field, "target": field, "segment": Field(shape=(length,), dtype="int32", low=0, high=length)}
    return Codec(medium=Text(vocabulary), spec=spec, conditions=(Prompt(vocabulary),))


@pytest.mark.parametrize("vocabulary", VOCABULARIES, ids=str)
def test_a_stored_codec_reads_text_as_before(vocabulary):
    codec = codec_of(vocabulary)
    again = Codec.from_json(json.loads(json.dumps(codec.to_json())))
    assert again == codec
    np.testing.assert_array_equal(again.medium.vocabulary.encode(TEXT), vocabulary.encode(TEXT))


def test_a_model_is_told_the_length_the_tokens_their_bytes_and_the_end():
    facts = codec_of(VOCABULARIES[1]).facts()
    assert (facts["length"], facts["vocabulary"], facts["end"]) == (8, 261, 260)
    assert facts["token_bytes"] == (*[1] * 256, 3, 2, 3, 4, 0)


@pytest.mark.parametrize(
    "damage",
    [
        dict(kind="words"), dict(kind=3), dict(characters=7), dict(kind="characters", merges=[], characters="aa"), dict(characters="ab"),
        dict(kind="characters", merges=[], characters="\ud83d"), dict(merges=[["a"]]), dict(merges=[[1, 2]]), dict(merges=3),
        dict(merges=[["qq", "x"]]), dict(merges=[["a", "b"]] * (2**17 + 1)), dict(more=1),
        dict(kind="bytes"), dict(merges=[["a" * 5000, "b"]]),
    ],
    ids=lambda damage: str(damage)[:40],
)  # fmt: skip
def test_a_damaged_vocabulary_is_named(damage):
    tree = json.loads(json.dumps(codec_of(VOCABULARIES[3]).to_json()))
    tree["vocabulary"] |= damage
    with pytest.raises(UserError, match=r"^here: ") as refused:
        Codec.from_json(tree, "here")
    assert len(str(refused.value)) < 400


def test_arrays_that_are_no_windows_of_the_vocabularys_tokens_are_refused():
    codec = codec_of(Vocabulary(kind="bytes"))
    short = Field(shape=(7,), dtype="int32", low=0, high=256)
    for spec in ({}, codec.spec | {"target": short}, codec.spec | {"tokens": dataclasses.replace(codec.spec["tokens"], high=255)}):
        with pytest.raises(UserError, match=r"an example"):
            dataclasses.replace(codec, spec=spec)
    with pytest.raises(UserError, match="image data have no vocabulary"):
        Codec.from_json(codec.to_json() | {"kind": "image"})


@pytest.fixture(scope="module")
def gpt2s():
    if importlib.util.find_spec(gpt2.PACKAGE) is None:
        pytest.skip("GPT-2's files are not installed")
    return Vocabulary(kind="gpt2", merges=gpt2.merges(""))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (
            "Once upon a time, there was a little girl named Lily.\n\nShe'll say <|endoftext|>  twice.",
            "7454 2402 257 640 11 612 373 257 1310 2576 3706 20037 13 198 198 3347 1183 910 1279 91 437 1659 5239 91 29 220 5403 13",
        ),
        (" naïve café — 東京 🙂\t\r\n  1234.5", "41492 40304 851 10545 251 109 12859 105 32485 197 201 198 220 1105 2682 13 20"),
    ],
)
def test_gpt2s_tokens_are_those_that_tiktoken_gives(text, tokens, gpt2s):
    assert gpt2s.encode(text).tolist() == [int(token) for token in tokens.split()]
    assert gpt2s.decode(gpt2s.encode(text)) == text


def test_gpt2s_numbers_are_those_of_its_encoder(gpt2s):
    encoder = json.loads((gpt2._folder("") / "encoder.json").read_text("utf-8"))
    assert (gpt2s.size, gpt2s.end) == (50257, 50256) == (len(encoder), encoder.pop("<|endoftext|>"))
    assert bpe.names(gpt2s.merges) == encoder


def test_gpt2s_files_that_are_missing_or_others_are_refused_with_the_cure(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"vocab.bpe cannot be read \(No such file.*\n.*config.data.files"):
        gpt2.merges(str(tmp_path))
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\na b\n")
    with pytest.raises(UserError, match=r"vocab.bpe is not GPT-2's \(its SHA-256 does not begin with 1ce1664773c50f3e\)"):
        gpt2.merges(str(tmp_path))
    monkeypatch.setattr(gpt2, "PACKAGE", "no_such_package")
    with pytest.raises(UserError, match=r"needs GPT-2\'s vocab.bpe and encoder.json:\n.*tinygen.gpt2..*config.data.files"):
        gpt2.merges("")
