"""Tokens on the disk: made once, whole or not there, and made again where they are not what was written."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tinygen.data.text import tokens
from tinygen.data.text.documents import Texts
from tinygen.data.text.packing import windows
from tinygen.errors import UserError
from tinygen.media.vocabulary import Vocabulary
from tinygen.system import cache

TEXTS = Texts(["one", "naïve — two", "three"])
FACTS = {"content": "abc"}
BYTES = Vocabulary(kind="bytes")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tinygen" / "tokens"


def files(home):
    return sorted(home.iterdir())


def stored(documents=TEXTS, vocabulary=BYTES, **facts):
    return tokens.stored(documents, vocabulary, FACTS | facts, "words")


class Gone(Texts):
    """Documents that nobody may read."""

    def pieces(self, indices):
        raise AssertionError("tokenised again")


def check(stream, vocabulary=BYTES):
    rows = [[vocabulary.end, *vocabulary.encode(text)] for text in TEXTS.texts]
    [whole] = windows(stream, stream.predicted, vocabulary.end, pack=True).take(np.arange(1))["target"]
    np.testing.assert_array_equal([vocabulary.end, *whole], [*np.concatenate(rows), vocabulary.end])
    np.testing.assert_array_equal(stream.starts, np.cumsum([0, *map(len, rows)])[:-1])
    assert stream.bytes == sum(len(text.encode()) for text in TEXTS.texts)


@pytest.mark.parametrize("together", [1, 2**22])
def test_documents_become_one_stream_with_ends_between_them(together, monkeypatch):
    monkeypatch.setattr(tokens, "TOGETHER", together)
    check(stored())


def test_a_second_call_reads_what_the_first_has_written(home):
    first, again = stored(), stored(Gone(TEXTS.texts))
    np.testing.assert_array_equal(first.tokens, again.tokens)
    assert len(files(home)) == 1
    assert isinstance(again.tokens.base, np.memmap)


def test_other_content_and_another_vocabulary_have_files_of_their_own(home):
    stored()
    stored(content="xyz")
    characters = Vocabulary(kind="characters", characters="ï")
    check(stored(vocabulary=characters), characters)
    assert len(files(home)) == 3


def test_the_smallest_type_that_holds_all_tokens_is_written():
    assert stored().tokens.dtype == np.uint8  # 257 tokens, of which one byte's is in no text
    few = Vocabulary(kind="characters")  # the same 257
    assert stored(vocabulary=few).tokens.dtype == np.uint8
    check(stored(vocabulary=few), few)
    assert stored(vocabulary=Vocabulary(kind="characters", characters="ï")).tokens.dtype == np.uint16  # 258
    many = Vocabulary(kind="characters", characters="".join(map(chr, range(0x20000, 0x20000 + 65_300))))
    assert stored(vocabulary=many).tokens.dtype == np.uint32
    assert tokens._dtype(Vocabulary(kind="characters", characters=many.characters[: 2**16 - 257])) == np.uint16


def test_bytes_of_characters_without_a_token_are_counted():
    assert stored(vocabulary=Vocabulary(kind="characters", characters="ï")).fallback == 3
    assert stored(vocabulary=Vocabulary(kind="characters", characters="ï—")).fallback == 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-9], lambda content: content[:100], lambda content: b"", lambda content: content + b"x",
        lambda content: content[:5000] + b"\xff" + content[5001:], lambda content: content[:4100] + b"?" + content[4101:],
        lambda content: b"[" * 10**5, lambda content: b"{}".ljust(4096) + content[4096:],
    ],
    ids=range(8),
)  # fmt: skip
def test_a_torn_file_is_found_and_made_again(damage, home, caplog):
    stored()
    [path] = files(home)
    whole = path.read_bytes()
    path.write_bytes(damaged := damage(whole))
    check(stored())
    assert path.read_bytes() == whole
    assert ("made again" in caplog.text) == (damaged != whole)


def test_a_file_of_something_else_under_this_name_is_made_again(home):
    stored()
    [path] = files(home)
    whole = path.read_bytes()
    stored(Texts(["another"]), content="xyz")
    [other] = set(files(home)) - {path}
    path.write_bytes(other.read_bytes())
    check(stored())
    assert path.read_bytes() == whole


def test_what_is_interrupted_leaves_nothing_and_what_was_killed_is_cleared_away(home):
    class Breaking(Texts):
        def pieces(self, indices):
            yield "begun", True
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stored(Breaking(TEXTS.texts))
    assert files(home) == []
    stored()
    [path] = files(home)
    path.rename(left := home / f"{path.name}.x1.new")
    check(stored())
    assert files(home) == [path]
    assert not left.exists()


def test_a_folder_that_cannot_be_written_is_named_with_the_cure(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"tokens of words cannot be kept in .*file.*: make room, or name another folder in XDG_CACHE_HOME"):
        stored()


def test_of_several_at_once_one_tokenises_and_all_read_the_same(home):
    class Counted(Texts):
        read = 0

        def pieces(self, indices):
            Counted.read += 1
            return super().pieces(indices)

    with ThreadPoolExecutor() as pool:  # a lock of a file that each has opened tells them apart as it does processes
        made = list(pool.map(lambda _: stored(Counted(["word " * 2000] * 50)).tokens.tobytes(), range(4)))
    assert len(set(made)) == Counted.read == len(files(home)) == 1


def test_where_there_are_no_locks_the_tokens_are_whole_all_the_same(home, monkeypatch):
    monkeypatch.setattr(cache.fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))))
    check(stored())
    assert len(files(home)) == 1


def test_tokens_beyond_the_limit_are_deleted_unless_they_are_read_and_it_is_said(home, monkeypatch, caplog):
    monkeypatch.setattr(tokens, "KEPT", 1)
    with caplog.at_level("INFO"):
        first = stored()
        second = stored(content="xyz")
    assert len(files(home)) == 2  # both are mapped
    assert "keeps at most" not in caplog.text
    del second
    with caplog.at_level("INFO"):
        third = stored(content="third")
    assert len(files(home)) == 2
    assert "deleted the least recently used 1 file of tokens" in caplog.text
    check(first)
    check(third)
    check(stored(Gone(TEXTS.texts)))  # the first is still there


def test_tokens_that_are_read_count_as_used(home, monkeypatch):
    for content in "ab":
        stored(content=content)
    for path in files(home):
        os.utime(path, (1e9, 1e9))
    stored(content="a")
    monkeypatch.setattr(tokens, "KEPT", 2 * files(home)[0].stat().st_size)
    stored(content="c")
    stored(Gone(TEXTS.texts), content="a")
    assert len(files(home)) == 2
