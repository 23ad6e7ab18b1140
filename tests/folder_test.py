import json
import os
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from tinygen import build, config
from tinygen.data.base import check_batch
from tinygen.data.folder import folder
from tinygen.errors import UserError

DEFAULTS = {key: value for key, value in config.base(data=dict(name="folder")).data.to_dict().items() if key not in ("name", "overfit")}
COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    home = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    return home / "tinygen" / "folders"


def put(root, *names, size=(16, 16), colour=(200, 100, 50)):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, colour).save(root / name)


def source(root, **changes):
    return folder(**{**DEFAULTS, "path": str(root), "size": 8, **changes})


def held(root, split="validation", **changes):
    return [each.name for each in source(root, **changes).splits[split].pictures]


def everything(made, split):
    return made.splits[split].take(np.arange(len(made.splits[split])))


def captions(made):
    """{name: caption} of all images."""
    return {
        picture.name: said
        for split in made.splits.values()
        for picture, said in zip(split.pictures, split.captions(np.arange(len(split))), strict=True)
    }


def labels(made):
    return {
        picture.name: made.codec.labels[number]
        for split in made.splits.values()
        for picture, number in zip(split.pictures, split.labels, strict=True)
    }


@pytest.fixture
def colours(tmp_path):
    """Twelve images of a colour each, in folders of the colour's name; no two alike."""
    for name, colour in COLOURS.items():
        for number in range(4):
            put(tmp_path, f"{name}/{number}.png", colour=tuple(max(0, part - number) for part in colour))
    return tmp_path


@pytest.fixture
def ten(tmp_path):
    put(tmp_path, *(f"{number}.png" for number in range(10)))
    return tmp_path


# Batches


def test_batches_hold_pixels_and_labels_as_the_codec_says(colours):
    made = source(colours)
    assert made.codec.labels == ("blue", "green", "red")
    for split in made.splits:
        batch = everything(made, split)
        check_batch(batch, made.codec)
        wanted = np.array([COLOURS[made.codec.labels[number]] for number in batch["label"]])
        np.testing.assert_array_equal(batch["x"].shape[1:], (8, 8, 3))
        np.testing.assert_allclose(made.codec.decode(batch["x"])[:, 0, 0], wanted, atol=3)
    first = next(made.batches("train", 8, seed=0))
    check_batch(first, made.codec)
    assert [len(first["x"]), first["label"].dtype] == [8, np.int32]


def test_a_batch_decodes_the_files_that_it_asks_for(ten):
    made = source(ten, channels=1)
    os.unlink(ten / made.splits["train"].pictures[3].name)
    assert made.splits["train"].take(np.array([2, 4, 2]))["x"].shape == (3, 8, 8, 1)


@pytest.mark.parametrize("change", ["vanished", "longer", "touched", "damaged"])
def test_a_file_that_changes_or_vanishes_later_is_named(ten, change):
    made = source(ten)
    path = ten / made.splits["train"].pictures[0].name
    before, content = path.stat(), path.read_bytes()
    if change == "vanished":
        path.unlink()
    elif change == "longer":
        put(ten, path.name, size=(30, 30), colour=(1, 2, 3))
    elif change == "damaged":
        path.write_bytes(bytes(len(content)))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    else:
        os.utime(path, ns=(0, 0))
    with pytest.raises(UserError, match=rf"{re.escape(str(path))}' has changed or vanished.*\n.*run the same command again"):
        made.splits["train"].take(np.array([0]))


def test_the_row_of_the_table_makes_it_with_all_defaults(colours):
    made = build.data_source(config.base(data=dict(name="folder", path=str(colours), overfit=2)))
    assert made.codec.spec["x"].shape == (64, 64, 3)
    assert len(made.splits["train"]) == 2
    assert not made.flip
    assert source(colours, flip=True).flip


def test_the_path_may_change_on_resume_but_no_other_key():
    keys = {key for key in DEFAULTS if config.may_change(f"data.{key}", config.base(data=dict(name="folder")))}
    assert keys == {"path"}


def test_options_reach_the_pixels(tmp_path):
    put(tmp_path, "a.png", "b.png", size=(16, 32), colour=(0, 0, 255))
    padded = source(tmp_path, fit="pad", background="red")
    pixels = padded.codec.decode(everything(padded, "train")["x"])[0]
    assert pixels[0, :, 0].tolist() == [255, 255, 0, 0, 0, 0, 255, 255]
    assert everything(source(tmp_path, channels=1), "train")["x"].shape == (1, 8, 8, 1)


# Splits


def test_a_share_of_the_images_is_held_out_whatever_the_order_or_the_place(tmp_path):
    put(tmp_path / "a", *(f"{number}.png" for number in range(40)))
    out = held(tmp_path / "a", validation=0.1)
    assert len(out) == 4
    assert not set(out) & set(held(tmp_path / "a", "train", validation=0.1))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert held(tmp_path / "b", validation=0.1) == out
    assert set(out) < set(held(tmp_path / "a", validation=0.3))


