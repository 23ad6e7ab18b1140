"""What is read and written below a folder: links, pipes and sizes, whole files, and folders that go away meanwhile."""

import os
import resource

import pytest

from tinygen.errors import UserError
from tinygen.workdir import files
from tinygen.workdir.files import folder
from tinygen.workdir.reading import LINE, Refused


@pytest.fixture
def place(tmp_path):
    (tmp_path / "place" / "inner").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    return folder(tmp_path / "place")


def test_what_is_written_is_read_and_replaces_what_was_there(place):
    assert place.read("a", 10) is None
    assert place.read("missing/a", 10) is None
    place.write("a", "one")
    place.write("inner/b", b"two")
    place.write("a", [b"th", b"ree"])
    assert (place.read("a", 10), place.read("inner/b", 10)) == (b"three", b"two")
    assert next((entry.name, entry.type, entry.size) for entry in place.entries()) == ("a", "file", 5)
    assert [entry.name for entry in place.entries()] == ["a", "inner"]


def test_a_file_is_read_up_to_its_limit_and_not_beyond(place):
    place.write("a", "12345")
    assert place.read("a", 5) == b"12345"
    with pytest.raises(Refused, match="larger than"):
        place.read("a", 4)


@pytest.mark.parametrize("name", ["../secret", "inner/../../secret", "/etc/passwd"])
def test_a_name_does_not_lead_out(place, name):
    with pytest.raises(ValueError, match="is not a name within a folder"):
        place.read(name, 100)


@pytest.mark.parametrize("to", ["../secret", "a", "nothing"])
def test_links_are_neither_read_nor_appended_to(place, tmp_path, to):
    place.write("a", "mine")
    os.symlink(to, tmp_path / "place" / "link")
    for call in (lambda: place.read("link", 100), lambda: place.append("link", "x\n"), lambda: list(place.lines("link"))):
        with pytest.raises(Refused, match="a symbolic link, not a file"):
            call()
    assert ((tmp_path / "secret").read_text(), place.read("a", 100)) == ("secret", b"mine")
    assert not (tmp_path / "place" / "nothing").exists()


def test_folders_that_are_links_are_not_entered_whatever_is_done_there(place, tmp_path):
    (tmp_path / "beyond").mkdir()
    (tmp_path / "beyond" / "x").write_text("x")
    os.symlink(tmp_path / "beyond", tmp_path / "place" / "link")
    calls = [
        lambda: place.read("link/x", 100), lambda: place.write("link/x", "y"), lambda: place.append("link/x", "y\n"),
        lambda: place.remove("link/x"), lambda: place.make("link/y"), lambda: place.make("link"), lambda: place.entries("link"),
        lambda: place.type_of("link/x"), lambda: place.move("link/x", "x"), lambda: place.move("inner", "link/inner"),
        lambda: (place / "link").check(), lambda: place.sweep("link"),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(Refused, match="a symbolic link, not a folder"):
            call()
    assert [(path.name, path.read_text()) for path in (tmp_path / "beyond").iterdir()] == [("x", "x")]


def test_a_link_is_deleted_or_replaced_itself(place, tmp_path):
    for name in ("a", "b"):
        os.symlink(tmp_path / "secret", tmp_path / "place" / name)
    place.remove("a")
    place.write("b", "mine")
    assert [(entry.name, entry.type) for entry in place.entries()] == [("b", "file"), ("inner", "folder")]
    assert (tmp_path / "secret").read_text() == "secret"


def test_a_folder_is_deleted_with_the_links_in_it_and_without_their_targets(place, tmp_path):
    (tmp_path / "beyond").mkdir()
    (tmp_path / "beyond" / "x").write_text("x")
    os.symlink(tmp_path / "beyond", tmp_path / "place" / "inner" / "link")
    place.remove("inner")
    assert (place.type_of("inner"), (tmp_path / "beyond" / "x").read_text()) == (None, "x")


def test_pipes_and_devices_are_not_opened(place, tmp_path):
    os.mkfifo(tmp_path / "place" / "pipe")
    for call in (lambda: place.read("pipe", 100), lambda: place.append("pipe", "x\n"), lambda: list(place.lines("pipe"))):
        with pytest.raises(Refused, match="a pipe, not a file"):
            call()
    with pytest.raises(Refused, match="a device, not a file"):
        folder("/dev").read("zero", 100)
    with pytest.raises(Refused, match="a pipe, not a file: not replaced"):
        place.write("pipe", "x")


def test_a_link_in_the_path_of_the_folder_itself_is_followed(place, tmp_path):
    os.symlink(tmp_path / "place", tmp_path / "mine")
    folder(tmp_path / "mine").write("a", "x")
    assert place.read("a", 10) == b"x"


def test_lines_come_one_by_one_and_those_without_end_as_none(place):
    place.write("a", b"one\n" + b"x" * (LINE + 5) + b"\n" + b"\xfftwo\nthree")
    assert list(place.lines("a")) == [b"one\n", None, b"\xfftwo\n", b"three"]
    assert list(place.lines("a", last=8)) == [b"three"]
    assert list(place.lines("missing")) == []


def test_a_line_is_added_whole_after_one_that_was_torn(place):
    place.append("a", "one\n")
    place.write("a", (place.read("a", 100) or b"") + b"tor")
    place.append("a", "two\nthree\n")
    assert place.read("a", 100) == b"one\ntor\ntwo\nthree\n"


def test_without_room_neither_a_file_nor_a_line_is_half_there(place):
    place.write("a", "old\n")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, before[1]))
    try:
        for call in (lambda: place.write("a", "x" * 100), lambda: place.append("a", "x" * 100), lambda: place.write("b", "x" * 100)):
            with pytest.raises(OSError, match="too large"):
                call()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [entry.name for entry in place.entries()] == ["a", "inner"]
    assert place.read("a", 100) == b"old\n"


def test_what_a_killed_process_left_unfinished_is_swept_and_nothing_else(place):
    names = {".a.0123456789abcdef.new", "a.new", ".a.new", ".a.0123456789abcdeg.new"}
    for name in names:
        place.write(f"inner/{name}", "x")
    place.sweep("inner")
    assert {entry.name for entry in place.entries("inner")} == names - {".a.0123456789abcdef.new"}


def test_a_held_folder_is_refused_once_it_was_moved_and_taken_again_when_it_is_back(place, tmp_path):
    held = folder(tmp_path / "place", held=True)
    held.write("inner/a", "x")
    (tmp_path / "place").rename(tmp_path / "away")
    for where in (held, held / "inner"):
        with pytest.raises(Refused, match="was moved or deleted"):
            where.write("a", "y")
    (tmp_path / "place").mkdir()
    with pytest.raises(Refused, match="replaced by another one"):
        held.write("a", "y")
    (tmp_path / "place").rmdir()
    (tmp_path / "away").rename(tmp_path / "place")
    assert held.read("inner/a", 10) == b"x"


def test_folders_are_made_below_the_root_alone(place, tmp_path):
    place.make("x/y")
    place.make("x/y")
    assert place.type_of("x/y") == "folder"
    with pytest.raises(FileNotFoundError):
        folder(tmp_path / "missing").make("x")


def test_nothing_is_moved_over_what_is_there(place):
    place.write("a", "x")
    with pytest.raises(FileExistsError):
        place.move("a", "inner")
    place.move("a", "inner/a")
    assert place.read("inner/a", 10) == b"x"


def test_a_damaged_json_file_is_named(place):
    place.write("a.json", "{")
    with pytest.raises(UserError, match=r"a\.json is damaged"):
        files.read_json(place, "a.json")
    assert files.read_json(place, "b.json") is None
