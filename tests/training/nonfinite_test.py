"""What a run does about updates that are not finite: by the rules alone, and in whole runs on data that are poisoned in chosen batches."""

import dataclasses
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from etils import epath

from tinygen import build, train
from tinygen.checkpoints import store
from tinygen.data.source import DataSource
from tinygen.errors import UserError
from tinygen.training.nonfinite import Guard, RollBack, Spikes


def guard(**changes):
    return Guard(**{**dict(policy="skip", skips=2, rollbacks=3, skipped=0, streak=0, attempt=0), **changes})


TOLD = {"loss": "nan", "grad_norm": "inf"}


def test_single_bad_updates_are_borne_for_ever():
    it = guard(skips=1)
    for first in range(1, 100, 2):
        assert it.watch([first, first + 1], [first // 2 + 1] * 2, [0.0, 0.1]) == {first: 1}
        assert not it.spent


def test_patience_ends_with_one_more_in_a_row_than_may_be_skipped():
    it = guard(skips=2)
    assert it.watch([1, 2, 3, 4, 5], [0, 1, 2, 3, 4], [0.1] + [0.0] * 4) == {2: 1, 3: 2, 4: 3}  # step 5 is no longer looked at
    assert it.spent
    assert it.end(4, TOLD).step == 4


def test_a_streak_continues_over_calls_and_over_a_restart():
    it = guard(skips=2, skipped=7, streak=1)
    assert it.watch([11], [8], [0.0]) == {11: 2}
    assert it.watch([12], [9], [0.0]) == {12: 3}
    assert it.spent


@pytest.mark.parametrize("policy", ["rollback", "stop"])
def test_other_policies_have_no_patience(policy):
    it = guard(policy=policy)
    assert it.watch([1, 2], [1, 2], [0.0, 0.0]) == {1: 1}
    assert it.spent
    assert isinstance(it.end(1, TOLD), RollBack if policy == "rollback" else UserError)


def test_after_so_many_rollbacks_the_run_ends_and_says_what_happened():
    it = guard(attempt=3, streak=3)
    end = it.end(40, TOLD)
    assert isinstance(end, UserError)
    assert "step 40: the loss (nan) or its gradient (inf) is not finite, 3 times in a row after 3 rollbacks" in str(end)


def test_a_spike_is_a_loss_far_above_the_spread_of_the_recent_ones():
    spikes, numbers = Spikes(10), np.random.default_rng(0)
    usual = {step: 1 + 0.1 * numbers.normal() for step in range(100)}
    assert spikes(usual) == {}
    found = spikes({100: 1.5, 101: 3.0, 102: 0.1})
    assert list(found) == [101]
    assert found[101][0] == 3.0
    assert abs(found[101][1] - 1) < 0.05


def test_spikes_are_not_looked_for_among_few_losses_nor_when_told_not_to():
    assert Spikes(10)({step: 100.0**step for step in range(20)}) == {}
    assert Spikes(0)({step: 1.0 + (step == 99) * 50 for step in range(100)}) == {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Poisoned(DataSource):
    """Batches, some of which hold a NaN: those of the steps `bad`, in the attempts `while_attempt` says."""

    bad: frozenset[int]
    attempts: int

    def batches(self, split, batch_size, seed, attempt=0, start=0, *others, **keywords):
        for step, batch in enumerate(super().batches(split, batch_size, seed, attempt, start, *others, **keywords), start + 1):
            bad = step in self.bad and attempt < self.attempts
            yield {**batch, "y": np.full_like(batch["y"], np.nan)} if bad else batch


@pytest.fixture
def poisoned(curve, add_row, tmp_path, metrics_of, saved_arrays):
    """poisoned(bad steps, attempts, name=..., **changes): a run on such data, and what it leaves."""
    source = build.data_source(curve())
    fields = {field.name: getattr(source, field.name) for field in dataclasses.fields(DataSource)}

    def run(bad, attempts, name="run", **changes):
        add_row("data", "toy_sine", lambda *, num: Poisoned(**fields, bad=frozenset(bad), attempts=attempts), dict(num=64))
        workdir, error = tmp_path / name, None
        config = curve(**{"train": dict(steps=20, log_every=1, eval_every=10, preview_every=20, checkpoint_every=5, keep=9), **changes})
        try:
            train.main(config, str(workdir))
        except UserError as raised:
            error = raised
        lines = metrics_of(workdir)
        return SimpleNamespace(
            workdir=workdir,
            error=error,
            lines=[line for line in lines if "event" not in line],
            events=[(line["event"], line["step"]) for line in lines if "event" in line],
            checkpoints=store.saved_steps(epath.Path(workdir)),
            state=lambda step: saved_arrays(workdir, step),
        )

    return run


def test_a_bad_update_is_skipped_and_noted_once_and_the_run_continues(poisoned):
    run = poisoned({6, 7, 13}, 1)
    assert run.events == [("skipped", 6), ("skipped", 7), ("skipped", 13)]
    assert [line["step"] for line in run.lines] == [step for step in range(1, 21) if step not in (6, 7, 13)]
    assert run.lines[-1]["skipped"] == 3
    assert run.error is None
    assert all(np.isfinite(leaf).all() for leaf in run.state(20).values())
    assert run.state(20)["opt_state/adam/count"] == 17


def test_a_long_streak_rolls_the_run_back_and_on_with_other_data(poisoned):
    run = poisoned(range(12, 18), 1, guard=dict(skips=2))
    assert run.events == [("skipped", 12), ("skipped", 13), ("skipped", 14), ("rollback", 14)]
    assert [line["step"] for line in run.lines] == list(range(1, 21))
    assert [line.get("attempt", 0) for line in run.lines] == [0] * 10 + [1] * 10
    assert (int(run.state(20)["guard/attempt"]), int(run.state(20)["guard/skipped"])) == (1, 0)
    clean = poisoned((), 0, name="clean")
    assert clean.lines[:10] == run.lines[:10]
    assert clean.lines[10]["loss"] != run.lines[10]["loss"]  # the same data would be poisoned again


@pytest.mark.slow
def test_what_is_saved_before_a_streak_is_not_pushed_out_by_it(poisoned):
    run = poisoned(range(11, 40), 1, train=dict(steps=30, log_every=1, eval_every=0, checkpoint_every=5, keep=2))
    event = next(json.loads(line) for line in (run.workdir / "metrics.jsonl").read_text().splitlines() if "rollback" in line)
    assert (event["step"], event["to"]) == (21, 10)
    assert run.checkpoints == [25, 30]


def test_an_update_that_was_taken_and_is_not_finite_ends_the_attempt_at_once():
    it = guard(skips=9)
    assert it.watch([1, 2, 3], [0, 0, 0], [0.1, math.inf, 0.1]) == {}
    assert (it.spoilt, it.spent) == (2, True)
    it.begin(0, 3)
    assert not it.spent
    it.watch([4], [0], [math.nan])
    assert "step 4: the update (nan of the parameters) is not finite after 3 rollbacks" in str(it.end(4, {"update_ratio": "nan"}))


BEYOND = {
    "a rate beyond all measure": dict(lr=1e30, schedule="constant"),
    "a last rate that is": dict(lr=0.01, schedule="linear", decay_steps=1, final_lr=1e30),
    "a decay that is": dict(lr=1e30, weight_decay=1e20, schedule="constant"),
}


@pytest.mark.parametrize("name", BEYOND)
@pytest.mark.parametrize("steps_per_call", [1, 3])
def test_no_checkpoint_ever_holds_what_is_not_finite(poisoned, name, steps_per_call):
    """Loss and gradient are finite, the update is not: the device takes it, and the loop tells before anything is saved."""
    settings = dict(steps=9, checkpoint_every=1, keep=1, log_every=1, steps_per_call=steps_per_call)
    run = poisoned((), 0, optim=BEYOND[name], guard=dict(skips=3, rollbacks=1), train=settings)
    assert "what is saved is finite" in str(run.error)
    assert [event for event, _ in run.events] == ["spoilt", "rollback", "spoilt"]
    for step in run.checkpoints:
        assert all(np.isfinite(leaf).all() for leaf in run.state(step).values())


@pytest.mark.slow
def test_a_checkpoint_from_within_a_streak_is_not_gone_back_to(poisoned):
    run = poisoned(range(12, 18), 1, guard=dict(skips=2), train=dict(steps=20, log_every=1, eval_every=0, checkpoint_every=1, keep=99))
    event = next(json.loads(line) for line in (run.workdir / "metrics.jsonl").read_text().splitlines() if "rollback" in line)
    assert (event["step"], event["to"]) == (14, 11)
    assert run.checkpoints == list(range(1, 21))
    assert int(run.state(12)["guard/attempt"]) == 1


def test_where_there_is_no_checkpoint_the_run_is_rolled_back_to_its_beginning(poisoned):
    run = poisoned({2, 3}, 2, guard=dict(policy="rollback"))
    assert run.events == [("skipped", 2), ("rollback", 2), ("skipped", 2), ("rollback", 2)]
    assert [line["step"] for line in run.lines] == list(range(1, 21))
    assert int(run.state(20)["guard/attempt"]) == 2


@pytest.mark.slow
def test_a_run_that_fails_after_every_rollback_ends_with_its_good_checkpoint(poisoned):
    run = poisoned(range(8, 20), 99, guard=dict(skips=1, rollbacks=2))
    assert "step 9:" in str(run.error)
    assert "after 2 rollbacks" in str(run.error)
    assert run.events.count(("rollback", 9)) == 2
    assert run.checkpoints == [5]
    assert [line["step"] for line in run.lines] == [*range(1, 8)]
    again = poisoned(range(8, 20), 99, guard=dict(skips=1, rollbacks=2))
    assert (str(again.error), again.lines, again.events) == (str(run.error), run.lines, run.events)


def test_policy_stop_ends_the_run_at_once(poisoned):
    run = poisoned({7}, 1, guard=dict(policy="stop"))
    assert "step 7: the loss (nan)" in str(run.error)
    assert run.events == [("skipped", 7)]
    assert run.checkpoints == [5]


@pytest.mark.slow
def test_a_signal_in_a_streak_does_not_push_out_the_checkpoint_to_go_back_to(poisoned, stop_during, monkeypatch):
    settings = dict(guard=dict(skips=3), train=dict(steps=20, log_every=1, checkpoint_every=10, keep=1))
    straight = poisoned(range(12, 18), 1, name="straight", **settings)
    for step in (11, 13):  # before it, and within
        with monkeypatch.context() as patch:
            stop_during(patch, step)
            assert poisoned(range(12, 18), 1, **settings).checkpoints == [10, step]
    again = poisoned(range(12, 18), 1, **settings)
    assert (again.lines, again.events) == (straight.lines, straight.events)
    assert ("rollback", 15) in again.events
    assert again.checkpoints == straight.checkpoints == [20]


@pytest.mark.slow
@pytest.mark.parametrize(("step", "saved"), [(9, 9), (13, 13), (14, 11), (16, 16)])
def test_a_stopped_and_resumed_run_decides_like_an_uninterrupted_one(poisoned, stop_during, monkeypatch, step, saved):
    settings = dict(guard=dict(skips=2), train=dict(steps=20, log_every=1, eval_every=10, preview_every=20, checkpoint_every=10, keep=9))
    straight = poisoned(range(12, 18), 1, name="straight", **settings)
    with monkeypatch.context() as patch:
        stop_during(patch, step)
        first = poisoned(range(12, 18), 1, **settings)
    assert first.checkpoints[-1] == saved  # at step 14 the run is rolled back to 10, and then leaves
    second = poisoned(range(12, 18), 1, **settings)
    assert (second.lines, second.events) == (straight.lines, straight.events)
    assert all((leaf == second.state(20)[name]).all() for name, leaf in straight.state(20).items())


@pytest.mark.slow
def test_several_steps_a_call_decide_as_single_ones_do(poisoned):
    single = poisoned(range(12, 18), 1, name="single", guard=dict(skips=2))
    calls = dict(steps=20, log_every=1, eval_every=10, preview_every=20, checkpoint_every=5, keep=9, steps_per_call=4)
    several = poisoned(range(12, 18), 1, guard=dict(skips=2), train=calls)
    assert several.events == single.events
    assert [line["step"] for line in several.lines] == [line["step"] for line in single.lines]
    np.testing.assert_allclose([line["loss"] for line in several.lines], [line["loss"] for line in single.lines], rtol=1e-5)
