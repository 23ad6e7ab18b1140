"""compare_objectives.py: arms are trained once, cells are drawn and scored once, mistakes are reported first."""

import json
from pathlib import Path

import compare_objectives
import numpy as np
import pytest
import score_digits
from benchmarks import machine
from comparing import cells, picture, plan, runs
from PIL import Image

from tinygen.cli import main as cli

RECIPE = """
from tinygen.config import base, vary

def get_config(variant=""):
    config = base(
        data=dict(name="digits8"), batch_size=16, precision="float32",
        model=dict(name="microdit", patch=4, width=16, depth=1, heads=2, time_scale=16.0), objective=dict(name="flow", guidance=1.5),
        train=dict(steps=2, log_every=1, eval_every=0, preview_every=0, checkpoint_every=0),
    )
    return vary(
        config, variant,
        meanflow=dict(objective=dict(name="meanflow", omega=1.0, kappa=0.0)),
        unlabelled=dict(data=dict(label="")),
        classifier=dict(model=dict(name="classifier"), objective=dict(name="classification")),
    )
"""
METRICS = [{"step": step, "steps_per_s": rate} for step, rate in ((20, 1.0), (40, 5.0), (60, 4.0), (80, 5.0), (100, 5.0))]


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def calls(monkeypatch):
    """The calls of tinygen, which are faked: runs and samples write the same files as real ones. The judge always reads 0."""
    made = []

    def call(command, *arguments):
        made.append((command, *arguments))
        given = dict(argument.removeprefix("--").split("=", 1) for argument in arguments)
        workdir = Path(given.get("workdir") or given["ckpt"])
        workdir.mkdir(parents=True, exist_ok=True)
        if command == "train":
            (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in METRICS))
            (workdir / "events.jsonl").write_text(json.dumps({"event": "finished"}) + "\n")
            (workdir / "manifest.json").write_text(json.dumps({"parameters": 1234}))
        if command == "sample":
            write_samples(Path(given["out"]), int(given["num"]), nfe=int(given["nfe"]) // 2 * 2 or 1, sampler=given.get("sampler", "heun"))
        protocol = {"features": "toy", "num": 7, "nfe": int(given.get("nfe", 0)), "guidance": None, "sampler": given.get("sampler", "heun")}
        line = {"eval": {"loss": 1.0, "raw_loss": 0.3}, "eval-fid": {"fd_toy": 3.0, "protocol": protocol}}.get(command)
        if line:
            with (workdir / "eval.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")

    class Judge:
        def predict(self, x):
            return np.zeros(len(x), int)

    monkeypatch.setattr(runs, "call", call)
    monkeypatch.setattr(score_digits, "judge_of", lambda data: Judge())
    return made


def write_samples(folder, num, **provenance):
    """Pictures whose grey level is their index."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"file": f"{index:05d}.png", "label": index % 10} for index in range(num)]
    for index, row in enumerate(rows):
        Image.fromarray(np.full((8, 8), index, np.uint8)).save(folder / row["file"])
    (folder / "samples.json").write_text(json.dumps({"samples": rows, **provenance}))


@pytest.fixture
def compare(recipe, tmp_path):
    """compare(*arguments): the exit status of a comparison of two arms, and of others in `arms`."""

    def run(*arguments, arms=("", ":meanflow"), nfe="4"):
        named = [f"--arm={name}={recipe}{variant}" for name, variant in zip(("one", "two"), arms, strict=False)]
        return compare_objectives.main([f"--out={tmp_path / 'out'}", *named, f"--nfe={nfe}", "--samples=20", *arguments])

    return run


@pytest.fixture
def numbers(tmp_path):
    return lambda: json.loads((tmp_path / "out" / "objectives.json").read_text())


def test_an_arm_is_trained_once_however_many_ways_it_is_sampled(calls, compare, numbers):
    assert compare("--sampling=one:sampler=euler,guidance=1", "--sampling=one:", nfe="4,8") == 0
    assert [call[0] for call in calls].count("train") == 2
    assert [(row["arm"], row["settings"]) for row in numbers()["rows"]] == [
        ("one", {"sampler": "euler", "guidance": 1.0}),
        ("one", {}),
        ("two", {}),
    ]
    drawn = [call[3:-1] for call in calls if call[0] == "sample"]
    assert drawn[:3] == [("--nfe=4", "--sampler=euler", "--guidance=1"), ("--nfe=8", "--sampler=euler", "--guidance=1"), ("--nfe=4",)]


def test_what_is_impossible_leaves_its_cell_empty_with_the_reason(calls, compare, numbers, capsys):
    assert compare(nfe="1,4") == 0
    one, two = (row["cells"] for row in numbers()["rows"])
    assert "one heun step with guidance 1.5 takes 4" in one[0]["impossible"]
    assert "accuracy" in two[0]
    assert capsys.readouterr().out.splitlines()[5].split() == ["one", "1", "-", "-", "-", "-"]


def test_cells_have_the_evaluations_taken_and_the_scores_and_arms_what_they_cost(calls, compare, numbers):
    assert compare("--features=toy", "--num=7", "--steps=100", nfe="5") == 2  # no such run
    assert not calls
    assert compare("--features=inception", "--num=7", "--steps=100", nfe="5") == 0
    one = numbers()["rows"][0]["cells"][0]
    assert (one["requested_nfe"], one["nfe"], one["accuracy"], one["fd_toy"]) == (5, 4, 0.1, 3.0)
    assert {"spread", "distance"} <= one.keys()
    arms = numbers()["arms"]
    assert (arms["one"]["steps"], arms["one"]["seconds"], arms["one"]["parameters"]) == (100, 20 + 4 + 5 + 4 + 4, 1234)
    assert arms["one"]["velocity_loss"] == 0.3  # of flow matching its own loss
    assert "velocity_loss" not in arms["two"]  # that this eval did not take


def test_what_is_finished_is_not_done_again(calls, compare):
    assert compare("--sampling=one:sampler=euler") == 0
    before = len(calls)
    assert compare("--sampling=one:sampler=euler") == 0
    assert len(calls) == before
    assert compare("--sampling=one:sampler=euler", nfe="4,8") == 0
    assert [call[0] for call in calls[before:]] == ["sample", "sample"]


def test_samples_that_were_drawn_only_in_part_are_drawn_again(calls, compare, tmp_path):
    assert compare() == 0
    (tmp_path / "out" / "two" / "seed0" / "cells" / "nfe=4" / "command.json").unlink()
    before = len(calls)
    assert compare() == 0
    assert [call[:2] for call in calls[before:]] == [("sample", f"--ckpt={tmp_path}/out/two/seed0/0")]


def test_distances_of_equal_samples_are_taken_once(calls, tmp_path):
    taken = [runs.distances(tmp_path, "a/toy", 7, [f"--nfe={nfe}"], nfe=nfe) for nfe in (4, 4, 8)]
    assert taken == [{"fd_toy": 3.0}] * 3
    assert [call[-1] for call in calls] == ["--nfe=4", "--nfe=8"]


def test_minutes_are_steps_at_the_rate_of_a_short_run_and_the_schedule_ends_with_them(calls, compare, monkeypatch, capsys):
    monkeypatch.setattr(machine, "busy_share", lambda: 0.5)
    assert compare("--minutes=2") == 0
    assert "other processes used 50% of the CPU" in capsys.readouterr().err
    first, second = [call for call in calls if call[0] == "train" and "/one/" in call[2]]
    assert "--config.train.steps=100" in first
    assert second[-2:] == (
        "--config.train.steps=600",
        "--config.optim.decay_steps=0",
    )  # 120 s at the median, 5 a second; the first is left out


@pytest.mark.parametrize("arms", [(":unlabelled", ":unlabelled+meanflow")], ids=str)
def test_what_the_judge_cannot_read_has_pictures_and_no_accuracy(calls, compare, numbers, capsys, arms, tmp_path):
    assert compare(arms=arms) == 0
    assert "accuracy, spread and distance need labelled digits" in capsys.readouterr().err
    assert "accuracy" not in numbers()["rows"][0]["cells"][0]
    assert (tmp_path / "out" / "objectives.png").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (dict(nfe="0"), "--nfe=0"),
        (dict(nfe="1,x"), "--nfe=1,x"),
        (dict(nfe="1", arms=("",)), "any of --nfe: nfe=1 is too few"),
        (["--arm=one=other.py"], "the name one is already used"),
        (["--arm=nameless"], "--arm=nameless"),
        (["--arm=a/b=mine.py"], "no / or :"),
        (["--arm=three=nowhere.py"], "no config file 'nowhere.py'"),
        (dict(arms=("", ":classifier")), "'classification' has no number of network evaluations"),
        (dict(arms=("", ":unlabelled")), "section `data`"),
        (["--set=train.stpes=3"], "train.stpes"),
        (["--sampling=sampler=euler"], "expected NAME:KEY=VALUE"),
        (["--sampling=three:sampler=euler"], "'three'"),
        (["--sampling=one:samplr=euler"], "'sampler'"),
        (["--sampling=one:guidance=x"], "guidance must be a number"),
        (["--sampling=one:sampler=heum"], "'heun'"),
        (["--sampling=two:guidance=2"], "'meanflow' has no such setting"),
        (["--minutes=-1"], "--minutes=-1"),
        (["--steps=0"], "--steps=0"),
        (["--samples=19"], "two of each class"),
        (["--num=1"], "--num=1"),
        (["--features=runs/nowhere"], "--features=runs/nowhere"),
        (["--out=mine.py"], "--out=mine.py"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line_before_anything_is_trained(calls, compare, capsys, monkeypatch, tmp_path, arguments, said):
    monkeypatch.chdir(tmp_path)
    assert (compare(**arguments) if isinstance(arguments, dict) else compare(*arguments)) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
    assert not calls


def test_a_cell_shows_a_row_a_class(tmp_path):
    write_samples(tmp_path, 100)
    levels = cells.pictures(tmp_path)[:, 0, 0, 0].reshape(10, cells.COLUMNS)
    assert (levels % 10 == np.arange(10)[:, None]).all()
    assert (levels // 10 == np.arange(cells.COLUMNS)).all()


def test_a_picture_has_every_cell_in_its_place(tmp_path):
    white, grey = (picture.Cell(np.full((60, 8, 8, 1), level, np.uint8), ["below"]) for level in (255, 128))
    rows = [picture.Row("first", ["about"], [white, picture.Cell(reason="too few")]), picture.Row("second", [], [grey, white])]
    picture.draw(tmp_path / "a.png", "title", ["nfe 1", "nfe 2"], rows, across=6)
    pixels = np.asarray(Image.open(tmp_path / "a.png").convert("L"))
    width, gap, left = (round(inches * picture.DPI) for inches in (picture.WIDTH, picture.GAP, picture.LEFT))
    assert pixels.shape[1] == pytest.approx(left + 2 * (width + gap), abs=1)
    columns = [slice(left + column * (width + gap) + 5, left + column * (width + gap) + width - 5) for column in range(2)]
    halves = np.array_split(np.arange(len(pixels)), 2)
    shares = [[float((pixels[half, column] == 128).mean()) for column in columns] for half in halves]
    assert shares[0][1] < 0.05  # some edge of a letter
    assert shares[1][0] > 0.6  # all of its samples
    assert 0.05 < shares[0][0] < 0.5  # what is between them


@pytest.mark.slow
def test_a_recipe_is_really_trained_drawn_and_scored(recipe, tmp_path, monkeypatch, capsys):
    pytest.importorskip("sklearn")
    monkeypatch.setattr(runs, "call", lambda *words: cli.main(words) and pytest.fail(f"{words}"))
    assert compare_objectives.main([f"--out={tmp_path}", f"--arm=flow={recipe}", "--nfe=1,5", "--samples=20", "--steps=2"]) == 0
    found = json.loads((tmp_path / "objectives.json").read_text())
    few, many = found["rows"][0]["cells"]
    assert "too few" in few["impossible"]
    assert many["nfe"] == 4
    assert 0 <= many["accuracy"] <= 1
    assert many["spread"] > 0
    assert found["arms"]["flow"]["velocity_loss"] == found["arms"]["flow"]["loss"]
    assert "flow  " in capsys.readouterr().out
    with Image.open(tmp_path / "objectives.png") as drawn:
        assert drawn.width > 2 * picture.WIDTH * picture.DPI


def test_settings_are_typed_as_the_recipe_has_them(recipe):
    config = plan.arms_of([f"a={recipe}"], [])[0].config
    assert plan.settings_of("sampler=euler,guidance=2", config) == {"sampler": "euler", "guidance": 2.0}
