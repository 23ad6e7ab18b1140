"""Recipes by name: found from anywhere, listed with what they say of themselves, copied to be edited."""

import re
from pathlib import Path

import pytest

from tinygen import config
from tinygen.cli import main as cli
from tinygen.config import recipes

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "configs").glob("*.py"))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_name_means_the_repositorys_recipe_from_any_folder():
    assert recipes.names() == NAMES
    assert config.load("dit_digits:smoke") == config.load(str(ROOT / "configs" / "dit_digits.py:smoke"))
    assert config.sweep("convnext_mnist_imf").keys() == config.sweep(str(ROOT / "configs" / "convnext_mnist_imf.py")).keys()


def test_a_file_is_preferred_to_a_recipe_of_that_name():
    Path("dit_digits").write_text("from tinygen.config import base\n\ndef get_config(variant=''):\n    return base(seed=7)\n")
    assert config.load("dit_digits").seed == 7
    assert config.load("dit_digits8").seed == 0


def test_a_run_of_a_named_recipe_is_named_after_it(called):
    assert called("train", "--config=fsdp_sine:smoke")[1][1:] == ("runs/fsdp_sine-smoke", {"recipe": "fsdp_sine:smoke", "changed": {}})


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_says_what_it_learns_from_what_it_draws_and_how_long_it_takes_as_the_readme_does(name):
    found = recipes.facts(recipes.folder() / f"{name}.py")
    assert f"| `{name}` | {found.data} | {found.draws} | {found.time} |" in (ROOT / "README.md").read_text("utf-8").splitlines()
    assert found.data
    assert found.draws
    assert re.fullmatch(r"[\d.]+ minutes|a GPU or TPU", found.time)


@pytest.mark.parametrize("name", NAMES)
def test_the_variants_that_are_listed_are_those_that_the_recipe_takes(name, monkeypatch):
    taken = []
    monkeypatch.setattr(config, "vary", lambda made, variant="", **variants: [made, taken.extend(variants)][0])
    config.load(name)
    assert recipes.facts(recipes.folder() / f"{name}.py").variants == tuple(taken)


def test_every_recipe_is_listed_in_a_line(capsys):
    assert cli.main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1 : len(NAMES) + 1]] == NAMES
    assert any("13 minutes" in line and "28x28" in line and "digits by class" in line and ":smoke" in line for line in lines)


def test_a_recipe_is_shown_by_name_or_path(capsys):
    for spec in ("meanflow_digits", str(ROOT / "configs" / "meanflow_digits.py")):
        assert cli.main(["recipes", spec]) == 0
        shown = capsys.readouterr().out
        assert "0.77M parameters" in shown
        assert "Variants: improved, smoke" in shown


def test_a_copy_can_be_edited_and_overwrites_nothing(capsys):
    assert cli.main(["recipes", "--copy=dit_digits:smoke"]) == 0
    assert "tinygen train --config=dit_digits.py:smoke" in capsys.readouterr().out
    assert Path("dit_digits.py").read_bytes() == (ROOT / "configs" / "dit_digits.py").read_bytes()
    Path("dit_digits.py").write_text("mine")
    assert cli.main(["recipes", "--copy", "dit_digits"]) == 2
    assert "dit_digits.py already exists" in capsys.readouterr().err
    assert Path("dit_digits.py").read_text() == "mine"
    assert cli.main(["recipes", "--copy=dit_digits", "--out=other.py"]) == 0
    assert config.load("other.py") == config.load("dit_digits")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dit_digits:smoek"], "did you mean 'smoke'"),
        (["dit_digits", "--copy=dit_digits8"], "choose one of the two"),
        (["--copy=dit_digits", "--out=nowhere/own.py"], "nowhere/own.py: no such folder"),
        (["--copy=dit_digits:smoek"], "did you mean 'smoke'"),
        (["--copy=dit_digits", "--out=c:d.py"], "a colon introduces a variant"),
    ],
)
def test_a_mistake_about_recipes_is_one_line(words, said, capsys):
    assert cli.main(["recipes", *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line
