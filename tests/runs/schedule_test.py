"""A run's learning rates: what its start says of them, what a resume may change, and where there is nothing left to train."""

import json
import logging
import math

import pytest

from tinygen import build, train
from tinygen import config as config_lib
from tinygen.errors import UserError

COSINE = dict(schedule="warmup_cosine", warmup=2)
QUIET = dict(log_every=1, eval_every=0, preview_every=0, checkpoint_every=0)


@pytest.fixture
def said(caplog):
    """said(): (what was logged of learning rates, warnings) since the last call."""
    caplog.set_level(logging.INFO, "absl")

    def take():
        lines = [(line.levelno, line.getMessage()) for line in caplog.records]
        caplog.clear()
        warnings = [line for level, line in lines if level == logging.WARNING]
        return [line for level, line in lines if level == logging.INFO and line.startswith("learning rate: ")], warnings

    return take


@pytest.fixture
def trained(curve, tmp_path):
    """trained(**changes of train, optim=changes of it): one start in the same workdir."""

    def run(optim=None, **settings):
        config = curve(optim=COSINE | (optim or {}), train=QUIET | settings)
        return train.main(config, str(tmp_path / "run"))

    return run


@pytest.mark.slow
def test_a_finished_run_that_is_given_more_steps_says_that_they_have_the_lowest_rate_and_the_override_raises_it(
    trained, said, tmp_path, metrics_of
):
    trained(steps=10)
    assert said() == (["learning rate: 0.005 at step 1, 0.01 at its peak (step 3), 0.00039 at the last step (10)"], [])
    trained(steps=20)
    rates, (warning,) = said()
    assert rates == ["learning rate: 1e-05 at step 11, 0.01 at its peak (step 3, passed), 1e-05 at the last step (20)"]
    assert warning.startswith("all 10 remaining steps have the lowest learning rate, 1e-05, since config.optim.decay_steps=10: ")
    assert "--config.optim.decay_steps=20 " in warning
    assert [line["lr"] for line in metrics_of(tmp_path / "run")[10:]] == pytest.approx([1e-5] * 10, rel=1e-5)
    trained(steps=30, optim=dict(decay_steps=30))  # as the warning has it
    assert said()[1] == []
    rates = [line["lr"] for line in metrics_of(tmp_path / "run")[20:]]
    assert rates[0] == pytest.approx(1e-5 + (1e-2 - 1e-5) * (1 + math.cos(math.pi * 18 / 28)) / 2, rel=1e-4)  # 2 of 30 are warm-up
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 1e-4
    (change,) = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines() if "decay_steps" in line]
    assert change["changes"]["optim.decay_steps"] == {"from": 10, "to": 30}


@pytest.mark.slow
def test_a_run_whose_tail_was_chosen_at_its_start_is_resumed_without_a_warning(trained, said, stop_during, monkeypatch):
    chosen = dict(steps=10, optim=dict(decay_steps=4))
    with monkeypatch.context() as patch:
        stop_during(patch, 6)
        trained(**chosen)
    assert said()[1] == []
    trained(**chosen)
    rates, warnings = said()
    assert rates == ["learning rate: 1e-05 at step 7, 0.01 at its peak (step 3, passed), 1e-05 at the last step (10)"]
    assert warnings == []


def test_a_run_within_its_warm_up_is_warned_of_at_its_start(trained, said):
    trained(steps=5, optim=dict(warmup=100))
    assert said()[1] == [
        "the warm-up, config.optim.warmup=100, takes all 5 steps, so the learning rate never decays: --config.optim.warmup=0 shortens it"
    ]


def test_fewer_steps_than_there_are_train_nothing_and_say_so(trained, said, caplog, tmp_path, metrics_of):
    trained(steps=6)
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    caplog.clear()
    assert trained(steps=3) == 0  # what was asked for is there: a scheduler that starts the command again takes it for done
    text = caplog.text
    rates, warnings = said()
    assert warnings == [
        "this run is at step 6, and config.train.steps=3: there is nothing left to train. To continue, raise --config.train.steps=12"
    ]
    assert rates == []
    assert "to step 3" not in text
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    trained(steps=6)
    assert said()[1] == []  # a finished run is no cause to warn
    trained(steps=12)
    assert [line["step"] for line in metrics_of(tmp_path / "run")] == list(range(1, 13))


def test_micro_batches_may_change_on_resume_and_change_no_loss_that_has_no_noise(curve, tmp_path, metrics_of, machine_of):
    machine_of(4)
    losses = {}
    for accumulate in (1, 4):
        for parts, steps in ((1, 4), (accumulate, 8)):
            config = curve(optim=dict(accumulate=parts), train=QUIET | dict(steps=steps))
            train.main(config, str(tmp_path / f"run{accumulate}"))
        losses[accumulate] = [line["loss"] for line in metrics_of(tmp_path / f"run{accumulate}")]
    assert losses[4] == pytest.approx(losses[1], rel=1e-6)
    events = (tmp_path / "run4" / "events.jsonl").read_text()
    assert '"optim.accumulate": {"from": 1, "to": 4}' in events


def test_the_key_of_the_batch_may_not_change(trained, curve, tmp_path):
    trained(steps=2)
    with pytest.raises(UserError, match="batch_size: 16 -> 8"):
        train.main(config_lib.change(curve(optim=COSINE, train=QUIET | dict(steps=4)), dict(batch_size=8)), str(tmp_path / "run"))


def test_a_schedule_as_long_as_the_run_has_its_steps(curve):
    assert build.schedule_keys(curve(train=dict(steps=7)))["decay_steps"] == 7
    assert build.schedule_keys(curve(optim=dict(decay_steps=5), train=dict(steps=7)))["decay_steps"] == 5
