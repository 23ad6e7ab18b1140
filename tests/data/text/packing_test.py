"""Windows of a stream: each a function of its number alone, and nothing is predicted twice, left out, or across documents."""

import numpy as np
import pytest

from tinygen.data.codec import Codec, Field
from tinygen.data.source import check_batch
from tinygen.data.text.packing import Stream, windows
from tinygen.data.text.prompt import Prompt
from tinygen.errors import UserError
from tinygen.media import Text
from tinygen.media.vocabulary import Vocabulary

WORDS = Vocabulary(kind="bytes")
E = WORDS.end
SIZES = [3, 1, 7, 12, 2, 4]


def stream(sizes=SIZES):
    """Documents of 1, 2, 3, ..., the tokens of the second one from 101 on, and so on."""
    rows = [[E, *(np.arange(size) % 100 + 1)] for size in sizes]
    starts = np.cumsum([0, *map(len, rows)])[:-1]
    return Stream(tokens=np.concatenate([*rows, [E]]).astype(np.uint16), starts=starts.astype(np.int64), bytes=sum(sizes))


def all_of(cut):
    return cut.take(np.arange(len(cut)))


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("length", [1, 2, 4, 5, 16, 100])
def test_every_token_but_the_first_is_predicted_once_in_order(length, pack):
    made = stream()
    batch = all_of(windows(made, length, E, pack))
    assert {key: (array.dtype, array.shape[1:]) for key, array in batch.items()} == dict.fromkeys(batch, (np.int32, (length,)))
    there = batch["segment"] > 0
    np.testing.assert_array_equal(batch["target"][there], made.tokens[1:])
    np.testing.assert_array_equal(batch["tokens"][there], made.tokens[:-1])
    assert set(batch["tokens"][~there]) | set(batch["target"][~there]) <= {E}
    Text(WORDS).check(batch, {})


@pytest.mark.parametrize("pack", [True, False])
def test_a_window_is_the_same_whatever_is_asked_beside_it(pack):
    cut = windows(stream(), 4, E, pack)
    whole = all_of(cut)
    for index in range(len(cut)):
        for key, row in cut.take(np.asarray([index])).items():
            np.testing.assert_array_equal(row[0], whole[key][index])
    shuffled = np.random.default_rng(0).permutation(len(cut))
    np.testing.assert_array_equal(cut.take(shuffled)["tokens"], whole["tokens"][shuffled])


def test_a_packed_window_by_hand():
    batch = windows(stream(), 8, E, pack=True).take(np.asarray([0]))
    assert batch["tokens"].tolist() == [[E, 1, 2, 3, E, 1, E, 1]]
    assert batch["target"].tolist() == [[1, 2, 3, E, 1, E, 1, 2]]
    assert batch["segment"].tolist() == [[1, 1, 1, 1, 2, 2, 3, 3]]


def test_a_window_that_begins_within_a_document_by_hand():
    batch = windows(stream(), 5, E, pack=True).take(np.asarray([1, 6]))
    assert batch["tokens"].tolist() == [[1, E, 1, 2, 3], [E, 1, 2, 3, 4]]
    assert batch["segment"].tolist() == [[1, 2, 2, 2, 2], [1, 1, 1, 1, 1]]


def test_unpacked_each_document_begins_a_window_and_continues_in_further_ones():
    batch = all_of(windows(stream([3, 9]), 4, E, pack=False))
    assert batch["tokens"].tolist() == [[E, 1, 2, 3], [E, 1, 2, 3], [4, 5, 6, 7], [8, 9, E, E]]
    assert batch["target"].tolist() == [[1, 2, 3, E], [1, 2, 3, 4], [5, 6, 7, 8], [9, E, E, E]]
    assert batch["segment"].tolist() == [[1] * 4, [1] * 4, [1] * 4, [1, 1, 0, 0]]


@pytest.mark.parametrize("pack", [True, False])
def test_the_share_of_padding_is_what_is_counted(pack):
    cut = windows(stream(), 4, E, pack)
    assert cut.padding == pytest.approx(np.mean(all_of(cut)["segment"] == 0))


def test_only_its_own_rows_are_read():
    class Watched(np.ndarray):
        read = 0

        def __getitem__(self, places):
            Watched.read += np.size(places)
            return np.asarray(self)[places]

    made = stream([10**6])
    cut = windows(Stream(tokens=made.tokens.view(Watched), starts=made.starts, bytes=1), 100, E, pack=True)
    cut.take(np.asarray([7, 90]))
    assert Watched.read == 2 * 101


def codec(length):
    field = Field(shape=(length,), dtype="int32", low=0, high=E)
    spec = {"tokens": field, "target": field, "segment": Field(shape=(length,), dtype="int32", low=0, high=length)}
    return Codec(medium=Text(WORDS), spec=spec, conditions=(Prompt(WORDS),))


def test_a_first_batch_of_text_is_checked():
    batch = all_of(windows(stream(), 8, E, pack=True))
    check_batch(batch, codec(8))
    other = batch["tokens"].copy()
    other[0, 3] = E + 1
    back, gap, late, wrong = (batch[key].copy() for key in ("segment", "segment", "segment", "target"))
    back[0] = [1, 1, 1, 1, 2, 2, 1, 1]
    gap[0] = [1, 1, 1, 1, 2, 2, 4, 4]
    late[0] = [0, 0, 1, 1, 1, 1, 1, 1]
    wrong[0, 0] = 9
    refused = [({"tokens": other}, "another vocabulary's"), ({"segment": back}, "decreases"), ({"segment": gap}, "skips a number")]
    refused += [({"segment": late}, "resumes after padding"), ({"target": wrong}, "must be the token that follows")]
    for change, said in refused:
        with pytest.raises(UserError, match=said):
            check_batch(batch | change, codec(8))


def test_what_is_shown_marks_where_a_document_ends():
    text = "The end.⟨end⟩Once"
    tokens = np.concatenate([WORDS.encode("The end."), [E], WORDS.encode("Once"), [E, E]])
    segment = np.asarray([*[1] * 8, *[2] * 5, 0, 0])
    assert Text(WORDS).of_batch({"tokens": tokens[None], "segment": segment[None]}, None) == [text]
