import contextlib
import json
import resource

import pytest
from etils import epath

from tinygen.workdir.files import folder
from tinygen.workdir.metrics_file import MetricsFile


def steps_in(path):
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path):
    return epath.Path(tmp_path / "metrics.jsonl")


def written(path, lines):
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_lines_after_the_checkpoint_and_torn_ones_are_taken_out(path):
    written(path, [{"step": step} for step in (1, 10, 20, 30)])
    path.write_text(path.read_text() + '{"step": 3')
    MetricsFile(folder(path.parent), start=20, attempt=0)
    assert steps_in(path) == [1, 10, 20]


@pytest.mark.parametrize("garbage", ["[]", '{"stop": 1}', '{"step": "1"}', "\x00\x00", '{"step": 1, "attempt": "x"}'])
def test_what_is_no_line_is_taken_out(path, garbage):
    path.write_text(f'{{"step": 1}}\n{garbage}\n{{"step": 2}}\n')
    MetricsFile(folder(path.parent), start=5, attempt=0)
    assert steps_in(path) == [1, 2]


def test_what_befell_an_earlier_attempt_is_kept_though_it_went_further(path):
    lines = [{"step": 10}, {"step": 27, "event": "skipped"}, {"step": 30, "event": "rollback"}, {"step": 11, "attempt": 1}]
    written(path, [*lines, {"step": 12, "attempt": 1}, {"step": 13, "attempt": 1, "event": "skipped"}])
    MetricsFile(folder(path.parent), start=11, attempt=1)
    assert steps_in(path) == [10, 27, 30, 11]
    MetricsFile(folder(path.parent), start=10, attempt=0)  # from a checkpoint before all that: it will happen again
    assert steps_in(path) == [10]


def test_a_rollback_takes_out_steps_and_keeps_events(path):
    journal = MetricsFile(folder(path.parent), start=0, attempt=0)
    for line in [{"step": 1}, {"step": 2}, {"step": 3, "event": "skipped"}]:
        journal.add(line)
    journal.roll_back(1, {"step": 3, "event": "rollback"})
    assert [json.loads(line).get("event") for line in path.read_text().splitlines()] == [None, "skipped", "rollback"]


def test_numbers_can_be_added_to_the_last_line(path):
    journal = MetricsFile(folder(path.parent), start=0, attempt=0)
    journal.add({"step": 1, "loss": 2.0})
    journal.add({"step": 2, "loss": 1.0})
    journal.complete(2, {"eval_loss": 3.0})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 1, "loss": 2.0},
        {"step": 2, "loss": 1.0, "eval_loss": 3.0},
    ]


def test_numbers_of_a_step_whose_line_is_lost_have_a_line_of_their_own(path):
    journal = MetricsFile(folder(path.parent), start=0, attempt=0)
    journal.complete(3, {"eval_loss": 3.0})
    journal.complete(4, {"eval_loss": 4.0})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"step": 3, "eval_loss": 3.0}, {"step": 4, "eval_loss": 4.0}]


@contextlib.contextmanager
def room(size):
    """No file may grow beyond `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_numbers_that_json_has_not_are_words(path):
    MetricsFile(folder(path.parent), start=0, attempt=0).add({"step": 1, "loss": float("nan"), "update_ratio": float("inf"), "lr": 0.5})
    assert path.read_text() == '{"step": 1, "loss": "nan", "update_ratio": "inf", "lr": 0.5}\n'


def test_lines_that_are_lost_are_told_of_and_not_promised_again(path, caplog):
    path.write_text('{"step": 1}\n{"step": 2\n{"step": 3}\n')
    MetricsFile(folder(path.parent), start=3, attempt=0)
    assert "removed 1 unreadable lines" in caplog.text
    assert "run again" not in caplog.text
    path.unlink()
    MetricsFile(folder(path.parent), start=3, attempt=0)
    assert "the lines of the steps up to 3 are lost" in caplog.text


def test_a_rollback_without_room_waits_too(path):
    journal = MetricsFile(folder(path.parent), start=0, attempt=0)
    for step in (1, 2, 3):
        journal.add({"step": step})
    with room(5):
        journal.add({"step": 4})
        assert journal.roll_back(1, {"step": 4, "event": "rollback"}).strerror == "File too large"
        assert journal.add({"step": 2, "attempt": 1}).strerror == "File too large"
        assert journal.roll_back(2, {"step": 3, "event": "rollback"}).strerror == "File too large"
        assert steps_in(path) == [1, 2, 3]
    assert journal.add({"step": 3, "attempt": 2}) is None
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 1},
        {"step": 4, "event": "rollback"},
        {"step": 2, "attempt": 1},
        {"step": 3, "event": "rollback"},
        {"step": 3, "attempt": 2},
    ]


def test_lines_without_room_wait_whole_and_are_written_in_order_when_there_is_some(path):
    journal = MetricsFile(folder(path.parent), start=0, attempt=0)
    assert journal.add({"step": 1}) is None
    with room(20):  # one line and half of another
        assert journal.add({"step": 2}).strerror == "File too large"
        assert journal.add({"step": 3}).strerror == "File too large"
        assert path.read_text() == '{"step": 1}\n'
    assert journal.add({"step": 4}) is None
    assert steps_in(path) == [1, 2, 3, 4]
