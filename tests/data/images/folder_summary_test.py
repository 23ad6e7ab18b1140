"""What a folder says of itself: the lines for the log, the refusals, the fingerprint."""

import os
import re
import shutil

import pytest
from PIL import Image

from tinygen import config
from tinygen.data.images import folder_index, pixels
from tinygen.data.images.folder import folder
from tinygen.errors import UserError

DEFAULTS = {key: value for key, value in config.base(data=dict(name="folder")).data.to_dict().items() if key not in ("name", "overfit")}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    home = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    return home / "tinygen" / "folders"


@pytest.fixture
def root(tmp_path):
    """Ten images in folders a, b and c."""
    for number in range(10):
        put(tmp_path / "photos" / "aaaaabbbcc"[number] / f"{number}.png")
    return tmp_path / "photos"


def put(path, size=(16, 16), colour=(200, 100, 50)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def source(root, **changes):
    return folder(**{**DEFAULTS, "path": str(root), "size": (8,), **changes})


def fingerprint(root, **changes):
    return source(root, **changes).fingerprint


def test_nothing_but_the_counts_is_said_of_a_folder_in_order(root):
    assert source(root).summary == (f"10 images in {root}/: 9 to train on, 1 held out; 3 labels (a 5, b 3, c 2)",)
    assert source(f"{root}/", label="").summary == (f"10 images in {root}/: 9 to train on, 1 held out; no labels",)


def test_numbers_have_their_thousands_marked_and_only_the_first_labels_are_listed(tmp_path):
    put(tmp_path / "0.png")
    for number in range(1, 1011):
        (tmp_path / f"{number % 12}").mkdir(exist_ok=True)
        os.link(tmp_path / "0.png", tmp_path / f"{number % 12}" / f"{number}.png")
    (tmp_path / "0.png").unlink()
    (line,) = source(tmp_path).summary
    assert "1,010 images" in line
    assert "12 labels (1 85, 2 85, 0 84, 10 84, 11 84, 3 84, 4 84, 5 84, ...)" in line


def test_files_left_out_are_counted_the_first_named_and_all_listed_in_a_file(root, cache):
    for name in ("a/1 words.png", "a/2\nlines.png", "b/3.png", os.fsdecode(b"c/4\xff.png")):
        (root / name).write_text("words")
    put(root / "a" / "small.png", (40, 15))
    (root / "gone.png").symlink_to("nowhere")
    lines = source(root).summary
    (file,) = cache.glob("*.left-out.txt")
    assert lines[1] == (
        "6 of 16 files left out: 'a/1 words.png' (not an image of a known kind), 'a/2\\nlines.png' (not an image of a known kind), "
        f"'a/small.png' (40x15, a side under 16 pixels), ...; all of them: {file}"
    )
    listed = file.read_text("utf-8").splitlines()
    assert len(listed) == 6
    assert listed[4:] == ["'c/4\\udcff.png': not an image of a known kind", "'gone.png': no such file or directory"]
    assert len(lines) == 2


def test_what_is_too_small_is_decided_anew_by_each_start(root):
    put(root / "a" / "small.png", (40, 15))
    assert len(source(root).summary) == 2
    assert source(root, min_side=15).summary == (f"11 images in {root}/: 10 to train on, 1 held out; 3 labels (a 6, b 3, c 2)",)


@pytest.mark.parametrize(("bad", "said"), [(10, False), (11, True)])
def test_a_folder_of_which_most_cannot_be_used_goes_and_says_so(root, bad, said):
    for number in range(bad):
        (root / f"{number}.jpg").touch()
    made = source(root)
    assert len(made.splits["train"]) == 9
    assert ("most of this folder cannot be used" in made.summary) == said
    assert any(f"{bad} of {10 + bad} files left out" in line for line in made.summary)


def test_other_files_are_counted(root):
    for name in ("a.mp4", "b/c.mp4", "README"):
        (root / name).write_text("words")
    assert source(root).summary[1:] == ("passed over: 2 .mp4, 1 without an extension",)


def test_image_files_that_this_pillow_cannot_read_are_passed_over_with_the_reason(root, monkeypatch):
    monkeypatch.setattr(pixels, "UNREADABLE", {"avif": "this Pillow does not read AVIF"})
    monkeypatch.setattr(folder_index, "EXTENSIONS", ("png",))
    (root / "a.avif").touch()
    assert source(root).summary[1:] == ("passed over: 1 .avif (this Pillow does not read AVIF)",)
    for path in root.rglob("*.png"):
        path.unlink()
    with pytest.raises(UserError, match=r"holds no images, only other files \(1 \.avif \(this Pillow does not read AVIF\)\)"):
        source(root)


def test_everything_that_is_passed_over_is_in_one_line(root):
    for name in ("a.mp4", "notes", ".hidden", "a/alone.txt", "b/alone.caption", "b/alone2.caption", "metadata.json"):
        (root / name).write_text("words")
    (root / "a" / "0.txt").write_text("beside an image")
    (root / "bad.png").write_text("words")
    (root / "bad.txt").write_text("beside an image that is left out")
    [line] = [line for line in source(root).summary if line.startswith("passed over: ")]
    kinds = "1 .mp4, 1 without an extension, 1 .json, 1 .txt beside no image, 2 .caption beside no image, 1 hidden"
    assert sorted(line.removeprefix("passed over: ").split(", ")) == sorted(kinds.split(", "))


def test_files_that_are_no_images_are_not_counted_as_images(tmp_path):
    put(tmp_path / "a.png")
    (tmp_path / "a.txt").symlink_to("nowhere")
    with pytest.raises(UserError, match=r"1 of 1 images can be used; .*\nLeft out: 'a.txt' \(no such file or directory\)"):
        source(tmp_path)


def test_without_a_cache_it_goes_and_says_so(root, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (root / "bad.png").touch()
    lines = source(root).summary
    assert "'bad.png' (an empty file); the whole list could not be written to" in lines[1]
    assert "the next start checks every image again" in lines[2]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(path=""), r"config\.data\.path is empty: give a folder of images"),
        (dict(path="/no/such/place"), "is not there: give a folder of images"),
        (dict(path=__file__), "is not a folder"),
        (dict(size=(0,)), r"config\.data\.size=0"),
        (dict(fit="stretch"), r"unknown config\.data\.fit 'stretch'"),
        (dict(channels=2), r"config\.data\.channels=2"),
        (dict(background="nocolour"), r"config\.data\.background='nocolour'"),
        (dict(validation=1.0), r"config\.data\.validation=1\.0 must lie in \[0, 1\)"),
        (dict(validation=-0.1), r"config\.data\.validation=-0\.1"),
        (dict(validation=float("nan")), r"config\.data\.validation=nan"),
    ],
)
def test_options_that_cannot_be_followed_are_refused(root, changes, said):
    with pytest.raises(UserError, match=said):
        source(root, **changes)


