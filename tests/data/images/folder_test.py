import os
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from tinygen import build, config
from tinygen.data.images.folder import folder
from tinygen.data.source import check_batch
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
    return folder(**{**DEFAULTS, "path": str(root), "size": (8,), **changes})


def held(root, split="validation", **changes):
    return [each.name for each in source(root, **changes).splits[split].pictures]


def everything(made, split):
    return made.splits[split].take(np.arange(len(made.splits[split])))


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
        np.testing.assert_allclose(made.codec.medium.decode(batch["x"])[:, 0, 0], wanted, atol=3)
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
    with pytest.raises(
        UserError, match=rf"{re.escape(str(path))}' can no longer be read as it was at the start \(.*\n.*run the same command again"
    ):
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
    pixels = padded.codec.medium.decode(everything(padded, "train")["x"])[0]
    assert pixels[0, :, 0].tolist() == [255, 255, 0, 0, 0, 0, 255, 255]
    assert everything(source(tmp_path, channels=1), "train")["x"].shape == (1, 8, 8, 1)


# Splits


def test_a_share_of_the_images_is_held_out_whatever_the_order_or_the_place(tmp_path):
    put(tmp_path / "a", *(f"{number}.png" for number in range(40)))
    out = held(tmp_path / "a", validation=0.1)
    assert len(out) == 4
    assert out == sorted(out) != sorted(f"{number}.png" for number in range(40))[:4]
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
    assert "test/ is not used (1 image): val/ is held out" in made.summary


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
