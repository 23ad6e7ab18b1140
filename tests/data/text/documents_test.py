"""Documents in plain files: where one begins and ends, read piece by piece, and files that are none."""

import numpy as np
import pytest

from tinygen.data.text import documents
from tinygen.data.text import files as text_files
from tinygen.errors import UserError
from tinygen.media import bpe
from tinygen.media.vocabulary import Vocabulary

MARKER = "<|endoftext|>"


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(documents, "PIECE", 64)


def find(path, marker, pattern="*.txt"):
    return documents.find(str(path), marker, pattern)


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
    found = find(path, MARKER)
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
    assert whole(find(tmp_path, "")) == ["1", "2", f"3 {MARKER} 3"]
    assert whole(find(tmp_path, MARKER)) == ["1", "2", "3", "3"]


def test_what_lies_beside_text_files_is_counted_by_kind(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "elsewhere").symlink_to(tmp_path / "sub")
    (tmp_path / "gone.txt").symlink_to("nowhere")
    for name in ("a.txt", "B.TXT", "c.md", "sub/d.md", "README", ".hidden", "sub/.git"):
        written(tmp_path / name, "words")
    found = find(tmp_path, "")
    assert list(found.digests) == ["B.TXT", "a.txt"]
    assert found.passed_over == ["passed over: 2 .md, 1 without an extension, 2 hidden, 1 links to folders, 1 that are not regular files"]
    assert find(tmp_path / "c.md", "").passed_over == []


@pytest.fixture
def mixed(tmp_path):
    """A folder as programmers have it."""
    for name in (".git/config", "src/.cache/x.py", "src/a.py", "src/B.PY", "src/deep/c.py", "README.md", "notes.txt", "Makefile"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        written(tmp_path / name, name)
    written(tmp_path / "logo.png", b"\x89PNG\r\n\x1a\n")
    written(tmp_path / "a.out", b"\x7fELF\0\0")
    written(tmp_path / "long", "x" + "é" * text_files.START)  # a character lies across where it stops looking
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "files"),
    [
        ("*.py", ["src/B.PY", "src/a.py", "src/deep/c.py"]),
        ("*.TXT, *.md", ["README.md", "notes.txt"]),
        ("makefile,[ab].py", ["Makefile", "src/B.PY", "src/a.py"]),
        ("", ["Makefile", "README.md", "long", "notes.txt", "src/B.PY", "src/a.py", "src/deep/c.py"]),
    ],
)
def test_a_pattern_chooses_files_by_name_and_none_all_that_are_text_but_never_hidden_ones(mixed, pattern, files):
    assert list(find(mixed, "", pattern).digests) == files


def test_without_a_pattern_files_that_are_not_text_are_counted_and_with_one_refused(mixed):
    assert find(mixed, "", "").passed_over == ["passed over: 2 hidden, 2 that are not UTF-8 text ('a.out', 'logo.png')"]
    with pytest.raises(UserError, match=r"logo.png: byte 0 is not UTF-8"):
        whole(find(mixed, "", "*.png"))


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("*.rst", "no file in this folder matches config.data.pattern=*.rst; passed over: 3 .py, 2 without an extension, 1 "),
        ("src/*.py", "config.data.pattern=src/*.py matches names at any depth, such as *.py: give the folder as config.data.path"),
    ],
)
def test_a_pattern_that_matches_nothing_is_refused_with_the_endings_that_are_there(mixed, pattern, said):
    with pytest.raises(UserError) as refused:
        find(mixed, "", pattern)
    assert said in str(refused.value)


def test_a_folder_without_text_is_refused(tmp_path):
    written(tmp_path / "a.out", b"\0")
    with pytest.raises(UserError, match=r"no file in this folder is text in UTF-8; passed over: 1 that are not UTF-8 text \('a.out'\)"):
        find(tmp_path, "", "")


def test_a_file_is_read_whatever_its_name(mixed):
    assert whole(find(mixed / "src" / "a.py", "")) == ["src/a.py"]


def test_a_byte_order_mark_is_no_part_of_a_document_and_utf_16_is_refused(tmp_path):
    assert whole(find(written(tmp_path / "a.txt", "\ufeffone"), "")) == ["one"]
    (tmp_path / "b.txt").write_text("two", "utf-16")
    with pytest.raises(UserError, match=r"b.txt is UTF-16, not UTF-8: save it as UTF-8$"):
        find(tmp_path, "")


