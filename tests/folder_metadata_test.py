import errno
import json
import re

import numpy as np
import pytest
from PIL import Image

from tinygen import config
from tinygen.data import folder_metadata
from tinygen.data.folder import folder
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
    return folder(**{**DEFAULTS, "path": str(root), "size": 8, **changes})


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
    with pytest.raises(UserError, match=r"3 of 10 images have no such value in a metadata.jsonl, for example '7\.png'"):
        source(ten, label="kind")
    describe(ten, dict(file_name="0.png", kind=[1]))
    with pytest.raises(UserError, match=r"metadata\.jsonl', line 1: 'kind' is no label"):
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
    made = source(ten)
    said = {name: text for name, text in captions(made).items() if text}
    expected = {"1.png": "one, ünïcode", "3.png": "three", "4.png": "four", "sub/a.png": "in the metadata's own folder", "6.png": "six"}
    assert said == expected
    assert len(captions(made)) == 11
    assert "captions for 5 of 11 images" in made.summary


def test_entries_about_images_that_are_not_there_are_counted(ten):
    (ten / "bad.png").write_text("words")
    describe(ten, *(dict(file_name=name, text="x") for name in ("gone.png", "0.png", "sub/gone.png", "bad.png", "../0.png")))
    made = source(ten)
    assert "captions for 1 of 10 images" in made.summary
    assert "3 entries of metadata.jsonl files are about images that are not there" in made.summary


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


def test_a_caption_that_cannot_be_read_is_named_and_counts_as_none(ten, monkeypatch):
    warned = []
    monkeypatch.setattr(folder_metadata.logging, "warning", lambda message, *values: warned.append(message % values))
    before = captions(source(ten))
    (ten / "1.txt").write_bytes(b"\xff\xff")
    assert captions(source(ten)) == {**before, "1.png": ""}
    assert len(warned) == 1
    assert "1.txt' counts as no caption" in warned[0]


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
