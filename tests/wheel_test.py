"""What `pip install` of a built wheel brings: the command, its recipes and its data, without the repository."""

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command, cwd):
    """Standard output of a command that must succeed, without this process's own paths to modules."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built of a copy, since a build leaves folders beside its sources. Nothing is downloaded."""
    place = tmp_path_factory.mktemp("wheel")
    for folder in ("tinygen", "configs"):
        shutil.copytree(ROOT / folder, place / "source" / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, place / "source")
    offline = ("--no-index", "--no-deps", "--no-build-isolation", "--quiet")
    run(sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", ".", "./source", cwd=place)
    return next(place.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The folder of the commands of an environment that has the wheel and, by their path alone, this one's libraries: what is linked
    into them, as an editable install of the repository is, is not found that way.
    """
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, symlinks=True)
    run(
        sys.executable, "-m", "pip", "--python", place / "bin" / "python", "install", "--no-index", "--no-deps", "--quiet", wheel, cwd=place
    )
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    next(place.glob("lib/*/site-packages")).joinpath("libraries.pth").write_text("\n".join(libraries))
    return place / "bin"


@pytest.mark.slow
def test_a_wheel_has_the_package_and_the_recipes_and_nothing_else(wheel):
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    files = [path for path in (ROOT / "tinygen").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    recipes = [f"tinygen/configs/{path.name}" for path in (ROOT / "configs").glob("*.py")]
    assert sorted(names) == sorted([*(str(path.relative_to(ROOT)) for path in files), *recipes])


@pytest.mark.slow
def test_an_installed_wheel_lists_recipes_and_trains_one_from_another_folder(installed, tmp_path):
    where = "import json, tinygen, tinygen.config.recipes; print(json.dumps([tinygen.__file__, str(tinygen.config.recipes.folder())]))"
    for found in json.loads(run(installed / "python", "-c", where, cwd=tmp_path)):
        assert Path(found).is_relative_to(installed.parent)
    assert "fsdp_sine" in run(installed / "tinygen", "recipes", cwd=tmp_path)
    few = [f"--config.train.{key}={value}" for key, value in dict(steps=2, log_every=1, eval_every=0, preview_every=0).items()]
    run(installed / "tinygen", "train", "--config=fsdp_sine:smoke", *few, cwd=tmp_path)
    lines = (tmp_path / "runs" / "fsdp_sine-smoke" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines][-1] == 2
