import dataclasses
import json
import time

import pytest
from etils import epath

from tinygen import build, train
from tinygen.checkpoints import store
from tinygen.data.examples import ArrayExamples
from tinygen.errors import UserError
from tinygen.workdir import writers


def test_a_refusal_of_other_data_leaves_the_run_as_it_was(curve, add_row, tmp_path):
    train.main(curve(train=dict(steps=2)), str(tmp_path / "run"))
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.suffix in (".json", ".jsonl")}
    other = dataclasses.replace(build.data_source(curve()), fingerprint="another sine")
    add_row("data", "toy_sine", lambda *, num: other, dict(num=64))
    with pytest.raises(UserError, match="Restore them, or give another --workdir"):
        train.main(curve(train=dict(steps=4)), str(tmp_path / "run"))
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.suffix in (".json", ".jsonl")} == before


class Failing(ArrayExamples):
    """Examples that cannot be read from the `good`th batch on."""

    good = 5

    def take(self, indices):
        if Failing.good == 0:
            raise UserError("cat.png has gone")
        Failing.good -= 1
        return super().take(indices)


def test_where_data_fail_in_mid_run_what_was_learnt_is_saved_and_the_reason_noted(curve, add_row, tmp_path, monkeypatch):
    source = build.data_source(curve())
    failing = dataclasses.replace(source, splits={**source.splits, "train": Failing(source.splits["train"].arrays)})
    add_row("data", "toy_sine", lambda *, num: failing, dict(num=64))
    with pytest.raises(UserError, match=r"cat\.png has gone"):
        train.main(curve(train=dict(steps=50, checkpoint_every=0)), str(tmp_path / "run"))
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert (events[-1]["event"], events[-1]["reason"]) == ("stopped", "cat.png has gone")
    assert store.saved_steps(epath.Path(tmp_path / "run")) == [events[-1]["step"]]
    assert events[-1]["step"] >= 1
    monkeypatch.setattr(Failing, "good", 1000)  # the file is back
    assert train.main(curve(train=dict(steps=12, checkpoint_every=0)), str(tmp_path / "run")) == 0
    assert store.saved_steps(epath.Path(tmp_path / "run")) == [events[-1]["step"], 12]


def test_pictures_that_cannot_be_written_are_reported_once_and_the_run_continues(curve, tmp_path, caplog, metrics_of):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "samples").write_text("no folder")
    assert train.main(curve(train=dict(steps=10, preview_every=2, log_every=5)), str(tmp_path / "run")) == 0
    warnings = [line.message for line in caplog.records if "samples/ cannot be written" in line.message]
    assert warnings == ["samples/ cannot be written: a file, not a folder: not opened. The run continues."]
    assert store.saved_steps(epath.Path(tmp_path / "run")) == [10]
    assert [line["step"] for line in metrics_of(tmp_path / "run")] == [1, 5, 10]


def test_a_failing_writer_is_reported_once_and_the_run_continues(curve, tmp_path, caplog, metrics_of, monkeypatch):
    class Broken:
        def __init__(self, workdir, settings):
            pass

        def write_scalars(self, step, scalars):
            raise ConnectionError("the service has gone")

        def write_images(self, step, images):
            pass

        def flush(self):
            pass

        close = flush

    monkeypatch.setitem(writers.WRITERS, "json", Broken)  # the name of a package that is there
    assert train.main(curve(train=dict(steps=10, log_every=2, writers="json")), str(tmp_path / "run")) == 0
    assert len([line for line in caplog.records if "ConnectionError: the service has gone" in line.message]) == 1
    assert len(metrics_of(tmp_path / "run")) == 6


