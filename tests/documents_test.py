"""Documents in plain files: where one begins and ends, read piece by piece, and files that are none."""

import numpy as np
import pytest

from tinygen.data import bpe, documents
from tinygen.data.vocabulary import Vocabulary
from tinygen.errors import UserError

MARKER = "<|endoftext|>"


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(documents, "PIECE", 64)


def written(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def whole(found, indices=None):
    texts = []
    for text, begins in found.pieces(range(len(found)) if indices is None else indices):
        if begins:
            texts.append("")
        texts[-1] += text
    return texts


def test_documents_stand_between_markers_without_white_space_at_their_ends(tmp_path):
    path = written(tmp_path / "a.txt", f"\ufeffOne.\nTwo.\n{MARKER}\n{MARKER}\r\n  naïve {MARKER} \n last\n")
    found = documents.find(path, MARKER)
    assert whole(found) == ["One.\nTwo.", "naïve", "last"]
    assert whole(found, [2, 0]) == ["last", "One.\nTwo."]
    assert found.size == sum(len(text.encode()) for text in whole(found))


def test_without_a_marker_each_file_is_a_document_in_the_order_of_names(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / ".hidden").mkdir()
    for name, content in {
        "c.txt": f"3 {MARKER} 3",
        "b/2.txt": "2",
        "a.txt": "1",
        "a.md": "no",
        ".hidden/x.txt": "no",
        "d.txt": " \n",
    }.items():
        written(tmp_path / name, content)
    assert whole(documents.find(str(tmp_path), "")) == ["1", "2", f"3 {MARKER} 3"]
    assert whole(documents.find(str(tmp_path), MARKER)) == ["1", "2", "3", "3"]


def test_what_lies_beside_text_files_is_counted_by_kind(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "elsewhere").symlink_to(tmp_path / "sub")
    (tmp_path / "gone.txt").symlink_to("nowhere")
    for name in ("a.txt", "B.TXT", "c.md", "sub/d.md", "README", ".hidden", "sub/.git"):
        written(tmp_path / name, "words")
    assert list(documents.find(str(tmp_path), "").digests) == ["B.TXT", "a.txt"]
    said = "passed over: 2 .md, 1 without an extension, 2 hidden, 1 links to folders, 1 .txt that are not regular files"
    assert documents.passed_over(str(tmp_path)) == [said]
    assert documents.passed_over(str(tmp_path / "a.txt")) == documents.passed_over(str(tmp_path / "sub" / "none")) == []
    (tmp_path / "only").mkdir()
    written(tmp_path / "only" / "words", "no extension")
    with pytest.raises(UserError, match=r"there is no \.txt file in this folder; passed over: 1 without an extension"):
        documents.find(str(tmp_path / "only"), "")


def test_the_content_is_that_of_the_files_not_their_names(tmp_path):
    one, same, other = (written(tmp_path / f"{name}.txt", text) for name, text in {"1": "a b", "2": "a b", "3": "a c"}.items())
    assert documents.find(one, "").content == documents.find(same, "").content != documents.find(other, "").content


WORDS = "Once upon a time, it's said:\n\n  there was  \n a ünïcödé   thing; 12 345\t— and…\n" * 20


@pytest.mark.parametrize("text", [WORDS, WORDS.replace(" ", "\n"), "東京" * 300, "é" * 301, " " * 500, "x" * 500, "a" + "\n" * 300 + "b"])
def test_what_is_read_in_pieces_is_what_was_written(text, tmp_path, small):
    content = f"x{text}x"
    path = written(tmp_path / "a.txt", f"{content}{MARKER}{content}")
    found = documents.find(path, MARKER)
    assert whole(found) == [content, content]
    pieces = list(found.pieces([0]))
    assert [begins for _, begins in pieces] == [True] + [False] * (len(pieces) - 1)
    assert max(len(piece) for piece, _ in pieces) <= 64
    assert [begins for _, begins in documents.cut(content)][:2] == [True, False]
    assert "".join(piece for piece, _ in documents.cut(content)) == content


def test_where_pieces_meet_does_not_change_a_bpes_tokens(small):
    vocabulary = Vocabulary(kind="bpe", merges=bpe.train([WORDS], 500))
    pieces = [piece for piece, _ in documents.cut(WORDS)]
    assert len(pieces) > 10
    np.testing.assert_array_equal(np.concatenate(vocabulary.encode_many(pieces)), vocabulary.encode(WORDS))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"ab\0c", "byte 2 is zero"),
        (b"x" * 100 + b" \xff\xfe", "byte 101 is no UTF-8"),
        ("é".encode() * 100 + b" \xc3", "byte 201 is no UTF-8"),
        ("words ".encode("utf-16-le") * 50, "byte 1 is zero"),
        ("é " * 60 + "\0", "byte 180 is zero"),
    ],
    ids=range(5),
)
def test_a_file_that_is_no_text_is_named_with_the_byte(content, said, tmp_path, small):
    path = written(tmp_path / "a.bin", content)
    with pytest.raises(UserError, match=rf"a.bin: {said}"):
        whole(documents.find(path, MARKER))


