import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tinygen import __version__, config
from tinygen.checkpoints import store
from tinygen.cli import main as cli
from tinygen.data.codec import Codec, Field
from tinygen.data.labels import Labels
from tinygen.media import Image

ROOT = Path(__file__).parents[2]
RECIPE = """
from tinygen.config import base, vary

def get_config(variant=""):
    made = base(data=dict(name="digits8"), batch_size=16, model=dict(patch=2, width=32, depth=1, heads=2))
    return vary(made, variant, smoke=dict(batch_size=4))
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Whatever a test writes by mistake, it writes here."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    path = tmp_path_factory.mktemp("configs") / "mine.py"
    path.write_text(RECIPE)
    return str(path)


@pytest.fixture
def refused(capsys):
    """Runs a command line that must fail as a user's mistake does; gives what it says."""

    def run(*arguments):
        status = cli.main(list(arguments))
        shown = capsys.readouterr()
        assert status == 2
        assert shown.out == ""
        assert shown.err.startswith("tinygen: ")
        assert 1 <= shown.err.count("\n") <= 2
        assert "Traceback" not in shown.err
        return shown.err

    return run


# What is no command line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian"], "did you mean 'train'?"),
        (["help", "smaple"], "did you mean 'sample'?"),
        (["--verson"], "unknown command"),
        (["train", "--confg=x.py"], "did you mean '--config'?"),
        (["sample", "--nmu=3"], "did you mean '--num'?"),
        (["sample", "--num=many"], "--num=many"),
        (["sample", "--noema=3"], "noema"),
        (["sample", "--seed=-1"], "-1"),
        (["sample", "--batch_size=0"], "--batch_size=0"),
        (["sample", "--config.seed=3"], "'tinygen train' and 'tinygen check' take overrides"),
        (["eval", "--step=last"], "--step=last"),
        (["sample", "runs/faces"], "'runs/faces' is not a flag"),
        (["train"], "--config is missing"),
        (["train", "--config="], "--config is missing"),
        (["sample"], "--ckpt is missing"),
        (["eval"], "--ckpt is missing"),
        (["keys", "optimm"], "did you mean 'optim'?"),
        (["keys", "optim", "model"], "'model' is not a flag"),
        (["recipes", "dit_digts"], "did you mean 'dit_digits'?"),
        (["recipes", "--out=mine.py"], "--out needs --copy=NAME"),
        (["completion"], "--shell is missing: give one of bash"),
        (["completion", "csh"], "--shell=csh"),
    ],
)
def test_a_malformed_command_line_is_refused(refused, arguments, said):
    assert said in refused(*arguments)


# The bad input that must be tried, in the order of its list


def test_a_missing_config_is_refused(refused):
    assert "no config file 'nowhere.py'" in refused("train", "--config=nowhere.py")
    assert "unknown recipe 'dit_digts': did you mean 'dit_digits'?" in refused("train", "--config=dit_digts:smoke")
    assert "'configs/dit_digits.py' here; for tinygen's recipe of that name use --config=dit_digits" in refused(
        "train", "--config=configs/dit_digits.py"
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"This is prose.", "not a Python file"), (bytes(range(256)), "not a Python file"), (b"x = 1", "no function get_config")],
)
def test_a_config_that_is_no_recipe_is_refused(refused, tmp_path, content, said):
    (tmp_path / "bad.py").write_bytes(content)
    assert said in refused("train", "--config=bad.py")


def test_a_typo_in_a_key_is_refused_with_the_nearest(refused, recipe, tmp_path):
    assert "did you mean 'optim.lr'?" in refused("train", f"--config={recipe}", "--config.optim.lrr=1")
    (tmp_path / "typo.py").write_text(RECIPE.replace("batch_size=16", "bacth_size=16"))
    assert "did you mean 'batch_size'?" in refused("train", "--config=typo.py")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("--config.optim.lr=fast", "--config.optim.lr=fast"),
        ("--config.optim.lr=", "--config.optim.lr="),
        ("--config.optim.lr", "config.optim.lr"),
        ("--config.batch_size=3.5", "--config.batch_size=3.5"),
        ("--config.model.qk_norm=maybe", "--config.model.qk_norm=maybe"),
        ("--noconfig.model.width", "config.model.width"),
        ("--config.optim=3", "unknown config key 'optim'"),
        ("--config.seed=-1", "config.seed=-1 must be 0 or more"),
        ("--config.precision=float16", "did you mean 'bfloat16'?"),
        ("--config.objective.guidance_interval=[0.1,x]", "config.objective.guidance_interval="),
        ("--config.objective.guidance_interval=0.5", "config.objective.guidance_interval="),
    ],
)
def test_a_wrong_type_or_value_is_refused(refused, recipe, override, said):
    assert said in refused("train", f"--config={recipe}", override)


