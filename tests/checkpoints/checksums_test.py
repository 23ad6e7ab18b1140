import os
import shutil
import subprocess

import pytest
from etils import epath

from tinygen.checkpoints import checksums
from tinygen.workdir.files import folder as opened


@pytest.fixture
def folder(tmp_path):
    """A sealed folder 20 with files on two levels."""
    folder = tmp_path / "checkpoints" / "20"
    (folder / "state" / "d").mkdir(parents=True)
    for name, content in {"state/d/0": b"\x00" * 3_000_000, "state/empty": b"", "config": b"{}", "a name": b"x"}.items():
        (folder / name).write_bytes(content)
    (folder / "manifest").mkdir()
    (folder / "manifest" / "metadata").write_text('{"sealed": "SHA256SUMS"}')
    (folder / "_CHECKPOINT_METADATA").write_text("{}")
    checksums.seal(opened(folder), {"streak": 2})
    return epath.Path(folder)


def check(folder):
    return subprocess.run(["sha256sum", "--check", "--quiet", checksums.SUMS], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs coreutils")
def test_the_sums_are_those_of_sha256sum(folder):
    assert check(folder).returncode == 0
    (folder / "config").write_text("{ }")
    assert "config: FAILED" in check(folder).stdout


def test_a_sealed_folder_is_whole_and_stays_so_when_orbax_notes_its_times(folder):
    assert checksums.fault(opened(folder)) == ""
    (folder / "_CHECKPOINT_METADATA").write_text('{"commit_timestamp_nsecs": 1}')
    assert checksums.fault(opened(folder)) == ""
    assert checksums.noted(opened(folder)) == {"streak": 2}


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def kept(folder, name):
    """The lines of the sums but that of one file."""
    return [line for line in (folder / checksums.SUMS).read_text().splitlines(keepends=True) if not line.endswith(f"  {name}\n")]


DAMAGE = {
    "state/d/0 has changed": lambda folder: flip(folder / "state" / "d" / "0"),
    "config has changed": lambda folder: (folder / "config").write_text(""),
    "state/empty is missing": lambda folder: (folder / "state" / "empty").unlink(),
    "state/d/0 is missing": lambda folder: (folder / "state").rmtree(),
    "SHA256SUMS is missing": lambda folder: (folder / checksums.SUMS).unlink(),
    "SHA256SUMS is damaged": lambda folder: (folder / checksums.SUMS).write_text((folder / checksums.SUMS).read_text()[:100]),
    "state/new is not listed in": lambda folder: (folder / "state" / "new").write_text(""),
    "noted.json has changed": lambda folder: (folder / checksums.NOTED).write_text("{}"),
    "config is not listed in": lambda folder: (folder / checksums.SUMS).write_text("".join(kept(folder, "config"))),
    "state/link is neither a file nor a folder": lambda folder: os.symlink("/dev/zero", folder / "state" / "link"),
    "state/round is neither a file nor a folder": lambda folder: os.symlink(".", folder / "state" / "round"),
    "SHA256SUMS is neither a file nor a folder": lambda folder: ((folder / checksums.SUMS).unlink(), os.mkfifo(folder / checksums.SUMS)),
    "SHA256SUMS is damaged ": lambda folder: (folder / checksums.SUMS).write_bytes(b"\xff\xfe\xff"),
}


@pytest.mark.parametrize("said", DAMAGE)
def test_damage_is_found_and_named(folder, said):
    DAMAGE[said](folder)
    assert checksums.fault(opened(folder)).startswith(said.strip())


def test_sums_that_name_files_elsewhere_find_nothing_there(folder):
    (folder.parent / "secret").write_text("x")
    text = (folder / checksums.SUMS).read_text()
    (folder / checksums.SUMS).write_text(text.replace("  config", "  ../secret"))
    assert checksums.fault(opened(folder)) == "../secret is missing"


def test_a_checkpoint_of_the_first_versions_needs_no_sums(folder):
    (folder / checksums.SUMS).unlink()
    (folder / checksums.NOTED).unlink()
    assert checksums.fault(opened(folder)) == "SHA256SUMS is missing"  # half of it has been deleted
    (folder / "manifest" / "metadata").write_text("{}")
    assert checksums.fault(opened(folder)) == ""


@pytest.mark.parametrize("name", ["manifest", "state"])
def test_half_a_folder_is_not_taken_for_a_first_version(tmp_path, name):
    (tmp_path / "20" / name).mkdir(parents=True)
    assert checksums.fault(opened(tmp_path) / "20") == "SHA256SUMS is missing"


def test_a_file_in_place_of_a_folder_is_no_checkpoint(tmp_path):
    (tmp_path / "20").write_text("")
    assert checksums.fault(opened(tmp_path) / "20") == "not a folder"


def test_of_torn_folders_the_newest_is_kept_aside_and_of_damaged_ones_all(folder):
    checkpoints = folder.parent
    for step in (30, 40):
        (checkpoints / f"{step}.orbax-checkpoint-tmp").mkdir()
        for torn in checksums.unfinished(opened(checkpoints)):
            checksums.set_aside(opened(checkpoints), torn.name, "torn")
    for _ in range(2):
        (checkpoints / "50").mkdir()
        checksums.set_aside(opened(checkpoints), "50", "damaged")
    assert sorted(path.name for path in (checkpoints / checksums.ASIDE).iterdir()) == ["40-torn", "50-damaged", "50-damaged-2"]
    assert sorted(path.name for path in checkpoints.iterdir()) == ["20", checksums.ASIDE]