@pytest.mark.parametrize(
    ("content", "said"), [("", "it is empty"), (" \n\t", "nothing but white space"), (f"{MARKER}\n{MARKER}", f"white space and '{MARKER}'")]
)
def test_a_file_without_documents_is_refused(content, said, tmp_path):
    path = written(tmp_path / "a.txt", content)
    with pytest.raises(UserError) as refused:
        documents.find(path, MARKER)
    assert str(refused.value).startswith(f"config.data.path={path}: there is no document, ")
    assert said in str(refused.value)


def test_a_path_that_leads_to_no_text_is_refused(tmp_path):
    for path, said in {"": "is empty: give a text file", str(tmp_path / "no"): "no such file", str(tmp_path): "no .txt file"}.items():
        with pytest.raises(UserError, match=said):
            documents.find(path, MARKER)


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten", "eight\nnine\nten"),
        ("one two three four five six seven eight nine ten", "eight nine ten"),
        ("東" * 10, "東" * 3),
    ],
)
def test_of_a_lone_document_the_last_part_can_be_held_out_from_a_line_or_a_word_on(text, last, tmp_path):
    halves = documents.find(written(tmp_path / "a.txt", text), "").halved(0.25)
    first, second = whole(halves)
    assert second == last
    assert first == text[: -len(last)].rstrip()


def test_a_lone_line_is_not_cut_in_half_for_a_twentieth(tmp_path):
    halves = documents.find(written(tmp_path / "a.txt", "x" * 500 + "\n" + "y" * 500), "").halved(0.05)
    assert whole(halves) == ["x" * 500 + "\n" + "y" * 450, "y" * 50]


@pytest.mark.parametrize("now", ["shorter", "something else that is longer than it was"])
def test_a_file_that_changes_while_it_is_read_is_refused(now, tmp_path, small):
    path = tmp_path / "a.txt"
    found = documents.find(written(path, "one two three " * 9), "")
    pieces = found.pieces([0])
    next(pieces)
    path.write_text(now)
    with pytest.raises(UserError, match=r"a.txt has (changed|become shorter) while it was read"):
        list(pieces)
    with pytest.raises(UserError, match=r"a.txt has changed while it was read"):
        list(found.pieces([0]))


@pytest.mark.parametrize(("marker", "said"), [("\udcff", "is no text"), ("é" * 200, "has 400 bytes: 256 are the most")])
def test_a_marker_that_can_be_none_is_refused(marker, said, tmp_path):
    with pytest.raises(UserError, match=f"config.data.marker.* {said}"):
        documents.find(written(tmp_path / "a.txt", "one"), marker)


def test_a_document_of_one_letter_is_too_short_for_two_parts(tmp_path):
    with pytest.raises(UserError, match=r"a.txt: its only document, of 1 bytes, is too short"):
        documents.find(written(tmp_path / "a.txt", "x"), "").halved(0.1)