def test_an_unknown_variant_is_refused(refused, recipe):
    assert "did you mean 'smoke'?" in refused("train", f"--config={recipe}:smok")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("--config.model.patch=9", "config.model.patch=9 is larger than a side of the images, which are 8x8"),
        ("--config.model.heads=3", "config.model.heads=3 must divide config.model.width=32"),
        ("--config.model.heads=0", "config.model.heads=0 must be positive"),
        ("--config.model.name=vit", "unknown model 'vit'"),
        ("--config.data.label=labl", "did you mean 'label'?"),
        ("--config.data.overfit=99999", "has only 1618 examples"),
        ("--config.objective.nfe=3", "takes 4 network evaluations"),
        ("--config.mesh.data=977", "needs 977 devices"),
        ("--config.mesh.fsdp=0", "must be positive"),
    ],
)
def test_what_does_not_fit_together_is_refused_before_a_workdir_is_made(refused, recipe, override, said):
    assert said in refused("train", f"--config={recipe}", override, "--workdir=run")
    assert not Path("run").exists()


def test_a_batch_that_eight_devices_cannot_share_is_refused_by_a_real_process_with_that_line_alone(recipe):
    command = [sys.executable, "-m", "tinygen", "train", f"--config={recipe}", "--config.batch_size=12", "--workdir=run"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines() == ["tinygen: " + done.stderr.strip().removeprefix("tinygen: ")]
    assert "config.batch_size=12 is not a multiple of the 8 devices" in done.stderr
    assert done.returncode == 2
    assert done.stdout == ""
    assert not Path("run").exists()


@pytest.mark.parametrize("workdir", ["file", "file/run"])
def test_a_workdir_that_cannot_be_written_is_refused(refused, recipe, tmp_path, workdir):
    (tmp_path / "file").write_text("")  # a folder's permissions would not stop root
    assert f"--workdir={workdir} cannot be written" in refused("train", f"--config={recipe}", f"--workdir={workdir}")


def test_a_workdir_holding_another_configs_run_is_refused_with_the_difference(refused, recipe, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    theirs = config.change(config.load(recipe), dict(optim=dict(b1=0.5), model=dict(width=64), train=dict(steps=7)))
    (run / "config.json").write_text(config.to_json(theirs))
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 1.0}\n')
    message = refused("train", f"--config={recipe}", "--workdir=run")
    assert "model.width: 64 -> 32" in message
    assert "optim.b1: 0.5 -> 0.9" in message
    assert "train.steps" not in message  # a key that may change
    assert (run / "config.json").read_text() == config.to_json(theirs)


@pytest.mark.parametrize("command", ["sample", "eval"])
def test_a_folder_without_a_checkpoint_is_refused(refused, tmp_path, command):
    (tmp_path / "empty").mkdir()
    assert "--ckpt=empty: no checkpoint there" in refused(command, "--ckpt=empty")
    assert "--ckpt=nowhere: there is no such folder" in refused(command, "--ckpt=nowhere")


def test_no_samples_at_all_are_refused(refused):
    assert "--num=0" in refused("sample", "--ckpt=run", "--num=0")


@pytest.fixture(scope="module")
def saved(tmp_path_factory, recipe):
    """A run whose step 3 is saved as far as it matters to what is refused before weights are read."""
    workdir = tmp_path_factory.mktemp("saved")
    spec = {"x": Field(shape=(8, 8, 1), dtype="float32", low=-1, high=1), "label": Field(shape=(), dtype="int32", low=0, high=2)}
    codec = Codec(medium=Image(), spec=spec, conditions=(Labels(("plain", "striped", "dotted")),))
    with store.make_manager(workdir, keep=1, keep_every=0) as manager:
        store.save(manager, 3, {"nothing": np.zeros(1)}, config.load(recipe), codec, {})
    return workdir


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--labels=3", "label 3 is out of range: this model knows 0 to 2"),
        ("--labels=0,-1", "label -1 is out of range"),
        ("--labels=stripd", "did you mean 'striped'?"),
        ("--labels=--1", "unknown label '--1'"),
        ("--step=4", "it has 3"),
        ("--nfe=3", "takes 4 network evaluations"),
        ("--sampler=hen", "did you mean 'heun'?"),
        ("--sampler=average", "takes whole steps of an average velocity"),
        ("--time_grid=shfted", "did you mean 'shifted'?"),
        ("--shift=2", "--shift=2.0 has no effect here: it needs --time_grid=shifted"),
    ],
)
def test_asking_a_checkpoint_for_what_it_does_not_know_is_refused(refused, saved, flag, said):
    assert said in refused("sample", f"--ckpt={saved}", flag)
    assert not (saved / "sampled").exists()


