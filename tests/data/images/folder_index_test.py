import errno
import json
import os

import numpy as np
import pytest
from PIL import Image

from tinygen.data.images import folder_index


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    home = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    return home / "tinygen" / "folders"


@pytest.fixture
def inspected(monkeypatch):
    """The names of the files that were decoded to be checked, as they are."""
    names, inspect = [], folder_index._inspect
    monkeypatch.setattr(folder_index, "_inspect", lambda root, file: names.append(file.name) or inspect(root, file))
    return names


def put(path, size=(20, 20), **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (len(path.name) * 9, 80, 70)).save(path, **options)
    return path


def reasons(found):
    return {each.name: each.reason for each in found.pictures if each.reason}


# Which images can be used


def test_sizes_are_those_of_the_picture_the_right_way_up(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    put(tmp_path / "a.jpg", (30, 20), exif=exif)
    put(tmp_path / "b.png", (30, 20))
    assert [(each.width, each.height) for each in folder_index.index(str(tmp_path)).pictures] == [(20, 30), (30, 20)]


def test_damaged_files_are_named_with_the_reason(tmp_path, monkeypatch):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    for name in ("cut.png", "cut.jpg", "cut.gif", "cut.webp", "cut.bmp", "cut.tif", "cut.ppm"):
        noise.save(tmp_path / name)
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-2000])
    put(tmp_path / "good.png")
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("these are words")
    (tmp_path / "script.png").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    Image.new("F", (20, 20)).save(tmp_path / "float.tif")
    found = reasons(folder_index.index(str(tmp_path)))
    assert found.keys() == {path.name for path in tmp_path.iterdir()} - {"good.png"}
    assert found["empty.png"] == "an empty file"
    assert found["text.png"] == found["script.png"] == "not an image of a known kind"
    assert "float" in found["float.tif"]
    assert "truncated" in found["cut.jpg"]
    assert all(found.values())


