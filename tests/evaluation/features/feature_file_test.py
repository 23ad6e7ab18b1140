import json
import os
import resource
import signal
import subprocess
import sys

import numpy as np
import pytest

from tinygen.errors import UserError
from tinygen.evaluation.features.feature_file import FeatureFile

DIM = 5
ROWS = np.random.default_rng(0).normal(size=(40, DIM)).astype(np.float32)


@pytest.fixture
def file(tmp_path):
    return FeatureFile(tmp_path / "deep" / "features", DIM, "inception, adm, 40 images of seed 0")


def write(file, upto, size=10):
    for start in range(file.rows, upto, size):
        file.append(start, ROWS[start : min(start + size, upto)])


def test_rows_come_back_as_they_were_written(file):
    assert file.rows == 0
    assert file.read().shape == (0, DIM)
    write(file, 37)
    assert file.rows == 37
    np.testing.assert_array_equal(file.read(), ROWS[:37])
    assert file.read().dtype == np.float32


def test_another_process_continues_where_the_first_one_ended(file):
    write(file, 20)
    again = FeatureFile(file.path, DIM, file.protocol)
    assert again.rows == 20
    write(again, 40, size=3)
    np.testing.assert_array_equal(file.read(), ROWS)


def test_what_is_read_cannot_be_changed(file):
    write(file, 10)
    with pytest.raises(ValueError, match="read-only"):
        file.read()[0, 0] = 1


@pytest.mark.parametrize("row", [0, 5, 36])
def test_a_changed_byte_is_told_and_nothing_is_read(file, row):
    write(file, 37)
    with file.path.open("r+b") as damaged:
        damaged.seek(row * DIM * 4 + 7)
        damaged.write(b"?")
    with pytest.raises(UserError, match=rf"{file.path} is damaged: its bytes are not those that were written. Delete {file.path}\.json$"):
        file.read()


def test_rows_written_but_not_counted_are_rewritten(file):
    write(file, 20)
    with file.path.open("ab") as torn:
        torn.write(b"\xff" * 999)
    assert file.rows == 20
    np.testing.assert_array_equal(file.read(), ROWS[:20])
    write(file, 30)
    assert file.path.stat().st_size == 30 * DIM * 4
    np.testing.assert_array_equal(file.read(), ROWS[:30])


WRITER = """
import sys
from pathlib import Path
import numpy as np
from tinygen.evaluation.features.feature_file import FeatureFile
file = FeatureFile(Path(sys.argv[1]), 300, "p")
start = file.rows
print("begun", flush=True)
while True:
    rows = np.arange(start, start + 50, dtype=np.float32)[:, None] * np.ones(300, np.float32)
    file.append(start, rows)
    start += 50
    print(start, flush=True)
"""


def test_a_process_killed_at_any_moment_leaves_whole_rows(tmp_path):
    path, seen = tmp_path / "features", 0
    for blocks in (1, 2, 5):
        with subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, text=True) as process:
            said = [process.stdout.readline() for _ in range(1 + blocks)]
            process.send_signal(signal.SIGKILL)
        file = FeatureFile(path, 300, "p")
        assert file.rows >= int(said[-1]) == seen + 50 * blocks
        assert file.rows % 50 == 0
        assert (file.read() == np.arange(file.rows)[:, None]).all()
        seen = file.rows


def test_rows_of_another_dimension_or_protocol_are_refused_with_what_differs(file):
    write(file, 10)
    with pytest.raises(UserError, match="rows of 5 features, not of 6"):
        _ = FeatureFile(file.path, 6, file.protocol).rows
    other = FeatureFile(file.path, DIM, file.protocol.replace("adm", "clean"))
    for attempt in (other.read, lambda: other.append(10, ROWS[:5]), lambda: other.rows):
        with pytest.raises(UserError, match=r"'inception, adm, 40.* -> 'inception, clean, 40"):
            attempt()
    np.testing.assert_array_equal(file.read(), ROWS[:10])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"rows": 3}', '{"rows": "x", "dim": 5, "protocol": "p"}'])
def test_a_damaged_count_is_refused_in_one_line_with_its_cure(file, text):
    write(file, 10)
    count = file.path.with_name("features.json")
    count.write_text(text)
    with pytest.raises(UserError, match=f"{count} is damaged .* delete it"):
        file.read()
    count.unlink()
    assert file.rows == 0


@pytest.mark.parametrize("rows", [11, -1])
def test_a_count_that_the_rows_do_not_bear_out_is_refused(file, rows):
    write(file, 10)
    count = file.path.with_name("features.json")
    count.write_text(json.dumps({**json.loads(count.read_text()), "rows": rows}))
    with pytest.raises(UserError, match="is damaged"):
        file.read()


def test_a_count_without_its_rows_is_refused(file):
    write(file, 10)
    file.path.unlink()
    with pytest.raises(UserError, match="delete"):
        file.read()


def test_rows_are_written_without_a_gap(file):
    write(file, 10)
    for start, rows in ((-1, ROWS[:5]), (10, ROWS[:5, :3])):
        with pytest.raises(ValueError, match="do not continue at row 10"):
            file.append(start, rows)


def test_rows_lost_while_others_are_added_are_reported(file):
    write(file, 10)
    file.delete()
    with pytest.raises(UserError, match=r"was emptied while it was being written\. Give the same command again$"):
        file.append(10, ROWS[10:20])


def test_rows_that_are_whole_already_stay_as_they_are(file):
    """As where a second file is behind this one."""
    write(file, 20)
    file.append(5, -ROWS[5:15])
    file.append(15, np.concatenate([-ROWS[15:20], ROWS[20:25]]))
    np.testing.assert_array_equal(file.read(), ROWS[:25])


def test_rows_that_are_not_finite_are_refused_with_their_number_and_not_written(file):
    write(file, 10)
    broken = ROWS[10:20].copy()
    broken[3] = np.nan
    with pytest.raises(UserError, match="image 13 "):
        file.append(10, broken)
    assert file.rows == 10


def test_a_file_that_cannot_grow_keeps_its_whole_rows(file):
    write(file, 10)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (12 * DIM * 4, before[1]))  # as on a full disk
    try:
        with pytest.raises(UserError, match="The first 10 rows are whole: make room, or name another folder in XDG_CACHE_HOME"):
            file.append(10, ROWS[10:20])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert file.path.stat().st_size == 10 * DIM * 4  # half a row would go on filling the disk
    np.testing.assert_array_equal(file.read(), ROWS[:10])
    write(file, 40)
    np.testing.assert_array_equal(file.read(), ROWS)


def test_deleting_leaves_nothing_and_may_be_done_twice(file):
    write(file, 10)
    for _ in range(2):
        file.delete()
        assert not os.listdir(file.path.parent)
    assert file.rows == 0