def test_a_home_folder_may_be_written_as_a_tilde(root, monkeypatch):
    monkeypatch.setenv("HOME", str(root.parent))
    assert source("~/photos").summary[0].startswith("10 images in ~/photos/: ")


def test_a_folder_without_images_is_refused_naming_what_is_there(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty' holds no images: give a folder of png, jpg"):
        source(tmp_path / "empty")
    (tmp_path / "a.avi").touch()
    with pytest.raises(UserError, match=r"holds no images, only other files \(1 \.avi\)"):
        source(tmp_path)


def test_a_single_image_is_too_few(tmp_path):
    put(tmp_path / "a.png")
    with pytest.raises(UserError, match=r"1 of 1 images can be used; it takes two, one to train on and one to hold out\.$"):
        source(tmp_path)


def test_a_folder_of_which_nothing_can_be_used_is_refused_naming_the_first_reasons(tmp_path):
    for number in range(5):
        (tmp_path / f"{number}.png").write_text("words" * number)
    with pytest.raises(UserError) as caught:
        source(tmp_path)
    assert re.search(r"0 of 5 images can be used", str(caught.value))
    first = [f"'{number}.png' ({'not an image of a known kind' if number else 'an empty file'})" for number in range(3)]
    assert str(caught.value).endswith(f"\nLeft out: {', '.join(first)}, ...")


def test_a_copy_elsewhere_with_other_times_is_the_same_data(root, tmp_path):
    shutil.copytree(root, tmp_path / "copy", copy_function=shutil.copy)
    for path in (tmp_path / "copy").glob("*/*.png"):
        os.utime(path, ns=(0, 0))
    assert fingerprint(tmp_path / "copy") == fingerprint(root)
    (root / "a" / "words.txt").write_text("a caption")
    (root / "a" / "film.mp4").touch()
    assert fingerprint(tmp_path / "copy") == fingerprint(root)


def test_a_square_has_the_fingerprint_that_earlier_releases_gave_it(tmp_path):
    for name in ("a.bmp", "b.bmp"):
        put(tmp_path / name)
    assert fingerprint(tmp_path) == fingerprint(tmp_path, size=(8, 8)) == "3aa20c381562dd97" != fingerprint(tmp_path, size=(8, 16))


def test_other_names_contents_labels_splits_or_pixels_are_other_data(root):
    seen = {fingerprint(root)}
    changes = (
        dict(size=(9,)), dict(size=(9, 8)), dict(size=(8, 9)), dict(fit="pad"), dict(channels=1), dict(background="red"), dict(label=""),
        dict(validation=0.5),
    )  # fmt: skip
    seen |= {fingerprint(root, **change) for change in changes}
    content = (root / "a" / "0.png").read_bytes()
    put(root / "a" / "0.png", colour=(50, 100, 200))
    seen.add(fingerprint(root))
    (root / "a" / "0.png").write_bytes(content)
    (root / "a" / "0.png").rename(root / "b" / "0.png")
    seen.add(fingerprint(root))
    (root / "b" / "0.png").rename(root / "a" / "00.png")
    seen.add(fingerprint(root))
    (root / "a" / "00.png").unlink()
    seen.add(fingerprint(root))
    assert len(seen) == 13


def test_the_same_images_divided_otherwise_are_other_data(tmp_path):
    for name in ("1.png", "2.png", "6.png"):  # in the order of their hashes backwards
        put(tmp_path / name)
    few, many = (source(tmp_path, validation=share).splits for share in (0.3, 0.6))
    assert [[each.name for each in split["train"].pictures] for split in (few, many)] == [["1.png", "2.png"], ["1.png"]]
    assert fingerprint(tmp_path, validation=0.3) != fingerprint(tmp_path, validation=0.6)


def test_what_is_no_option_of_pixels_or_labels_leaves_the_data_the_same(root):
    assert len({fingerprint(root), fingerprint(root, flip=True), fingerprint(root, min_side=1), fingerprint(root, label="folder")}) == 1
