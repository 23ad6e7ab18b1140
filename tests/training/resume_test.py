import json
import platform
import shutil

import jax
import pytest
from etils import epath

from tinygen import config as config_lib
from tinygen.errors import UserError
from tinygen.training import resume
from tinygen.workdir.files import folder
from tinygen.workdir.manifest import PACKAGES, make_manifest, note


def test_a_new_workdir_takes_the_config_and_a_schedule_as_long_as_the_run(tiny, tmp_path):
    config = resume.claim(epath.Path(tmp_path), tiny(optim=dict(decay_steps=0), train=dict(steps=30)))
    assert config.optim.decay_steps == 30
    assert config_lib.difference(config_lib.from_json((tmp_path / "config.json").read_text()), config) == {}
    assert not (tmp_path / "events.jsonl").exists()


def begin(workdir, config):
    """The workdir of a run with `config` that got past its first step."""
    resume.claim(workdir, config)
    (workdir / "metrics.jsonl").write_text('{"step": 1}\n')
    return workdir


def test_a_run_that_never_took_a_step_leaves_its_workdir_free(tiny, tmp_path):
    workdir = epath.Path(tmp_path)
    resume.claim(workdir, tiny(optim=dict(decay_steps=0)))
    (workdir / "metrics.jsonl").write_text("")
    claimed = resume.claim(workdir, tiny(seed=1, optim=dict(decay_steps=0), train=dict(steps=30)))
    assert (claimed.seed, claimed.optim.decay_steps) == (1, 30)
    assert config_lib.difference(config_lib.from_json((tmp_path / "config.json").read_text()), claimed) == {}


def test_training_longer_keeps_the_schedule_that_was_walked(tiny, tmp_path):
    workdir, long = begin(epath.Path(tmp_path), tiny(optim=dict(decay_steps=0), train=dict(steps=30))), dict(steps=90)
    for _ in range(2):  # the second time from the config.json that the first time changed
        assert resume.claim(workdir, tiny(optim=dict(decay_steps=0), train=long)).optim.decay_steps == 30


def test_a_schedule_may_be_changed_on_resume_and_then_stays_so(tiny, tmp_path):
    workdir, long = begin(epath.Path(tmp_path), tiny(optim=dict(decay_steps=0), train=dict(steps=30))), dict(steps=90)
    given = dict(lr=1e-3, schedule="linear", warmup=0, final_lr=1e-4)
    claimed = resume.claim(workdir, tiny(optim=dict(decay_steps=90, **given), train=long))
    assert {key: claimed.optim[key] for key in given} == given
    assert resume.claim(workdir, tiny(optim=dict(decay_steps=0, **given), train=long)).optim.decay_steps == 90
    (event,) = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    changed = {"optim.lr", "optim.schedule", "optim.warmup", "optim.decay_steps", "optim.final_lr", "train.steps"}
    assert event["changes"].keys() == changed
    assert event["changes"]["optim.decay_steps"] == {"from": 30, "to": 90}


def test_resume_keys_may_change_and_each_change_is_recorded(tiny, tmp_path):
    workdir = begin(epath.Path(tmp_path), tiny())
    claimed = resume.claim(workdir, tiny(train=dict(steps=50), mesh=dict(fsdp=2), objective=dict(guidance_interval=(0.2, 0.8))))
    resume.claim(workdir, tiny(train=dict(steps=60), mesh=dict(fsdp=2), objective=dict(guidance_interval=(0.2, 0.8))))
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
        resume.claim(workdir, tiny(seed=1, optim=dict(b1=0.8), train=dict(steps=50)))
    assert "(optim.b1: 0.9 -> 0.8; seed: 0 -> 1)" in str(refused.value)  # and not train.steps, which may
    assert str(tmp_path) in str(refused.value)
    assert (tmp_path / "config.json").read_text() == before
    assert not (tmp_path / "events.jsonl").exists()


def test_a_long_list_of_differences_is_cut_short(tiny, curve, tmp_path):
    begin(epath.Path(tmp_path), tiny())
    with pytest.raises(UserError, match=r"; and \d+ more\)") as refused:
        resume.claim(epath.Path(tmp_path), curve())
    assert len(str(refused.value).splitlines()) == 2


def test_a_manifest_says_what_the_run_was_made_with():
    manifest = make_manifest("fingerprint of the data", 1234, 5678)
    assert manifest["versions"]["python"] == platform.python_version()
    assert manifest["versions"]["jax"] == jax.__version__
    assert set(PACKAGES) <= set(manifest["versions"])
    assert (manifest["device_kind"], manifest["device_count"], manifest["process_count"]) == ("cpu", 8, 1)
    assert (manifest["data_fingerprint"], manifest["parameters"]) == ("fingerprint of the data", 1234)
    assert isinstance(manifest["revision"], str)
    assert json.loads(json.dumps(manifest)) == manifest


def test_what_was_done_to_a_config_json_beside_a_checkpoint_is_told_and_undone(finished, tiny, tmp_path, caplog):
    workdir = tmp_path / "run"
    shutil.copytree(finished.workdir, workdir)
    text = (workdir / "config.json").read_text()
    (workdir / "config.json").write_text(text.replace('"decay_steps": 40', '"decay_steps": 90').replace('"b1": 0.9', '"b1": 0.8'))
    assert resume.claim(epath.Path(workdir), tiny(optim=dict(decay_steps=0))).optim.decay_steps == 40
    assert "config.json has changed (optim.b1: 0.9 -> 0.8): it is taken from the checkpoint" in caplog.text
    assert (workdir / "config.json").read_text() == text


@pytest.mark.parametrize("text", [None, "", '{"seed": 0, '])
def test_a_configuration_that_is_lost_is_taken_from_the_newest_checkpoint(finished, tiny, tmp_path, text):
    workdir = tmp_path / "run"
    shutil.copytree(finished.workdir, workdir)
    (workdir / "config.json").unlink()
    if text is not None:
        (workdir / "config.json").write_text(text)
    with pytest.raises(UserError, match="seed: 0 -> 1"):
        resume.claim(epath.Path(workdir), tiny(seed=1))
    resume.claim(epath.Path(workdir), tiny())
    assert config_lib.from_json((workdir / "config.json").read_text()) == finished.config


def test_an_event_after_a_torn_line_stands_on_its_own(tmp_path):
    (tmp_path / "events.jsonl").write_text('{"step": 1}\n{"ste')
    note(folder(tmp_path), 2, "start")
    note(folder(tmp_path), 3, "stopped")
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert lines[:2] == ['{"step": 1}', '{"ste']
    assert [json.loads(line)["step"] for line in lines[2:]] == [2, 3]