@pytest.mark.parametrize("limit", [399, 199, 399 // 3])  # PIL warns from its limit on, and raises from twice that
def test_decompression_bombs_are_refused(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    put(tmp_path / "bomb.png", (20, 20))
    put(tmp_path / "small.png", (5, 5))
    assert reasons(folder_index.index(str(tmp_path))) == {"bomb.png": f"more than {limit} pixels, which PIL takes for an attack"}


def test_a_file_that_may_not_be_read_is_named_and_tried_again(tmp_path, monkeypatch):
    """Its permissions can change without its time."""
    put(tmp_path / "a.png")
    put(tmp_path / "b.png")

    def guarded(path, *arguments, **keywords):
        if str(path).endswith("b.png"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return open(path, *arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(folder_index, "open", guarded, raising=False)
        assert reasons(folder_index.index(str(tmp_path))) == {"b.png": "permission denied"}
    assert reasons(folder_index.index(str(tmp_path))) == {}


def test_equal_contents_have_equal_digests(tmp_path):
    for name in ("a.png", "b.png"):
        put(tmp_path / name)
    Image.new("RGB", (20, 20)).save(tmp_path / "c.png")
    a, b, c = (each.digest for each in folder_index.index(str(tmp_path)).pictures)
    assert a == b != c


# What is remembered


def test_only_new_and_changed_files_are_looked_at_again_and_vanished_ones_forgotten(tmp_path, cache, inspected):
    for name in ("a.png", "b.png", "c.png"):
        put(tmp_path / name)
    (tmp_path / "bad.png").write_text("words")
    first = folder_index.index(str(tmp_path))
    assert sorted(inspected) == ["a.png", "b.png", "bad.png", "c.png"]
    inspected.clear()
    assert folder_index.index(str(tmp_path)) == first
    assert inspected == []
    put(tmp_path / "b.png", (40, 41))
    put(tmp_path / "d.png")
    os.utime(tmp_path / "c.png", ns=(0, 0))  # the same size, another time
    (tmp_path / "a.png").unlink()
    found = folder_index.index(str(tmp_path))
    assert sorted(inspected) == ["b.png", "c.png", "d.png"]
    assert [(each.name, each.width) for each in found.pictures] == [("b.png", 40), ("bad.png", 0), ("c.png", 20), ("d.png", 20)]
    (stored,) = cache.glob("*.json")
    assert sorted(json.loads(stored.read_text())["files"]) == ["b.png", "bad.png", "c.png", "d.png"]
    (tmp_path / "b.png").unlink()
    folder_index.index(str(tmp_path))
    assert sorted(json.loads(stored.read_text())["files"]) == ["bad.png", "c.png", "d.png"]
    assert [path.name for path in cache.iterdir()] == [stored.name]


def test_the_cache_belongs_to_the_real_folder(tmp_path, inspected):
    put(tmp_path / "root" / "a.png")
    (tmp_path / "alias").symlink_to("root")
    folder_index.index(str(tmp_path / "root"))
    folder_index.index(f"{tmp_path}/alias/")
    assert inspected == ["a.png"]


def test_without_xdg_cache_home_the_cache_is_in_the_home_folder(tmp_path, monkeypatch):
    put(tmp_path / "root" / "a.png")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    folder_index.index(str(tmp_path / "root"))
    assert len(list(tmp_path.glob(".cache/tinygen/folders/*.json"))) == 1


DAMAGE = {
    "torn": lambda text: text[: len(text) // 2],
    "no JSON": lambda text: "words",
    "not UTF-8": lambda text: "\udcff",
    "another shape": lambda text: "[1, 2]",
    "no files": lambda text: json.dumps({"format": folder_index.FORMAT}),
    "wrong types": lambda text: text.replace("20, 20", '20, "20"'),
    "too few facts": lambda text: json.dumps({"format": folder_index.FORMAT, "files": {"a.png": []}}),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cache_is_made_anew_and_said_so(tmp_path, cache, inspected, damage):
    put(tmp_path / "a.png")
    first = folder_index.index(str(tmp_path))
    stored = first.cache
    good = stored.read_text()
    stored.write_text(DAMAGE[damage](good), "utf-8", "surrogateescape")
    found = folder_index.index(str(tmp_path))
    assert inspected == ["a.png", "a.png"]
    assert found.pictures == first.pictures
    assert found.notes == [f"the index in {stored} was damaged: every image was checked again"]
    assert stored.read_text() == good


def test_another_version_of_pillow_looks_again_without_a_word(tmp_path, inspected, monkeypatch):
    put(tmp_path / "a.png")
    folder_index.index(str(tmp_path))
    monkeypatch.setattr(folder_index, "FORMAT", "1, Pillow 999")
    assert folder_index.index(str(tmp_path)).notes == []
    assert len(inspected) == 2


def test_without_a_cache_folder_it_continues_and_says_so(tmp_path, monkeypatch):
    put(tmp_path / "a.png")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    found = folder_index.index(str(tmp_path))
    assert [each.width for each in found.pictures] == [20]
    (note,) = found.notes
    assert "could not be written to" in note
    assert "not a directory" in note


def test_an_interrupted_check_keeps_what_it_has_learnt(tmp_path, monkeypatch, inspected):
    for number in range(6):
        put(tmp_path / f"{number}.png")
    monkeypatch.setattr(folder_index, "CHUNK", 2)
    watched = folder_index._watched

    def interrupted(pictures, total):
        for number, picture in enumerate(watched(pictures, total)):
            if number == 3:
                raise KeyboardInterrupt
            yield picture

    with monkeypatch.context() as patch:
        patch.setattr(folder_index, "_watched", interrupted)
        with pytest.raises(KeyboardInterrupt):
            folder_index.index(str(tmp_path))
    inspected.clear()
    assert len(folder_index.index(str(tmp_path)).pictures) == 6
    assert sorted(inspected) == ["3.png", "4.png", "5.png"]


def test_a_long_check_says_how_far_it_is(tmp_path, monkeypatch, capsys):
    for number in range(3):
        put(tmp_path / f"{number}.png")
    monkeypatch.setattr(folder_index, "PAUSE", -1.0)
    folder_index.index(str(tmp_path))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(", ")[0] for line in lines] == [f"{number} of 3 images checked" for number in (1, 2, 3)]
    folder_index.index(str(tmp_path))
    assert capsys.readouterr().err == ""
