"""best.json: which step's samples scored best, whatever befalls the run."""

import json

import pytest

from tinygen.checkpoints.best import FILE, Best
from tinygen.workdir.files import folder


@pytest.fixture
def best(tmp_path):
    def make(start=0, by="fd of 50 samples"):
        return Best(folder(tmp_path), by, start)

    return make


def test_less_is_better_and_the_first_of_equals_is_kept(best):
    it = best()
    assert [it.add(step, rank) for step, rank in ((1, 5.0), (2, 4.0), (3, 4.0), (4, 6.0), (5, -1.0))] == [True, True, False, False, True]
    assert it.of([1, 2, 3, 4]) == 2
    assert it.of([1, 2, 3, 4, 5]) == 5


def test_steps_that_were_not_scored_are_never_the_best(best):
    it = best()
    assert it.of([1, 2]) is None
    it.add(2, 1.0)
    assert it.of([1, 3]) is None
    assert it.of([]) is None


def test_the_file_says_which_step_is_best_and_what_was_scored(best, tmp_path):
    it = best()
    it.add(10, 3.0)
    it.add(20, 2.0)
    it.add(30, 2.5)
    assert json.loads((tmp_path / FILE).read_text()) == {"by": it.by, "best": 20, "scored": {"10": 3.0, "20": 2.0, "30": 2.5}}
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_a_run_resumed_from_an_earlier_step_forgets_later_scores(best):
    it = best()
    for step, rank in ((10, 3.0), (20, 1.0), (30, 2.0)):
        it.add(step, rank)
    again = best(start=10)
    assert again.ranks == {10: 3.0}
    assert again.add(20, 2.0)
    it.go_back(20)
    assert it.ranks == {10: 3.0, 20: 1.0}


def test_the_file_never_names_a_step_that_a_rollback_has_taken_away(best, tmp_path):
    it = best()
    for step, rank in ((10, 3.0), (20, 1.0)):
        it.add(step, rank)
    it.go_back(10)
    assert json.loads((tmp_path / FILE).read_text()) == {"by": it.by, "best": 10, "scored": {"10": 3.0}}
    it.add(20, 1.0)
    best(start=0)
    assert json.loads((tmp_path / FILE).read_text()) == {"by": it.by, "best": None, "scored": {}}


def test_where_no_scores_will_come_those_that_are_there_count(best):
    best().add(10, 1.0)
    it = best(start=10, by=None)
    assert it.of([5, 10]) == 10
    assert best(start=10).ranks == {10: 1.0}


def test_scores_by_other_rules_are_not_compared_with(best):
    best().add(10, 1.0)
    assert best(start=10, by="kid of 50 samples").ranks == {}
    assert best(start=10).ranks == {10: 1.0}


@pytest.mark.parametrize("content", ["", "{", "[1]", "3", '{"by": "fd of 50 samples"}', '{"by": "fd of 50 samples", "scored": {"a": 1}}'])
def test_a_damaged_file_is_reported_and_the_run_continues(best, tmp_path, caplog, content):
    (tmp_path / FILE).write_text(content)
    it = best(start=10)
    assert it.ranks == {}
    assert "best.json is damaged" in caplog.text
    assert it.add(20, 1.0)
    assert json.loads((tmp_path / FILE).read_text())["best"] == 20


def test_a_file_that_cannot_be_written_costs_a_warning(best, tmp_path, caplog):
    it = best()
    (tmp_path / FILE).mkdir()
    assert it.add(10, 1.0)
    assert "best.json cannot be written" in caplog.text
    assert it.of([10]) == 10
