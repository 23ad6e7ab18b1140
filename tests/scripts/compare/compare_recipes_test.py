"""compare_recipes.py: an arm's stages are trained one after another, finished work is not repeated, and the table."""

import json
from pathlib import Path

import compare_recipes
import pytest
from comparing import runs

from tinygen import config as config_lib
from tinygen.errors import UserError

SWEPT = sorted(path for path in (Path(__file__).parents[3] / "configs").glob("*.py") if "\ndef sweep(" in path.read_text("utf-8"))
SWEEP_RECIPE = """
from tinygen.config import base, vary

def get_config(variant=""):
    config = base(data=dict(name="digits8"), batch_size=32, optim=dict(lr=1e-3))
    return vary(config, variant, small=dict(batch_size=16))

def sweep():
    return {"lr=2e-3": dict(optim=dict(lr=2e-3)), "batch=16": dict(batch_size=16), "wide": dict(model=dict(width=512, heads=8))}
"""
STEPS = [{"step": 1, "loss": 2.0}, {"step": 10, "steps_per_s": 5.0}, {"step": 20, "steps_per_s": 2.0}]


@pytest.fixture(autouse=True)
def recipes(tmp_path, monkeypatch):
    """Recipes a.py and b.py in the current folder, and features named toy."""
    folder = tmp_path / "recipes"
    folder.mkdir()
    for name in ("a.py", "b.py"):
        (folder / name).write_text(SWEEP_RECIPE.replace("small=", "dense="))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(runs.load, "NAMES", ("toy",))


@pytest.fixture
def losses():
    """Losses that an evaluation reports in addition to `loss`."""
    return {}


@pytest.fixture
def calls(monkeypatch, losses):
    """The calls of tinygen, which are faked: a run writes the same files as a real one."""
    made = []

    def call(command, *arguments):
        made.append((command, *arguments))
        given = dict(argument.split("=", 1) for argument in arguments)
        workdir = Path(given.get("--workdir") or given["--ckpt"])
        workdir.mkdir(parents=True, exist_ok=True)
        seed = float(given.get("--config.seed", 0))
        if command == "train":
            (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in STEPS))
            (workdir / "events.jsonl").write_text(json.dumps({"event": "finished"}) + "\n")
            (workdir / "seed").write_text(str(seed))
        seed = float((workdir / "seed").read_text())
        lines = {
            "eval": {"loss": 1 + seed, **losses},
            "eval-fid": {"fd_toy": 3.0, "fd_toy_stderr": 9.0, "fd_toy_infinity": 9.0, "protocol": {"num": 7, "features": "toy"}},
        }
        if command in lines:
            with (workdir / "eval.jsonl").open("a") as file:
                file.write(json.dumps(lines[command]) + "\n")

    monkeypatch.setattr(runs, "call", call)
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


def test_a_failed_run_ends_the_comparison_with_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runs, "TINYGEN", ["false"])
    assert run(tmp_path, "--seeds=0") == 2
    assert "compare_recipes: tinygen train --config=a.py" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seeds=x"], "--seeds=x"),
        (["--seeds=0,0"], "must be distinct"),
        (["--arm=nameless"], "--arm=nameless"),
        (["--arm=one=other.py"], "a unique name"),
        (["--arm=three=other.py"], "no config file 'other.py'"),
        (["--arm=three=a.py:nothing"], "nothing"),
        (["--set=train.stepz=4"], "stepz"),
        (["--features=nowhere"], "--features=nowhere"),
        (["--num=1"], "--num=1"),
        (["--only=lr"], "--only"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line_before_anything_is_trained(calls, tmp_path, capsys, arguments, said):
    assert run(tmp_path, *arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not calls


def test_a_folder_of_another_command_is_not_taken_for_this_one(calls, tmp_path, capsys):
    run(tmp_path, "--seeds=0")
    assert run(tmp_path, "--seeds=0", "--set=train.steps=7") == 2
    assert "was created by a different command" in capsys.readouterr().err


def test_a_run_that_was_stopped_is_not_compared(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runs, "call", lambda *words: None)
    assert run(tmp_path, "--seeds=0") == 2
    assert "was stopped before its end" in capsys.readouterr().err


@pytest.fixture
def swept(tmp_path):
    path = tmp_path / "swept.py"
    path.write_text(SWEEP_RECIPE)
    return path


def sweep(tmp_path, recipe, *arguments):
    return compare_recipes.main([f"--out={tmp_path}", f"--sweep={recipe}", "--seeds=0", *arguments])


def trained(calls):
    """{arm: overrides} of the training runs."""
    return {Path(call[2]).parts[-3]: call[4:] for call in calls if call[0] == "train"}


def test_a_sweep_trains_the_recipe_and_each_of_its_changes(calls, swept, tmp_path):
    assert sweep(tmp_path, swept, "--set=train.steps=20") == 0
    assert trained(calls) == {
        "recipe": ("--config.train.steps=20",),
        "lr=2e-3": ("--config.train.steps=20", "--config.optim.lr=0.002"),
        "batch=16": ("--config.train.steps=20", "--config.batch_size=16"),
        "wide": ("--config.train.steps=20", "--config.model.heads=8", "--config.model.width=512"),
    }


def test_entries_that_the_variant_already_has_are_left_out_of_a_sweep(calls, swept, tmp_path):
    assert sweep(tmp_path, f"{swept}:small") == 0
    assert trained(calls).keys() == {"recipe", "lr=2e-3", "wide"}


def test_only_some_of_a_sweep(calls, swept, tmp_path, capsys):
    assert sweep(tmp_path, swept, "--only=lr,wide") == 0
    assert trained(calls).keys() == {"recipe", "lr=2e-3", "wide"}
    assert sweep(tmp_path, swept, "--only=rl") == 2
    assert "'rl'" in capsys.readouterr().err


def test_a_recipe_without_a_sweep_is_refused(tmp_path, capsys):
    assert sweep(tmp_path, Path(__file__).parents[3] / "configs" / "dit_digits8.py") == 2
    assert "has no function sweep()" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "said"),
    [("3", "returned 3"), ("{'a': 3}", "returned"), ("{}[0]", "fails: KeyError"), ("{'a': {'lrr': 1}}", "a: unknown config key")],
)
def test_an_invalid_sweep_is_refused(tmp_path, answer, said):
    path = tmp_path / "swept.py"
    path.write_text(f"{SWEEP_RECIPE.partition('def sweep')[0]}\ndef sweep():\n    return {answer}\n")
    with pytest.raises(UserError, match=said):
        config_lib.sweep(str(path))


@pytest.mark.parametrize("losses", [{"raw_loss": 0.25, "velocity_loss": 0.5}])
def test_losses_without_weights_are_in_the_table(calls, tmp_path, capsys):
    run(tmp_path, "--seeds=0")
    head, two, _ = capsys.readouterr().out.splitlines()
    assert head.split()[-3:] == ["loss", "raw_loss", "velocity_loss"]
    assert two.split()[-3:] == ["1", "0.25", "0.5"]


def test_there_are_recipes_with_a_sweep():
    assert "convnext_mnist_imf" in {path.stem for path in SWEPT}


@pytest.mark.parametrize("path", SWEPT, ids=lambda path: path.stem)
def test_all_entries_of_a_sweep_differ_from_the_recipe_and_are_valid(path, tmp_path):
    entries = config_lib.sweep(str(path))
    namespace: dict = {}
    exec(compile(path.read_text("utf-8"), str(path), "exec"), namespace)
    assert entries.keys() == namespace["sweep"]().keys()  # what changes nothing would be left out
    for config in entries.values():
        config_lib.check(config)
