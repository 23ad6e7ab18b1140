import json
import shutil

import pytest
from etils import epath

from tinygen import build, train
from tinygen import config as config_lib
from tinygen.checkpoints import store, weights
from tinygen.cli import main as cli
from tinygen.data.codec import Codec
from tinygen.data.labels import Labels
from tinygen.errors import UserError
from tinygen.media import Array

CODEC = Codec(medium=Array("curve"), spec={}, conditions=(Labels(("north", "süd")),))


def save_steps(workdir, steps, *, config, state, keep=9, keep_every=0, codec=CODEC):
    with store.make_manager(workdir, keep=keep, keep_every=keep_every) as manager:
        for step in steps:
            store.save(manager, step, state, config, codec, {"made": "here"})
        manager.wait_until_finished()
        return manager.all_steps()


def test_the_newest_are_kept_and_every_kth(made, curve, tmp_path):
    it = made(curve(), 8, 1, 1)
    assert save_steps(epath.Path(tmp_path), [1, 2, 3, 4, 5], config=it.config, state=it.state, keep=1, keep_every=2) == [2, 4, 5]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["2", "4", "5", "deleted"]  # which `saver` empties


@pytest.fixture(scope="module")
def stored(finished):
    """The shared run: checkpoints at steps 10 and 20."""
    return finished.workdir


@pytest.mark.parametrize(
    ("path", "step", "found"),
    [("", None, 20), ("", 10, 10), ("checkpoints", None, 20), ("checkpoints/10", None, 10), ("checkpoints/10/", 20, 20)],
    ids=str,
)
def test_a_checkpoint_is_found_by_its_run_its_folder_or_itself(stored, path, step, found):
    saved = store.find(stored / path, step)
    assert (saved.step, saved.workdir) == (found, epath.Path(stored))


def test_a_found_checkpoint_brings_config_codec_and_manifest_as_they_were(finished):
    saved = store.find(finished.workdir)
    assert config_lib.difference(saved.config, finished.config) == {}
    assert saved.codec == build.data_source(finished.config).codec
    assert saved.manifest == json.loads((finished.workdir / "manifest.json").read_text())


@pytest.mark.parametrize(
    ("path", "step", "message"),
    [
        ("nowhere", None, "no such folder"),
        ("samples", None, "no checkpoint there"),
        ("", 15, "--step=15: .* has no such checkpoint; it has 10, 20"),
        ("checkpoints/15", None, "no such folder"),
    ],
)
def test_where_there_is_no_checkpoint_it_says_so(stored, path, step, message):
    with pytest.raises(UserError, match=message):
        store.find(stored / path, step)


def test_looking_for_a_checkpoint_writes_nothing(stored, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(stored, copy)
    (copy / "checkpoints" / "30.orbax-checkpoint-tmp").mkdir()  # a save that another process has under way
    before = sorted(copy.rglob("*"))
    assert store.find(copy).step == 20
    assert sorted(copy.rglob("*")) == before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Orbax's own threads, over the same damage
@pytest.mark.parametrize("torn", ["config/metadata", "state/manifest.ocdbt", "state/_METADATA"])
def test_a_damaged_checkpoint_is_named_and_so_are_the_others(stored, tmp_path, torn):
    copy = tmp_path / "copy"
    shutil.copytree(stored, copy)
    (copy / "checkpoints" / "20" / torn).write_bytes(b"")
    with pytest.raises(UserError, match=r"checkpoints/20 cannot be read") as refused:
        weights.load(saved := store.find(copy), build.parts(saved.config, saved.codec), ema=True)
    assert "Other checkpoints there: 10." in str(refused.value)
    assert len(str(refused.value).splitlines()) == 2
    assert store.find(copy, 10).step == 10


@pytest.mark.slow
def test_a_relative_workdir_trains_resumes_and_samples_from_where_the_user_stands(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train.main(tiny(train=dict(steps=10)), "runs/here") == 0
    assert train.main(tiny(train=dict(steps=12)), "runs/here") == 0
    assert store.find("runs/here").step == 12
    assert cli.main(["sample", "--ckpt=runs/here", "--num=3", "--out=drawn"]) == 0
    assert {"00002.png", "grid.png", "samples.json"} < {path.name for path in (tmp_path / "drawn").iterdir()}
