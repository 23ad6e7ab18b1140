"""`scripts/bench/bench.py start`: commands timed from a shell, of this tree and of others."""

import json

import bench
import pytest
from benchmarks import REPOSITORY, start

from tinygen.errors import UserError


@pytest.fixture(autouse=True)
def idle(monkeypatch):
    """An idle machine whose process settings stay as they are."""
    monkeypatch.setattr(bench.machine, "busy_share", lambda: 0.0)
    monkeypatch.setattr(bench.ours, "prepare_process", bool)


@pytest.mark.slow
def test_a_first_step_and_its_run_s_samples_are_timed_of_two_trees_in_turns(tmp_path, capsys):
    (tmp_path / "other").symlink_to(REPOSITORY)
    words = [
        "start",
        "--config=dit_digits8:smoke",
        "--num=2",
        "--rounds=1",
        f"--against={tmp_path / 'other'}",
        f"--json={tmp_path / 'all'}",
    ]
    assert bench.main(words) == 0
    result = json.loads((tmp_path / "all").read_text())
    assert len(result["runs"]) == 2
    for run in result["runs"]:
        assert len(run["train"]) == len(run["sample"]) == 1
        assert min(run["train"] + run["sample"]) > 0
    shown = capsys.readouterr().out
    assert "dit_digits8:smoke: seconds to the first step, and for 2 samples; median (min to max) of 1" in shown
    assert shown.count(str(REPOSITORY)) == 2


def test_a_command_that_fails_is_named_with_its_last_line_of_output(tmp_path):
    checkout = start.Checkout(REPOSITORY, "no_such_recipe", 1, tmp_path)
    with pytest.raises(UserError, match=r"tinygen train in .* failed: .*no_such_recipe"):
        checkout.train()
    with pytest.raises(UserError, match=r"tinygen sample in .* failed: .*run"):
        checkout.sample()


def test_a_tree_without_the_tool_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        bench.main(["start", f"--against={tmp_path}"])
    assert f"argument --against: not a checkout of tinygen: {tmp_path}/tinygen/__main__.py does not exist" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        bench.main(["start", "--config=dit_digit8"])
    assert "did you mean 'dit_digits8'" in capsys.readouterr().err
