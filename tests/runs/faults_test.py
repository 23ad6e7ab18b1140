"""What is wrong with a configuration, the data or the machine is said before the first step, in a line or three that name it."""

import contextlib
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from etils import epath
from PIL import Image

from tinygen import build
from tinygen import config as config_lib
from tinygen.checkpoints import store
from tinygen.cli import main as cli

RECIPE = """
from tinygen.config import base, vary

def get_config(variant=""):
    made = base(
        data=dict(name="digits8"), batch_size=16, model=dict(patch=2, width=32, depth=2, heads=2), objective=dict(nfe=4),
        train=dict(steps=2, preview_num=8),
    )
    return vary(made, variant, sine=dict(data=dict(name="sine"), model=dict(name="mlp", hidden=8), objective=dict(name="regression")))
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Whatever is written, is written here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    (tmp_path / "mine.py").write_text(RECIPE)


@pytest.fixture
def refused(capsys):
    """What `tinygen train` says where it must not begin."""

    def run(*arguments, workdir="run", lines_at_most=3):
        status = cli.main(["train", f"--workdir={workdir}", *arguments])
        said = capsys.readouterr().err
        assert status == 2, said
        lines = said.strip().splitlines()
        assert lines[0].startswith("tinygen: ")
        assert len(lines) <= lines_at_most, said
        assert max(map(len, lines)) < 600
        assert "Traceback" not in said
        metrics = Path(workdir) / "metrics.jsonl"
        with contextlib.suppress(OSError):
            assert not metrics.exists() or not metrics.read_text()
        return said

    return run


@pytest.mark.parametrize(
    ("override", "said"),
    [
        # Keys and their values
        ("optim.lrr=1", "did you mean 'optim.lr'?"),
        ("optim.lr=fast", "config.optim.lr=fast"),
        ("optim.lr=nan", "config.optim.lr=nan"),
        ("optim.warmup=-1", "config.optim.warmup=-1"),
        ("optim.weight_decay=inf", "config.optim.weight_decay=inf"),
        ("optim.b2=1.0", "config.optim.b2=1.0"),
        ("optim.schedule=cosin", "config.optim.schedule"),
        ("optim.accumulate=3", "optim.accumulate=3"),
        ("ema.decay=1.0", "config.ema.decay=1.0"),
        ("batch_size=3.5", "config.batch_size=3.5"),
        ("batch_size=12", "config.batch_size=12 is not a multiple of the 8 devices"),
        ("batch_size=0", "config.batch_size=0"),
        ("seed=-1", "config.seed=-1"),
        ("precision=float16", "config.precision"),
        ("attention=flash", "config.attention"),
        ("attention=cudnn", "config.attention=cudnn"),
        ("remat=all", "config.remat"),
        ("scan=3", "config.scan=3"),
        ("train.steps=0", "config.train.steps=0"),
        ("train.keep=0", "config.train.keep=0"),
        ("train.preview_num=0", "config.train.preview_num=0"),
        ("train.eval_every=-5", "config.train.eval_every=-5"),
        ("train.writers=wanbd", "did you mean 'wandb'?"),
        ("distributed=everywhere", "distributed='everywhere'"),
        ("distributed=127.0.0.1:9,2,2", "distributed='127.0.0.1:9,2,2'"),
        # Rows, and what they take
        ("model.name=vit", "unknown model 'vit'"),
        ("objective.name=flwo", "did you mean 'flow'?"),
        ("data.name=digts", "did you mean 'digits'?"),
        ("model.patch=99", "config.model.patch=99"),
        ("model.heads=3", "config.model.heads=3"),
        ("model.depth=0", "config.model.depth=0"),
        ("model.positions=ropee", "did you mean 'rope'?"),
        ("model.position_grid=-1", "config.model.position_grid=-1"),
        ("model.adaln=layer", "config.model.adaln 'layer'"),
        ("model.time_scale=nan", "config.model.time_scale=nan"),
        ("objective.nfe=3", "nfe=3 is too few"),
        ("objective.sampler=huen", "did you mean 'heun'?"),
        ("objective.cond_drop=0.0", "config.objective.cond_drop"),
        ("objective.cond_drop=1.5", "config.objective.cond_drop=1.5"),
        ("objective.guidance_interval=(0.5,0.1)", "config.objective.guidance_interval"),
        ("objective.t_std=0.0", "config.objective.t_std=0.0"),
        ("data.overfit=99999", "config.data.overfit=99999"),
        ("data.label=digit", "label"),
        # Rows that do not go together
        ("objective.name=regression", "target_shape"),
        ("model.name=mlp", "target_shape"),
        ("data.name=sine", "microdit takes images"),
        # Devices
        ("mesh.data=977", "config.mesh="),
        ("mesh.fsdp=0", "config.mesh="),
        ("mesh.tensor=4", "config.model.heads=2"),
        ("sharding.rules=[('nothing$',('fsdp',))]", "matches no parameter's name"),
        ("sharding.rules=[('kernel$',('fsd',))]", "did you mean 'fsdp'?"),
        ("sharding.rules=[('kernel$',('data','fsdp','tensor'))]", "names 3 dimensions"),
        # Other runs
        ("init.ckpt=nowhere", "config.init.ckpt=nowhere"),
    ],
)
def test_a_wrong_key_is_named_before_the_first_step(refused, override, said):
    assert said in refused("--config=mine.py", f"--config.{override}")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["objective.name=flow"], "config.data.name=sine and config.model.name=mlp and config.objective.name=flow do not go together"),
        (["objective.name=meanflow"], "config.objective.name=meanflow do not go together"),
        (["data.held_out=0"], "config.data.held_out=0"),
        (["model.dropout=1.0"], "config.model.dropout=1.0"),
        (["model.hidden=3_000_000"], "config.train.keep"),
        (["model.hidden=3_000_000", "train.checkpoint_every=0", "train.keep=1"], "config.train.keep=1"),
        (["attention=blockwise"], "config.attention=blockwise"),
    ],
)
def test_a_wrong_key_of_a_regression_is_named_before_the_first_step(refused, overrides, said):
    assert said in refused("--config=mine.py:sine", *(f"--config.{each}" for each in overrides))


# Recipes


def test_a_recipe_that_is_not_there_is_named(refused):
    assert "'yours.py'" in refused("--config=yours.py")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def get_config(:\n", "SyntaxError"),
        ("import nonexistent\n", "nonexistent"),
        ("x = 1\n", "get_config"),
        ("def get_config(variant=''):\n    return {}\n", "ConfigDict"),
        ("def get_config(variant=''):\n    return 1 / 0\n", "ZeroDivisionError"),
        ("from tinygen.config import base\ndef get_config(variant=''):\n    return base(model=dict(widht=3))\n", "'widht'"),
    ],
)
def test_a_recipe_that_cannot_be_used_is_named_with_the_reason(refused, text, said):
    Path("broken.py").write_text(text)
    message = refused("--config=broken.py")
    assert said in message


def test_a_variant_that_does_not_exist_is_named(refused):
    assert "variant 'cosine'" in refused("--config=mine.py:cosine")


# Data


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(4):
        pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


def of_folder(*overrides):
    given = ["data.name=folder", "data.path=photos", "data.size=16", "batch_size=8", *overrides]
    return ["--config=mine.py", *(f"--config.{each}" for each in given)]


def test_a_folder_that_is_not_there_is_named(refused):
    assert "config.data.path='photos'" in refused(*of_folder())


def test_a_folder_that_was_not_given_is_asked_for(refused):
    assert "config.data.path is empty" in refused(*of_folder("data.path="))


@pytest.mark.parametrize("file", [None, "notes.txt"])
def test_a_folder_without_images_is_named(refused, tmp_path, file):
    (tmp_path / "photos").mkdir()
    if file:
        (tmp_path / "photos" / file).write_text("nothing to see")
    assert "config.data.path='photos' holds no images" in refused(*of_folder())


def test_a_folder_of_torn_images_alone_is_named_with_some_of_them(refused, photos):
    for path in photos.iterdir():
        path.write_bytes(path.read_bytes()[:60])
    message = refused(*of_folder())
    assert "config.data.path='photos': 0 of 4 images can be used" in message
    assert "0.png" in message


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("data.label=species", "config.data.label"),
        ("data.label=folder", "config.data.label='folder'"),
        ("data.background=whit", "data.background"),
        ("data.fit=stretch", "data.fit"),
        ("data.validation=1.5", "config.data.validation=1.5"),
        ("data.min_side=4000", "a side under 4000 pixels"),
        ("data.size=0", "data.size=0"),
    ],
)
def test_a_wrong_key_of_a_folder_is_named(refused, photos, override, said):
    assert said in refused(*of_folder(override))


@pytest.mark.parametrize("line", ["{not json", '["a list"]', '{"caption": "of what?"}'])
def test_a_wrong_line_of_the_metadata_is_named(refused, photos, line):
    (photos / "metadata.jsonl").write_text('{"file_name": "0.png", "kind": "noise"}\n' + line + "\n")
    message = refused(*of_folder("data.label=kind"))
    assert "metadata.jsonl" in message
    assert "2" in message


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["data.name=tfds"], "config.data.dataset"),
        (["data.name=tfds", "data.dataset=no/such/folder"], "no/such/folder"),
        (["data.name=avatars", "data.style=mica"], "did you mean 'micah'?"),
        (["data.name=avatars", "data.num=0"], "config.data.num=0"),
    ],
)
def test_a_data_set_that_cannot_be_prepared_is_named(refused, overrides, said):
    assert said in refused("--config=mine.py", *(f"--config.{each}" for each in overrides))


# Other runs, workdirs, disks


def test_weights_that_do_not_fit_are_named(refused, tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    codec = build.data_source(config_lib.load("mine.py")).codec
    with store.make_manager(epath.Path(theirs), keep=1, keep_every=0) as manager:
        store.save(manager, 3, {"ema": {"embed": {"kernel": np.zeros((2, 2), np.float32)}}}, config_lib.load("mine.py"), codec, {})
    message = refused(
        "--config=mine.py", f"--config.init.ckpt={theirs}", lines_at_most=4
    )  # a line for what is missing, one for what differs
    assert "holds other arrays than this model has" in message
    assert "--config.init.partial=True" in message


@pytest.mark.parametrize("workdir", ["mine.py", "mine.py/run"])
def test_a_workdir_that_is_a_file_is_named(refused, workdir):
    assert f"--workdir={workdir} cannot be written" in refused("--config=mine.py", workdir=workdir)


@pytest.fixture
def disk(tmp_path):
    """disk(options): a file system of its own at `disk`, where mounting is allowed."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(options):
        words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if shutil.which("mount") is None or subprocess.run(words, capture_output=True, check=False).returncode:
            pytest.skip("no right to mount a file system here")  # only root may; a full disk cannot be had otherwise
        return folder

    yield mount
    if shutil.which("umount") is not None:
        subprocess.run(["umount", str(folder)], capture_output=True, check=False)


def test_a_disk_that_is_too_small_is_named_with_both_sizes_and_the_keys(refused, disk):
    message = refused("--config=mine.py", workdir=disk("size=256k") / "run")
    assert "256 kiB are free there" in message
    assert re.search(r"1 more checkpoints at once take [\d.]+ kiB", message)
    assert all(f"config.train.{key}=" in message for key in ("keep", "keep_every", "checkpoint_every"))


def test_a_disk_that_cannot_be_written_is_named(refused, disk):
    assert "cannot be written: Read-only file system" in refused("--config=mine.py", workdir=disk("ro") / "run")