# What a command is called with


def test_the_workdir_is_named_after_the_recipe_and_its_variant(called, recipe):
    assert called("train", f"--config={recipe}")[1][1] == os.path.join("runs", "mine")
    assert called("train", f"--config={recipe}:smoke")[1][1] == os.path.join("runs", "mine-smoke")


def test_check_is_called_with_the_overridden_recipe_and_the_workdir(called, recipe):
    module, (made, workdir), _ = called("check", f"--config={recipe}", "--config.batch_size=8")
    assert (module, made.batch_size, workdir) == ("check", 8, os.path.join("runs", "mine"))


def test_sample_passes_on_only_the_settings_that_were_given(called):
    module, (ckpt, request, drawing), _ = called("sample", "--ckpt=run", "--labels=3,striped", "--nfe=8", "--noema", "--num", "5")
    assert (module, ckpt, request.labels) == ("sample", "run", ["3", "striped"])
    assert drawing.settings == {"nfe": 8}
    assert (drawing.num, drawing.ema, drawing.step, drawing.seed) == (5, False, None, 0)


def test_eval_uses_the_averaged_weights_of_the_newest_checkpoint(called):
    assert called("eval", "--ckpt=run") == ("evaluate", ("run",), dict(step=None, ema=True))


# Help


def test_help_lists_every_command(capsys):
    for arguments in ([], ["help"], ["--help"], ["-h"]):
        assert cli.main(arguments) == 0
        shown = capsys.readouterr().out
        assert all(f"\n  {name} " in shown for name in cli.COMMANDS)


@pytest.mark.parametrize(
    ("name", "own", "others"),
    [
        ("train", ["--config", "--workdir", "--describe"], ["--ckpt", "--num"]),
        ("check", ["--config", "--workdir"], ["--describe", "--ckpt"]),
        ("sample", ["--ckpt", "--labels", "--nfe"], ["--workdir"]),
        ("eval", ["--ckpt"], ["--num"]),
        ("report", ["--workdir", "--out"], ["--ckpt"]),
    ],
)
def test_a_commands_help_shows_its_own_flags_only(capsys, name, own, others):
    for arguments in (["help", name], [name, "--help"], [name, "-h", "--nonsense"]):
        assert cli.main(arguments) == 0
        shown = capsys.readouterr().out
        assert all(f"  {flag}: " in shown for flag in own)
        assert not any(flag in shown for flag in others)


def test_the_version_is_the_packages(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"tinygen {__version__}\n"


def test_help_and_mistakes_in_a_command_line_or_config_import_nothing_heavy(recipe):
    code = """
import sys
from tinygen.cli.main import main
lines = "", "--version", "help", "train --help", "help sample", "recipes", "recipes dit_digits", "keys", "completion bash"
assert [main([*line.split()]) for line in (*lines, "__complete train --config=")] == [0] * 10
mistakes = "trian", "train", "train --config=nowhere.py", "train --config=RECIPE --config.optim.lr=fast", "sample --num=0", "sample"
assert [main(line.replace("RECIPE", sys.argv[1]).split()) for line in mistakes] == [2] * 6
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code, recipe], cwd=ROOT, capture_output=True, text=True, check=True)
    modules = done.stdout.splitlines()[-1].split()
    assert "tinygen.config" in modules
    assert not {"jax", "tensorflow", "flax", "orbax", "grain", "clu"} & set(modules)