def test_the_content_is_that_of_the_files_not_their_names(tmp_path):
    one, same, other = (written(tmp_path / f"{name}.txt", text) for name, text in {"1": "a b", "2": "a b", "3": "a c"}.items())
    assert find(one, "").content == find(same, "").content != find(other, "").content


WORDS = "Once upon a time, it's said:\n\n  there was  \n a ünïcödé   thing; 12 345\t— and…\n" * 20


@pytest.mark.parametrize("text", [WORDS, WORDS.replace(" ", "\n"), "東京" * 300, "é" * 301, " " * 500, "x" * 500, "a" + "\n" * 300 + "b"])
def test_what_is_read_in_pieces_is_what_was_written(text, tmp_path, small):
    content = f"x{text}x"
    path = written(tmp_path / "a.txt", f"{content}{MARKER}{content}")
    found = find(path, MARKER)
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
        (b"x" * 100 + b" \xff\xfe", "byte 101 is not UTF-8"),
        ("é".encode() * 100 + b" \xc3", "byte 201 is not UTF-8"),
        ("words ".encode("utf-16-le") * 50, "byte 1 is zero"),
        ("é " * 60 + "\0", "byte 180 is zero"),
    ],
    ids=range(5),
)
def test_a_file_that_is_no_text_is_named_with_the_byte(content, said, tmp_path, small):
    path = written(tmp_path / "a.bin", content)
    with pytest.raises(UserError, match=rf"a.bin: {said}"):
        whole(find(path, MARKER))


@pytest.mark.parametrize(
    ("content", "said"), [("", "it is empty"), (" \n\t", "only white space"), (f"{MARKER}\n{MARKER}", f"white space and '{MARKER}'")]
)
def test_a_file_without_documents_is_refused(content, said, tmp_path):
    path = written(tmp_path / "a.txt", content)
    with pytest.raises(UserError) as refused:
        find(path, MARKER)
    assert str(refused.value).startswith(f"config.data.path={path}: no documents: ")
    assert said in str(refused.value)


def test_a_path_that_leads_to_no_text_is_refused(tmp_path):
    for path, said in {
        "": "is empty: give a text file",
        str(tmp_path / "no"): "no such file",
        str(tmp_path): r"no file in this folder matches config.data.pattern=\*.txt",
    }.items():
        with pytest.raises(UserError, match=said):
            find(path, MARKER)


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten", "eight\nnine\nten"),
        ("one two three four five six seven eight nine ten", "eight nine ten"),
        ("東" * 10, "東" * 3),
    ],
)
def test_of_a_lone_document_the_last_part_can_be_held_out_from_a_line_or_a_word_on(text, last, tmp_path):
    halves = find(written(tmp_path / "a.txt", text), "").halved(0.25)
    first, second = whole(halves)
    assert second == last
    assert first == text[: -len(last)].rstrip()


def test_a_lone_line_is_not_cut_in_half_for_a_twentieth(tmp_path):
    halves = find(written(tmp_path / "a.txt", "x" * 500 + "\n" + "y" * 500), "").halved(0.05)
    assert whole(halves) == ["x" * 500 + "\n" + "y" * 450, "y" * 50]


@pytest.mark.parametrize("now", ["shorter", "something else that is longer than it was"])
def test_a_file_that_changes_while_it_is_read_is_refused(now, tmp_path, small):
    path = tmp_path / "a.txt"
    found = find(written(path, "one two three " * 9), "")
    pieces = found.pieces([0])
    next(pieces)
    path.write_text(now)
    with pytest.raises(UserError, match=r"a.txt has (changed|become shorter) while it was read"):
        list(pieces)
    with pytest.raises(UserError, match=r"a.txt has changed while it was read"):
        list(found.pieces([0]))


@pytest.mark.parametrize(("marker", "said"), [("\udcff", "is not valid text"), ("é" * 200, "has 400 bytes; the limit is 256")])
def test_a_marker_that_can_be_none_is_refused(marker, said, tmp_path):
    with pytest.raises(UserError, match=f"config.data.marker.* {said}"):
        find(written(tmp_path / "a.txt", "one"), marker)


def test_a_document_of_one_letter_is_too_short_for_two_parts(tmp_path):
    with pytest.raises(UserError, match=r"a.txt: its only document, of 1 bytes, is too short"):
        find(written(tmp_path / "a.txt", "x"), "").halved(0.1)
