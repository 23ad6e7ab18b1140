import json
import shutil

import pytest

from tinygen import build, evaluate, train
from tinygen.checkpoints import store
from tinygen.errors import UserError
from tinygen.training import held_out

# The same program on the same weights, so the same bits on one machine; 1e-5 lets it sum in another order.
CLOSE = dict(rel=1e-5)


@pytest.fixture
def workdir(finished, tmp_path):
    """A copy of the shared run, to be written to."""
    return shutil.copytree(finished.workdir, tmp_path / "run")


@pytest.fixture
def logged(workdir):
    """What the run itself said of its last step."""
    return json.loads((workdir / "metrics.jsonl").read_text().splitlines()[-1])


def evaluated(workdir):
    return [json.loads(line) for line in (workdir / "eval.jsonl").read_text().splitlines()]


def test_a_checkpoint_gets_the_held_out_losses_that_its_run_logged(workdir, logged, capsys):
    for ema in (True, False):
        assert evaluate.main(str(workdir), step=None, ema=ema) == 0
    averaged, raw = evaluated(workdir)
    for line, prefix in ((averaged, "eval_ema_"), (raw, "eval_")):
        for name in ("loss", "raw_loss", *(f"raw_loss_t{quarter}" for quarter in range(4))):
            assert line[name] == pytest.approx(logged[prefix + name], **CLOSE)
    assert averaged["loss"] != pytest.approx(raw["loss"], **CLOSE)
    assert [(line["step"], line["ema"]) for line in (averaged, raw)] == [(20, True), (20, False)]
    said = capsys.readouterr().out
    assert "step 20, averaged weights, 1000 held-out examples" in said
    assert "step 20, raw weights" in said
    assert f"{averaged['loss']:.5g}" in said


def test_another_step_has_another_loss_and_each_evaluation_adds_a_line(workdir):
    for step in (10, 20, 10):
        evaluate.main(str(workdir), step=step, ema=True)
    first, last, again = evaluated(workdir)
    assert (first["step"], last["step"]) == (10, 20)
    assert first["loss"] > last["loss"]  # it learns
    assert first["loss"] == again["loss"]  # the noise and t are the same every time
    assert last["data_fingerprint"] == store.find(workdir).manifest["data_fingerprint"]


def test_the_loss_hardly_depends_on_the_devices(workdir, logged, machine_of):
    machine_of(1)
    evaluate.main(str(workdir / "checkpoints"), step=None, ema=True)
    assert evaluated(workdir)[0]["loss"] == pytest.approx(logged["eval_ema_loss"], **CLOSE)


def test_padding_of_the_last_batch_counts_for_nothing(curve, add_row, tmp_path):
    """16 held-out points in batches of 16 or, padded, of 24: without noise the mean is the same."""
    workdir = tmp_path / "run"
    train.main(curve(train=dict(steps=1, preview_every=0)), str(workdir))
    evaluate.main(str(workdir), step=None, ema=True)
    source = build.data_source(curve())
    saved = store.find(workdir)
    config = curve(batch_size=24)
    parts = build.parts(config, source.codec)
    padded = held_out.make_held_out(config, source, parts)(*evaluate.load(saved, parts, ema=True))
    assert padded["loss"] == pytest.approx(evaluated(workdir)[0]["loss"], **CLOSE)


def test_a_place_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(UserError, match="no checkpoint there"):
        evaluate.main(str(tmp_path), step=None, ema=True)
