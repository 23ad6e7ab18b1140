import json
import platform
import shutil

import jax
import pytest
from etils import epath

from tinygen import build, checkpoint, cli, sample, train
from tinygen import config as schema
from tinygen.data.codec import Codec
from tinygen.errors import UserError

CODEC = Codec(kind="curve", spec={}, labels=("north", "süd"))


def save_steps(workdir, steps, *, config, state, keep=9, keep_every=0, codec=CODEC):
    with checkpoint.make_manager(workdir, keep=keep, keep_every=keep_every) as manager:
        for step in steps:
            checkpoint.save(manager, step, state, config, codec, {"made": "here"})
        manager.wait_until_finished()
        return manager.all_steps()


def test_the_newest_are_kept_and_every_kth(made, curve, tmp_path):
    it = made(curve(), 8, 1, 1)
    assert save_steps(epath.Path(tmp_path), [1, 2, 3, 4, 5], config=it.config, state=it.state, keep=1, keep_every=2) == [2, 4, 5]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["2", "4", "5"]


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
    saved = checkpoint.find(stored / path, step)
    assert (saved.step, saved.workdir) == (found, epath.Path(stored))


def test_a_found_checkpoint_brings_config_codec_and_manifest_as_they_were(finished):
    saved = checkpoint.find(finished.workdir)
    assert schema.difference(saved.config, finished.config) == {}
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
        checkpoint.find(stored / path, step)


def test_looking_for_a_checkpoint_writes_nothing(stored, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(stored, copy)
    (copy / "checkpoints" / "30.orbax-checkpoint-tmp").mkdir()  # a save that another process has under way
    before = sorted(copy.rglob("*"))
    assert checkpoint.find(copy).step == 20
    assert sorted(copy.rglob("*")) == before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Orbax's own threads, over the same damage
@pytest.mark.parametrize("torn", ["config/metadata", "state/manifest.ocdbt", "state/_METADATA"])
def test_a_damaged_checkpoint_is_named_and_so_are_the_others(stored, tmp_path, torn):
    copy = tmp_path / "copy"
    shutil.copytree(stored, copy)
    (copy / "checkpoints" / "20" / torn).write_bytes(b"")
    with pytest.raises(UserError, match=r"checkpoints/20 cannot be read") as refused:
        sample.load(saved := checkpoint.find(copy), build.parts(saved.config, saved.codec), ema=True)
    assert "Other checkpoints there: 10." in str(refused.value)
    assert len(str(refused.value).splitlines()) == 2
    assert checkpoint.find(copy, 10).step == 10


def test_a_new_workdir_takes_the_config_and_a_schedule_as_long_as_the_run(tiny, tmp_path):
    config = checkpoint.claim(epath.Path(tmp_path), tiny(optim=dict(decay_steps=0), train=dict(steps=30)))
    assert config.optim.decay_steps == 30
    assert schema.difference(schema.from_json((tmp_path / "config.json").read_text()), config) == {}
    assert not (tmp_path / "events.jsonl").exists()


def begin(workdir, config):
    """The workdir of a run with `config` that got past its first step."""
    checkpoint.claim(workdir, config)
    (workdir / "metrics.jsonl").write_text('{"step": 1}\n')
    return workdir


def test_a_run_that_never_took_a_step_leaves_its_workdir_free(tiny, tmp_path):
    workdir = epath.Path(tmp_path)
    checkpoint.claim(workdir, tiny(optim=dict(decay_steps=0)))
    (workdir / "metrics.jsonl").write_text("")
    claimed = checkpoint.claim(workdir, tiny(seed=1, optim=dict(decay_steps=0), train=dict(steps=30)))
    assert (claimed.seed, claimed.optim.decay_steps) == (1, 30)
    assert schema.difference(schema.from_json((tmp_path / "config.json").read_text()), claimed) == {}


def test_training_longer_keeps_the_schedule_that_was_walked(tiny, tmp_path):
    workdir, long = begin(epath.Path(tmp_path), tiny(optim=dict(decay_steps=0), train=dict(steps=30))), dict(steps=90)
    for _ in range(2):  # the second time from the config.json that the first time changed
        assert checkpoint.claim(workdir, tiny(optim=dict(decay_steps=0), train=long)).optim.decay_steps == 30
    with pytest.raises(UserError, match=r"optim.decay_steps: 30 -> 90"):
        checkpoint.claim(workdir, tiny(optim=dict(decay_steps=90), train=long))


def test_resume_keys_may_change_and_each_change_is_recorded(tiny, tmp_path):
    workdir = begin(epath.Path(tmp_path), tiny())
    claimed = checkpoint.claim(workdir, tiny(train=dict(steps=50), mesh=dict(fsdp=2), objective=dict(guidance_interval=(0.2, 0.8))))
    checkpoint.claim(workdir, tiny(train=dict(steps=60), mesh=dict(fsdp=2), objective=dict(guidance_interval=(0.2, 0.8))))
    assert (claimed.train.steps, claimed.mesh.fsdp) == (50, 2)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(event["step"], event["event"]) for event in events] == [(0, "config"), (0, "config")]
    assert [event["changes"] for event in events] == [
        {
            "mesh.fsdp": {"from": 1, "to": 2},
            "objective.guidance_interval": {"from": [0.0, 1.0], "to": [0.2, 0.8]},
            "train.steps": {"from": 20, "to": 50},
        },
        {"train.steps": {"from": 50, "to": 60}},
    ]


def test_other_keys_may_not_change_and_the_refusal_names_them_with_their_values(tiny, tmp_path):
    workdir = begin(epath.Path(tmp_path), tiny())
    before = (tmp_path / "config.json").read_text()
    with pytest.raises(UserError) as refused:
        checkpoint.claim(workdir, tiny(seed=1, optim=dict(lr=1e-4), train=dict(steps=50)))
    assert "(optim.lr: 0.002 -> 0.0001; seed: 0 -> 1)" in str(refused.value)  # and not train.steps, which may
    assert str(tmp_path) in str(refused.value)
    assert (tmp_path / "config.json").read_text() == before
    assert not (tmp_path / "events.jsonl").exists()


def test_a_long_list_of_differences_is_cut_short(tiny, curve, tmp_path):
    begin(epath.Path(tmp_path), tiny())
    with pytest.raises(UserError, match=r"; and \d+ more\)") as refused:
        checkpoint.claim(epath.Path(tmp_path), curve())
    assert len(str(refused.value).splitlines()) == 2


def test_a_manifest_says_what_the_run_was_made_with():
    manifest = checkpoint.make_manifest("fingerprint of the data", 1234, 5678)
    assert manifest["versions"]["python"] == platform.python_version()
    assert manifest["versions"]["jax"] == jax.__version__
    assert set(checkpoint.PACKAGES) <= set(manifest["versions"])
    assert (manifest["device_kind"], manifest["device_count"], manifest["process_count"]) == ("cpu", 8, 1)
    assert (manifest["data_fingerprint"], manifest["parameters"]) == ("fingerprint of the data", 1234)
    assert isinstance(manifest["revision"], str)
    assert json.loads(json.dumps(manifest)) == manifest


def test_a_relative_workdir_trains_resumes_and_samples_from_where_the_user_stands(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train.main(tiny(train=dict(steps=10)), "runs/here") == 0
    assert train.main(tiny(train=dict(steps=12)), "runs/here") == 0
    assert checkpoint.find("runs/here").step == 12
    assert cli.main(["sample", "--ckpt=runs/here", "--num=3", "--out=drawn"]) == 0
    assert {"00002.png", "grid.png", "samples.json"} < {path.name for path in (tmp_path / "drawn").iterdir()}
