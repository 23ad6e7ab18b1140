import errno
import os

import pytest
from PIL import Image

from tinygen.data.images import folder_index
from tinygen.errors import UserError


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def put(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 20)).save(path)


def names(tree):
    return [file.name for file in tree.files]


def test_images_are_found_at_any_depth_in_one_order_by_any_known_extension(tmp_path):
    for name in ("b/c/d/1.png", "b.JPG", "a.Tiff", "b/2.webp", "a/x.y.gif", "Z.bmp", "é.ppm"):
        put(tmp_path / name)
    (tmp_path / "folder.png").mkdir()
    assert names(folder_index.walk(str(tmp_path))) == ["Z.bmp", "a.Tiff", "a/x.y.gif", "b.JPG", "b/2.webp", "b/c/d/1.png", "é.ppm"]
    assert not any(each.reason for each in folder_index.index(str(tmp_path)).pictures)


def test_hidden_files_and_folders_are_passed_over_but_not_a_hidden_root(tmp_path):
    root = tmp_path / ".hidden"
    for name in ("seen.png", ".unseen.png", ".git/unseen.png", "a/._b.png"):
        put(root / name)
    assert names(folder_index.walk(str(root))) == ["seen.png"]
    assert not folder_index.walk(str(root)).others
    assert folder_index.walk(str(root)).hidden == 3


def test_other_files_are_counted_by_extension(tmp_path):
    for name in ("a.mp4", "b.MP4", "README", "c.tar.gz", "words.txt", "empty.txt", "sub/metadata.jsonl"):
        put(tmp_path / "sub/i.png")
        (tmp_path / name).write_text("" if "empty" in name else "words")
    tree = folder_index.walk(str(tmp_path))
    assert tree.others == {"mp4": 2, "": 1, "gz": 1}
    assert tree.texts == {"words.txt": 5, "empty.txt": 0}
    assert tree.metadata == ["sub/metadata.jsonl"]


@pytest.mark.parametrize(
    "name", ["with space.png", "cat 🐈.png", "two\nlines.png", "tab\t'quote\".png", os.fsdecode(b"\xff\xfe latin.png")]
)
def test_any_name_works_and_is_kept_in_the_cache(tmp_path, name, monkeypatch):
    put(tmp_path / "sub" / name)
    first = folder_index.index(str(tmp_path))
    assert [(each.name, each.width) for each in first.pictures] == [(f"sub/{name}", 20)]
    monkeypatch.setattr(folder_index, "_inspect", None)  # none is looked at again
    assert folder_index.index(str(tmp_path)) == first


def test_links_are_followed_but_a_folder_is_visited_once_under_its_own_name(tmp_path):
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    put(root / "own" / "a.png")
    put(elsewhere / "deep" / "b.png")
    for number in range(9):  # the system lists them before and after "own"
        (root / f"{number}").symlink_to(root / "own")
    (root / "far").symlink_to(elsewhere)
    (root / "far2").symlink_to(elsewhere)
    (root / "c.png").symlink_to(elsewhere / "deep" / "b.png")
    assert names(folder_index.walk(str(root))) == ["c.png", "far/deep/b.png", "own/a.png"]


def test_links_that_lead_back_or_up_end(tmp_path):
    root = tmp_path / "root"
    put(root / "sub" / "a.png")
    put(tmp_path / "not mine.png")
    for name, target in {"sub/root": root, "sub/self": root / "sub", "up": tmp_path, "top": "/"}.items():
        (root / name).symlink_to(target)
    assert names(folder_index.walk(str(root))) == ["sub/a.png"]
    (tmp_path / "alias").symlink_to(root)
    assert names(folder_index.walk(str(tmp_path / "alias"))) == ["sub/a.png"]


def test_what_the_system_does_not_give_is_named(tmp_path):
    put(tmp_path / "a.png")
    (tmp_path / "broken.png").symlink_to("nowhere.png")
    (tmp_path / "ring.png").symlink_to("ring.png")
    for name in ("pipe.png", "metadata.jsonl"):
        os.mkfifo(tmp_path / name)
    tree = folder_index.walk(str(tmp_path))
    assert names(tree) == ["a.png"]
    assert tree.unreachable.keys() == {"broken.png", "ring.png", "pipe.png", "metadata.jsonl"}
    assert tree.unreachable["broken.png"] == "no such file or directory"
    assert tree.unreachable["pipe.png"] == tree.unreachable["metadata.jsonl"] == "not a regular file"


def test_a_folder_that_cannot_be_listed_is_named_and_refused_as_the_root(tmp_path, monkeypatch):
    put(tmp_path / "a.png")
    put(tmp_path / "secret" / "b.png")
    scandir = os.scandir

    def guarded(path):
        if "secret" in path:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    assert folder_index.walk(str(tmp_path)).unreachable == {"secret/": "permission denied"}
    with pytest.raises(UserError, match=r"secret' cannot be listed \(permission denied\)"):
        folder_index.index(str(tmp_path / "secret"))
