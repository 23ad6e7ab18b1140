import dataclasses
import errno
import json
import re
import unicodedata

import numpy as np
import pytest
from PIL import Image

from tinygen import config
from tinygen.data.captions.tokenized import tokenized
from tinygen.data.images import folder_metadata
from tinygen.data.images.folder import folder
from tinygen.data.labels import Labels
from tinygen.errors import UserError

DEFAULTS = {key: value for key, value in config.base(data=dict(name="folder")).data.to_dict().items() if key not in ("name", "overfit")}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def ten(tmp_path):
    put(tmp_path, *(f"{number}.png" for number in range(10)))
    return tmp_path


def put(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16)).save(root / name)


def source(root, **changes):
    return folder(**{**DEFAULTS, "path": str(root), "size": (8,), **changes})


def labels(made):
    return {
        picture.name: made.codec.labels[number]
        for split in made.splits.values()
        for picture, number in zip(split.pictures, split.labels, strict=True)
    }


def captions(made):
    """{name: caption} of all images."""
    return {
        picture.name: said
        for split in made.splits.values()
        for picture, said in zip(split.pictures, split.captions(np.arange(len(split))), strict=True)
    }


def describe(root, *entries):
    (root / "metadata.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))


def test_a_column_of_the_metadata_becomes_the_label_numbers_in_their_order(ten):
    describe(ten, *(dict(file_name=f"{number}.png", count=9 + number % 3, kind="ab"[number % 2], ok=number > 4) for number in range(10)))
    made = source(ten, label="count")
    assert made.codec.labels == ("9", "10", "11")
    assert labels(made) == {f"{number}.png": str(9 + number % 3) for number in range(10)}
    assert labels(source(ten, label="kind"))["3.png"] == "b"
    assert source(ten, label="ok").codec.labels == ("false", "true")
    with pytest.raises(UserError, match="did you mean 'count'"):
        source(ten, label="counts")


def test_a_label_that_some_images_lack_is_refused(ten):
    describe(ten, *(dict(file_name=f"{number}.png", kind=None if number == 7 else "a") for number in range(8)))
    with pytest.raises(UserError, match=r"3 of 10 images have no such value in a metadata.jsonl or metadata.csv, for example '7\.png'"):
        source(ten, label="kind")
    describe(ten, dict(file_name="0.png", kind=[1]))
    with pytest.raises(UserError, match=r"metadata\.jsonl', line 1: 'kind' is not a label"):
        source(ten, label="kind")
    with pytest.raises(UserError, match=r"unknown config\.data\.label 'sort'"):
        source(ten, label="sort")


def test_captions_come_from_text_beside_an_image_or_from_metadata_and_may_be_missing(ten):
    (ten / "1.txt").write_text("\ufeff  one, ünïcode\n", "utf-8")
    (ten / "2.txt").touch()
    describe(ten, dict(file_name="3.png", text="three"), dict(file_name="./4.png", caption=" four "), dict(file_name="5.png", text=None))
    put(ten, "sub/a.png")
    describe(ten / "sub", dict(file_name="a.png", text="in the metadata's own folder"), dict(file_name="../6.png", text="six"))
    (ten / "3.txt").write_text("metadata come first")
    (ten / "5.txt").write_text("  \n")
    made = source(ten)
    said = {name: text for name, text in captions(made).items() if text}
    expected = {"1.png": "one, ünïcode", "3.png": "three", "4.png": "four", "sub/a.png": "in the metadata's own folder", "6.png": "six"}
    assert said == expected
    assert len(captions(made)) == 11
    assert made.summary[1:] == (
        "captions for 4 of 10 training images and 1 of 1 held out; 2 more are blank",
        "1 caption file not read: a metadata file takes precedence over img.txt, and img.txt over img.caption",
    )


def test_entries_about_images_that_are_not_there_are_counted(ten):
    (ten / "bad.png").write_text("words")
    describe(ten, *(dict(file_name=name, text="x") for name in ("gone.png", "0.png", "sub/gone.png", "bad.png", "../0.png")))
    made = source(ten)
    assert "captions for 1 of 9 training images and 0 of 1 held out" in made.summary
    assert made.summary[-1] == (
        "3 of 5 entries name no image that is there (metadata.jsonl: '../0.png', 'gone.png', 'sub/gone.png'); "
        "a file_name is relative to the folder of its metadata file"
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"file_name": "0.png"', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'["0.png"]', 'not a JSON object with a "file_name"'),
        (b'{"text": "a cat"}', 'not a JSON object with a "file_name"'),
        (b'{"file_name": 3}', 'not a JSON object with a "file_name"'),
        (b'{"file_name": "1.png", "text": ["a"]}', '"text" is not a string'),
        (b'{"file_name": "1.png", "caption": 7}', '"caption" is not a string'),
        (b'{"file_name": "./0.png"}', "'0.png' is described a second time"),
    ],
)
def test_a_bad_line_of_metadata_is_named(ten, line, said):
    (ten / "metadata.jsonl").write_bytes(b'{"file_name": "0.png"}\n\n' + line + b"\n")
    with pytest.raises(UserError, match=rf"{re.escape(str(ten))}/metadata\.jsonl', line 3: .*{re.escape(said)}"):
        source(ten)