def test_images_that_are_added_do_not_reshuffle_the_others(tmp_path):
    put(tmp_path, *(f"{number}.png" for number in range(40)))
    before = set(held(tmp_path, validation=0.25))
    put(tmp_path, *(f"new {number}.png" for number in range(40)))
    after = set(held(tmp_path, validation=0.25))
    assert len(after) == 20
    old = {name for name in after if "new" not in name}
    assert old <= before or before <= old  # the line between them moves; nothing changes places
    assert len(before & old) >= 5


@pytest.mark.parametrize(("num", "share", "out"), [(2, 0.0, 1), (2, 0.99, 1), (10, 0.05, 1), (10, 0.11, 2), (100, 0.07, 7)])
def test_the_share_is_rounded_up_but_leaves_something_on_each_side(tmp_path, num, share, out):
    put(tmp_path, *(f"{number}.png" for number in range(num)))
    assert (len(held(tmp_path, validation=share)), len(held(tmp_path, "train", validation=share))) == (out, num - out)


@pytest.mark.parametrize("name", ["validation", "val", "test"])
def test_folders_named_as_splits_are_the_splits_and_labels_lie_below(tmp_path, name):
    put(tmp_path, "train/cat/1.png", "train/dog/1.png", "train/dog/2.png", f"{name}/cat/9.png")
    made = source(tmp_path)
    assert [each.name for each in made.splits["validation"].pictures] == [f"{name}/cat/9.png"]
    assert len(made.splits["train"]) == 3
    assert made.codec.labels == ("cat", "dog")
    assert labels(made)[f"{name}/cat/9.png"] == "cat"


def test_of_several_splits_to_hold_out_the_others_are_left_alone_and_named(tmp_path):
    put(tmp_path, "train/1.png", "val/2.png", "test/3.png")
    made = source(tmp_path)
    assert held(tmp_path) == ["val/2.png"]
    assert len(made.splits["train"]) == 1
    assert "test/ is not used: val/ is held out" in made.summary


def test_beside_other_folders_a_folder_named_train_is_a_label(tmp_path):
    put(tmp_path, "train/1.png", "plane/2.png", "val/3.png")
    assert source(tmp_path).codec.labels == ("plane", "train", "val")


def test_of_train_alone_a_share_is_held_out(tmp_path):
    put(tmp_path, *(f"train/{name}/{number}.png" for name in "ab" for number in range(4)))
    made = source(tmp_path)
    assert {split: len(examples) for split, examples in made.splits.items()} == {"train": 7, "validation": 1}
    assert made.codec.labels == ("a", "b")


def test_a_split_without_a_usable_image_is_refused(tmp_path):
    put(tmp_path, "train/1.png", "train/2.png", "test/3.png")
    (tmp_path / "test/3.png").write_text("words")
    with pytest.raises(UserError, match="none of the images in test/ can be used"):
        source(tmp_path)


# Labels


def test_folders_become_labels_only_where_they_all_are_in_at_least_two(colours, tmp_path):
    assert source(colours, label="folder").codec.labels == ("blue", "green", "red")
    assert source(colours, label="").codec.labels == ()
    assert "label" not in everything(source(colours, label=""), "train")
    put(colours, "stray.png")
    assert source(colours).codec.labels == ()
    with pytest.raises(UserError, match=r"1 of 13 images lie in no subfolder, for example 'stray\.png'"):
        source(colours, label="folder")
    put(tmp_path / "one", "only/1.png", "only/deep/2.png")
    assert source(tmp_path / "one").codec.labels == ()
    with pytest.raises(UserError, match=r"all images of .* lie in one folder"):
        source(tmp_path / "one", label="folder")


def test_an_unusable_file_makes_no_label(colours):
    (colours / "stray.png").write_text("words")
    (colours / "empty").mkdir()
    (colours / "empty" / "1.png").touch()
    assert source(colours).codec.labels == ("blue", "green", "red")


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


# Captions


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
    describe(ten, *(dict(file_name=name, text="x") for name in ("gone.png", "0.png", "sub/gone.png", "bad.png")))
    made = source(ten)
    assert "captions for 1 of 10 images" in made.summary
    assert "2 entries of metadata.jsonl files are about images that are not there" in made.summary


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"file_name": "0.png"', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'["0.png"]', "not a JSON object"),
        (b'{"text": "a cat"}', '"file_name" is missing'),
        (b'{"file_name": 3}', '"file_name" is missing, or not a string'),
        (b'{"file_name": "1.png", "text": ["a"]}', "'text' is not a string"),
        (b'{"file_name": "./0.png"}', "'0.png' is described a second time"),
    ],
)
def test_a_bad_line_of_metadata_is_named(ten, line, said):
    (ten / "metadata.jsonl").write_bytes(b'{"file_name": "0.png"}\n\n' + line + b"\n")
    with pytest.raises(UserError, match=rf"{re.escape(str(ten))}/metadata\.jsonl', line 3: .*{re.escape(said)}"):
        source(ten)


def test_a_caption_that_cannot_be_read_is_named(ten):
    (ten / "1.txt").write_bytes(b"\xff\xff")
    with pytest.raises(UserError, match=r"1\.txt' cannot be read .* UTF-8"):
        captions(source(ten))
