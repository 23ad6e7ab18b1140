"""Recipes side by side: each arm's stages follow each other, what is done is not done again, and the table says what came of it."""

import json

import compare_recipes
import pytest

STEPS = [{"step": 1, "loss": 2.0}, {"step": 10, "steps_per_s": 5.0}, {"step": 20, "steps_per_s": 2.0}]


@pytest.fixture
def calls(monkeypatch):
    """What tinygen was called with; a run leaves the lines that a real one does."""
    made = []

    def call(command, *arguments):
        made.append((command, *arguments))
        given = dict(argument.split("=", 1) for argument in arguments)
        workdir = compare_recipes.Path(given.get("--workdir") or given["--ckpt"])
        workdir.mkdir(parents=True, exist_ok=True)
        seed = float(given.get("--config.seed", 0))
        if command == "train":
            (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in STEPS))
            (workdir / "events.jsonl").write_text(json.dumps({"event": "finished"}) + "\n")
            (workdir / "seed").write_text(str(seed))
        seed = float((workdir / "seed").read_text())
        lines = {
            "eval": {"loss": 1 + seed},
            "eval-fid": {"fd_toy": 3.0, "fd_toy_stderr": 9.0, "fd_toy_infinity": 9.0, "protocol": {"num": 7, "features": "toy"}},
        }
        if command in lines:
            with (workdir / "eval.jsonl").open("a") as file:
                file.write(json.dumps(lines[command]) + "\n")

    monkeypatch.setattr(compare_recipes, "call", call)
    return made


def run(tmp_path, *arguments):
    return compare_recipes.main([f"--out={tmp_path}", "--arm=two=a.py,b.py", "--arm=one=a.py:dense", *arguments])


def test_a_later_stage_begins_with_the_weights_of_the_one_before(calls, tmp_path):
    assert run(tmp_path, "--seeds=4", "--set=train.steps=20") == 0
    first, second = (call[1:] for call in calls if call[0] == "train" and "two" in call[2])
    assert first == ("--config=a.py", f"--workdir={tmp_path}/two/seed4/0", "--config.seed=4", "--config.train.steps=20")
    expected = (f"--workdir={tmp_path}/two/seed4/1", "--config.seed=4", f"--config.init.ckpt={tmp_path}/two/seed4/0")
    assert second == ("--config=b.py", *expected, "--config.train.steps=20")
    assert ("eval", f"--ckpt={tmp_path}/two/seed4/1") in calls


def test_the_order_of_arms_turns_round_with_each_seed(calls, tmp_path):
    run(tmp_path, "--seeds=0,1")
    assert [call[1] for call in calls if call[0] == "train"] == [
        f"--config={name}" for name in ("a.py", "b.py", "a.py:dense", "a.py:dense", "a.py", "b.py")
    ]


def test_the_table_has_costs_and_scores_with_their_spread(calls, tmp_path, capsys):
    run(tmp_path, "--seeds=0,2", "--features=toy", "--num=7")
    head, two, one = capsys.readouterr().out.splitlines()
    assert head.split() == ["steps", "seconds", "loss", "fd_toy"]
    assert two.split()[:4] == ["two", "40", "14", "2"]  # both stages: 2 x (10 / 5 + 10 / 2) seconds
    assert one.split()[:4] == ["one", "20", "7", "2"]
    assert "2 ± 1.4 (1, 3)" in one
    assert "3 ± 0 (3, 3)" in one


def test_what_is_finished_is_not_done_again(calls, tmp_path):
    run(tmp_path, "--seeds=0", "--features=toy", "--num=7")
    before = len(calls)
    run(tmp_path, "--seeds=0", "--features=toy", "--num=7")
    assert len(calls) == before
    run(tmp_path, "--seeds=0,1", "--features=toy", "--num=7")
    assert {call[1] for call in calls[before:] if call[0] == "eval"} == {
        f"--ckpt={tmp_path}/{arm}/seed1/{last}" for arm, last in (("two", 1), ("one", 0))
    }


def test_a_recipe_that_fails_ends_it_with_a_line(tmp_path, capsys):
    assert compare_recipes.main([f"--out={tmp_path}", "--arm=a=nowhere.py", "--arm=b=nowhere.py", "--seeds=0"]) == 2
    assert "compare_recipes: tinygen train --config=nowhere.py" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--seeds=x"], ["--arm=nameless"], ["--arm=one=other.py"]], ids=str)
def test_a_slip_is_told_in_a_line(tmp_path, capsys, arguments):
    assert run(tmp_path, *arguments) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_folder_of_another_command_is_not_taken_for_this_one(calls, tmp_path, capsys):
    run(tmp_path, "--seeds=0")
    assert run(tmp_path, "--seeds=0", "--set=train.steps=7") == 2
    assert "was begun by another command" in capsys.readouterr().err