def tabulate(root, text):
    (root / "metadata.csv").write_bytes(text if isinstance(text, bytes) else text.encode())


def test_a_table_says_what_lines_of_json_would(ten):
    put(ten, "sub/a.png")
    tabulate(ten, '\ufefffile_name, text ,caption,kind,\r\n0.png,"a red, round\nthing",,x,1\r\n\r\n./1.png,,one,y,2\r\n2.png,,,"7",3\r\n')
    tabulate(ten / "sub", "kind,file_name\nz,a.png\n")
    made = source(ten)
    assert {name: text for name, text in captions(made).items() if text} == {"0.png": "a red, round\nthing", "1.png": "one"}
    assert "captions for 2 of 10 training images and 0 of 1 held out" in made.summary
    with pytest.raises(UserError, match=r"7 of 11 images have no such value in a metadata.jsonl or metadata.csv"):
        source(ten, label="kind")
    for number in range(3, 10):
        (ten / f"{number}.png").unlink()
    assert labels(source(ten, label="kind")) == {"0.png": "x", "1.png": "y", "2.png": "7", "sub/a.png": "z"}


@pytest.mark.parametrize(
    ("content", "line", "said"),
    [
        ("image,text\n0.png,a", 1, "no column \"file_name\" among 'image', 'text'"),
        ("file_name;text\n0.png;a", 1, "no column \"file_name\" among 'file_name;text'"),
        ("file_name,text,text\n0.png,a,b", 1, "two columns are named 'text'"),
        ("file_name,text\n0.png,a cat, sitting", 2, "3 cells, where the first row names 2 columns"),
        ("file_name,text\n0.png", 2, "1 cells, where the first row names 2 columns"),
        ('file_name,text\n0.png,"a\ncat"\n,b', 4, "no file_name"),
        ('file_name,text\n0.png,"a cat', 2, "not CSV (unexpected end of data)"),
        (b"file_name,text\n0.png,\xff", 2, "not CSV (line 2 is not UTF-8)"),
        ("file_name\n0.png\n./0.png", 3, "'0.png' is described a second time, first in 'metadata.csv'"),
    ],
)
def test_a_bad_row_of_a_table_is_named(ten, content, line, said):
    tabulate(ten, content)
    with pytest.raises(UserError, match=rf"{re.escape(str(ten))}/metadata\.csv', line {line}: {re.escape(said)}"):
        source(ten)


def test_an_image_is_described_by_one_metadata_file_alone(ten):
    describe(ten, dict(file_name="0.png", text="a"))
    tabulate(ten, "file_name,text\n1.png,b\n")
    assert [captions(source(ten))[name] for name in ("0.png", "1.png")] == ["a", "b"]
    tabulate(ten, "file_name,text\n0.png,a\n")
    with pytest.raises(UserError, match=r"metadata.jsonl', line 1: '0.png' is described a second time, first in 'metadata.csv'"):
        source(ten)


def test_the_first_caption_that_is_not_blank_counts_metadata_then_txt_then_caption(ten):
    for name, words in {
        "0.txt": "txt", "0.caption": "caption", "1.txt": " ", "1.caption": "caption", "2.CAPTION": "as cameras write",
        "3.txt": "txt", "3.caption": "caption", "4.caption": "caption", "5.txt": "\n", "5.caption": "",
    }.items():  # fmt: skip
        (ten / name).write_text(words)
    (ten / "6.txt").write_bytes(b"\xff")
    (ten / "6.caption").write_text("caption")
    describe(
        ten, dict(file_name="3.png", text="metadata"), dict(file_name="4.png", text=" "), dict(file_name="7.png", text="", caption="c")
    )
    made = source(ten)
    said = [captions(made)[f"{number}.png"] for number in range(10)]
    assert said == ["txt", "caption", "as cameras write", "metadata", "caption", "", "caption", "c", "", ""]
    assert made.summary[1:] == (
        "captions for 6 of 9 training images and 1 of 1 held out; 1 more is blank",
        "1 caption file cannot be read: '6.txt' (not UTF-8 text)",
        "3 caption files not read: a metadata file takes precedence over img.txt, and img.txt over img.caption",
    )


def test_every_count_of_captions_is_of_images_that_are_used_and_captions_that_are_not_blank(ten):
    """However the captions are read, by the log or by a model."""
    for number in range(10):
        (ten / f"{number}.txt").write_text("" if number == 1 else "\u2003" if number == 2 else f"number {number}")
    (ten / "3.txt").write_bytes(b"\xff\xff")
    (ten / "bad.png").write_text("no image")
    (ten / "bad.txt").write_bytes(b"\xff")
    (ten / "alone.txt").write_text("beside no image")
    (ten / "README").write_text("words")
    (ten / "notes").write_text("words")
    made = source(ten)
    counts = [line for line in tokenized(made, tokens="bytes", length=8, vocabulary=0).summary if line.startswith("captions for")]
    held_out = sum(map(bool, made.splits["validation"].captions(np.arange(1))))
    assert counts == [
        f"captions for {7 - held_out} of 9 training images and {held_out} of 1 held out; 2 more are blank",
        f"captions for {7 - held_out} of 9 training images and {held_out} of 1 held out, as 256 tokens (bytes)",
    ]
    assert sum("'3.txt'" in line for line in made.summary) == 1
    assert not any("'bad.txt'" in line for line in made.summary)
    assert "passed over: 2 without an extension, 1 .txt beside no image" in made.summary