def test_events_tell_starts_with_their_origin_changes_and_ends(curve, tmp_path, stop_during, monkeypatch):
    workdir, origin = tmp_path / "run", {"recipe": "configs/mine.py", "changed": {"optim.lr": (1e-3, 2e-3)}}
    with monkeypatch.context() as patch:
        stop_during(patch, 3)
        train.main(curve(train=dict(steps=6)), str(workdir), origin)
    train.main(curve(train=dict(steps=7)), str(workdir), origin)
    events = [json.loads(line) for line in (workdir / "events.jsonl").read_text().splitlines()]
    assert [(event["event"], event["step"]) for event in events] == [
        ("start", 0),
        ("stopped", 3),
        ("config", 3),
        ("start", 3),
        ("finished", 7),
    ]
    assert events[0]["recipe"] == "configs/mine.py"
    assert events[0]["changed"] == {"optim.lr": [1e-3, 2e-3]}
    assert events[1]["signal"] == "SIGTERM"
    assert events[2]["changes"] == {"train.steps": {"from": 6, "to": 7}}


def test_a_stall_is_told_with_what_is_waited_for_and_noted(curve, add_row, tmp_path, caplog):
    source = build.data_source(curve())

    class Slow(ArrayExamples):
        def take(self, indices):
            time.sleep(0.2)
            return super().take(indices)

    slow = dataclasses.replace(source, splits={**source.splits, "train": Slow(source.splits["train"].arrays)})
    add_row("data", "toy_sine", lambda *, num: slow, dict(num=64))
    settings = dict(steps=12, eval_every=0, preview_every=0, checkpoint_every=0)
    train.main(curve(train=settings, guard=dict(stall=0.05 / 60)), str(tmp_path / "run"))
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    told = [event["told"] for event in events if event["event"] == "stall"]
    assert any("waiting for data" in each and "Is the folder's disk or network slow?" in each for each in told)
    assert any(line.message in told for line in caplog.records)


def test_a_spike_of_the_loss_is_warned_of_and_noted(curve, add_row, tmp_path, caplog):
    source = build.data_source(curve())
    points = dict(source.splits["train"].arrays)

    class Rare(ArrayExamples):
        calls = 0

        def take(self, indices):
            Rare.calls += 1
            batch = super().take(indices)
            return {**batch, "y": batch["y"] + 100.0} if Rare.calls == 60 else batch

    spiky = dataclasses.replace(source, splits={**source.splits, "train": Rare(points)})
    add_row("data", "toy_sine", lambda *, num: spiky, dict(num=64))
    settings = dict(steps=80, eval_every=0, preview_every=0, checkpoint_every=0)
    train.main(curve(train=settings, optim=dict(lr=1e-5)), str(tmp_path / "run"))
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    (spike,) = [event for event in events if event["event"] == "spike"]
    assert spike["loss"] > 1000 * spike["median"]
    assert 55 <= spike["step"] <= 60
    assert any("a spike" in line.message for line in caplog.records)


def test_a_codec_that_was_edited_is_repaired_on_resume_and_other_versions_are_warned_of(curve, tmp_path, caplog):
    workdir = tmp_path / "run"
    train.main(curve(train=dict(steps=2)), str(workdir))
    codec = workdir / "codec" / "codec.json"
    sound = codec.read_text()
    codec.write_text(json.dumps(json.loads(sound) | {"labels": ["a stranger's"]}))
    caplog.clear()
    train.main(curve(train=dict(steps=3)), str(workdir))
    assert codec.read_text() == sound
    assert caplog.text.count("codec.json is not what this run was trained with") == 1
    assert "other versions" not in caplog.text
    manifest = workdir / "checkpoints" / "3" / "manifest" / "metadata"
    tree = json.loads(manifest.read_text())
    del tree["sealed"]  # or the checkpoint would count as damaged
    tree["versions"] |= {"jax": "0.9.9"}
    manifest.write_text(json.dumps(tree))
    (workdir / "checkpoints" / "3" / "SHA256SUMS").unlink()
    caplog.clear()
    train.main(curve(train=dict(steps=4)), str(workdir))
    said = [line.message for line in caplog.records if "other versions" in line.message]
    assert len(said) == 1
    assert "(jax 0.9.9 -> " in said[0]
    assert "is not what this run was trained with" not in caplog.text