def test_a_byte_order_mark_is_no_part_of_what_is_written_about_an_image(ten):
    """At the start of a file, and of a value that was copied from one."""
    (ten / "0.txt").write_bytes("\ufeff zero".encode())
    (ten / "1.caption").write_bytes("\ufeffone".encode())
    entries = [dict(file_name="2.png", text="two"), dict(file_name="3.png", text="\ufeff three")]
    (ten / "metadata.jsonl").write_bytes(("\ufeff" + "\n".join(map(json.dumps, entries))).encode())
    tabulate(ten, '\ufeff"file_name",text\n4.png,four\n5.png,\ufefffive\n')
    said = captions(source(ten))
    assert [said[f"{number}.png"] for number in range(6)] == ["zero", "one", "two", "three", "four", "five"]


def test_what_is_written_in_utf_16_is_named_so(ten):
    (ten / "1.txt").write_text("one", "utf-16")
    assert "1 caption file cannot be read: '1.txt' (UTF-16, not UTF-8 text)" in source(ten).summary
    (ten / "metadata.jsonl").write_text('{"file_name": "2.png", "text": "two"}', "utf-16")
    with pytest.raises(UserError, match=r"metadata\.jsonl', line 1: not JSON \(line 1 is UTF-16, not UTF-8\)"):
        source(ten)


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_labels_that_differ_only_in_how_characters_are_composed_are_one(ten, form):
    kinds = [unicodedata.normalize("NFD" if number % 2 else "NFC", "caf\u00e9") if number < 6 else "tea" for number in range(10)]
    describe(ten, *(dict(file_name=f"{number}.png", kind=kind) for number, kind in enumerate(kinds)))
    codec = source(ten, label="kind").codec
    assert codec.labels == ("caf\u00e9", "tea")
    assert codec.conditions[0].index(unicodedata.normalize(form, "caf\u00e9")) == 0
    stored = dataclasses.replace(codec, conditions=(Labels((unicodedata.normalize("NFD", "caf\u00e9"), "tea")),))  # by earlier versions
    assert stored.conditions[0].index(unicodedata.normalize(form, "caf\u00e9")) == 0


def test_where_no_image_has_a_caption_the_refusal_says_what_became_of_those_that_are_written(ten):
    describe(ten, *(dict(file_name=f"photos/{number}.png", text="x") for number in range(10)))
    with pytest.raises(UserError) as refused:
        tokenized(source(ten), tokens="bytes", length=8, vocabulary=0)
    first, second = str(refused.value).splitlines()
    assert "no training image has a caption" in first
    assert second == (
        "Here: 10 of 10 entries name no image that is there (metadata.jsonl: 'photos/0.png', 'photos/1.png', 'photos/2.png', ...); "
        "a file_name is relative to the folder of its metadata file"
    )
    describe(ten, *(dict(file_name=f"photos/{number}.png", kind="x") for number in range(10)))
    with pytest.raises(UserError, match=r"10 of 10 images have no such value .*\n10 of 10 entries name no image that is there"):
        source(ten, label="kind")


def test_a_caption_that_cannot_be_read_is_named_once_and_counts_as_none(ten, caplog):
    for number in range(5):
        (ten / f"{number}.txt").write_text(f"number {number}")
    (ten / "1.txt").write_bytes(b"\xff\xff")
    (ten / "2.txt").write_bytes("two".encode("utf-16-le"))
    made = source(ten)
    assert captions(made) == captions(made) == {f"{number}.png": f"number {number}" if number in (0, 3, 4) else "" for number in range(10)}
    assert [line for line in made.summary if ".txt" in line] == [
        "2 caption files cannot be read: '1.txt' (not UTF-8 text), '2.txt' (not UTF-8 text: it holds a zero byte)"
    ]
    assert not caplog.records


def test_metadata_that_cannot_be_read_are_named(ten, monkeypatch):
    describe(ten)

    def refused(path, *arguments, **keywords):
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(folder_metadata, "open", refused, raising=False)
    with pytest.raises(UserError, match=r"metadata\.jsonl' cannot be read: Permission denied"):
        source(ten)


def test_a_caption_beside_a_picture_may_have_capital_letters_as_cameras_write(tmp_path):
    for number in range(3):
        Image.new("RGB", (20, 20), (number, 0, 0)).save(tmp_path / f"IMG{number}.PNG")
        (tmp_path / f"IMG{number}.TXT").write_text(f"picture {number}")
    assert source(tmp_path).splits["train"].captions(np.arange(1))[0].startswith("picture ")
