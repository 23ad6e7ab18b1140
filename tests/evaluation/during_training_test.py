"""Scores of samples while a run learns: the same whatever interrupts it, and the best one's checkpoint is kept."""

import json
import os
import shutil
import signal

import pytest
from etils import epath

from tinygen import check, eval_fid, train
from tinygen import config as config_lib
from tinygen.checkpoints import store
from tinygen.errors import UserError
from tinygen.evaluation import during_training, scores
from tinygen.evaluation.during_training import check_scoring, scored_network
from tinygen.evaluation.features import extraction
from tinygen.training import nonfinite

FD, KD = "eval_ema_fd_toy", "eval_ema_kd_toy"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The data's features, which all tests share."""
    return tmp_path_factory.mktemp("cache")


def configured(tiny, classifier, evaluation, **keys):
    chosen = dict(every=4, features=str(classifier), num=24, split="validation") | evaluation
    return tiny(eval=chosen, train=dict(steps=12, log_every=3, eval_every=0, preview_every=0, checkpoint_every=0) | keys)


@pytest.fixture
def scored(tiny, classifier, home, monkeypatch):
    """scored(eval keys, **train keys): the configuration of a run of 12 steps that is scored every 4."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    monkeypatch.setattr(extraction, "ON_CPU", 4)

    return lambda evaluation=None, **keys: configured(tiny, classifier, evaluation or {}, **keys)


EVALUATION = dict(scores="fd,kid", raw=True)


@pytest.fixture(scope="module")
def straight(tiny, classifier, home, tmp_path_factory):
    """A run of 12 steps, at once. Shared: only to be read."""
    workdir = tmp_path_factory.mktemp("runs") / "straight"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(home))
        patch.setattr(extraction, "ON_CPU", 4)
        assert train.main(configured(tiny, classifier, EVALUATION), str(workdir)) == 0
    return workdir


def scores_of(lines, name=FD):
    return {line["step"]: line[name] for line in lines if name in line}


@pytest.mark.slow
def test_every_so_many_steps_a_line_has_the_scores_of_averaged_and_raw_weights(straight, metrics_of):
    lines = metrics_of(straight)
    assert [line["step"] for line in lines] == [1, 3, 4, 6, 8, 9, 12]
    for name in (FD, KD, "eval_fd_toy", "eval_kd_toy"):
        assert list(scores_of(lines, name)) == [4, 8, 12], name
    assert len({*scores_of(lines).values(), *scores_of(lines, "eval_fd_toy").values()}) == 6
    assert min(scores_of(lines).values()) > 0


@pytest.mark.slow
@pytest.mark.usefixtures("scored")
def test_the_score_is_the_one_that_eval_fid_gives_of_the_checkpoint(straight, classifier, tmp_path, metrics_of):
    workdir = shutil.copytree(straight, tmp_path / "run")
    assert eval_fid.main(
        ckpt=str(workdir), samples=None, ref="validation", num=24, scores=["fd", "kid"], features=str(classifier), preset=None,
        weights=None, step=12, ema=True, labels=["data"], settings={}, points={}, seed=0, batch_size=64, force=False,
    ) == 0  # fmt: skip
    line = json.loads((workdir / "eval.jsonl").read_text())
    last = metrics_of(straight)[-1]
    assert (last[FD], last[KD]) == pytest.approx((line["fd_toy"], line["kd_toy"]), rel=1e-4)


def finish_as(straight, config, workdir, metrics_of):
    """Goes on with a run that was stopped: nothing that is logged may tell it from one that was not."""
    assert train.main(config, str(workdir)) == 0
    assert metrics_of(workdir) == metrics_of(straight)
    assert (workdir / "best.json").read_text() == (straight / "best.json").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("step", [6, 8])
def test_stopping_and_resuming_changes_no_score(straight, scored, tmp_path, monkeypatch, stop_during, metrics_of, step):
    """Step 8 is to be scored: what the signal kept the run from is made up for."""
    with monkeypatch.context() as patch:
        stop_during(patch, step)
        assert train.main(scored(EVALUATION), str(tmp_path / "run")) == 143
    assert store.saved_steps(epath.Path(tmp_path / "run"))[-1] == step
    finish_as(straight, scored(EVALUATION), tmp_path / "run", metrics_of)


@pytest.mark.slow
def test_a_signal_while_samples_are_scored_leaves_at_once_and_the_scores_are_made_up_for(
    straight, scored, tmp_path, monkeypatch, metrics_of
):
    extract = during_training.extract

    def signalled(reads, using, unwanted):
        os.kill(os.getpid(), signal.SIGTERM)
        yield from extract(reads, using, unwanted)

    with monkeypatch.context() as patch:
        patch.setattr(during_training, "extract", signalled)
        assert train.main(scored(EVALUATION), str(tmp_path / "run")) == 143
    assert store.saved_steps(epath.Path(tmp_path / "run")) == [4]
    assert scores_of(metrics_of(tmp_path / "run")) == {}
    finish_as(straight, scored(EVALUATION), tmp_path / "run", metrics_of)


def ranked(monkeypatch, values, sign=1):
    """Scores of the next runs are these numbers, in turn."""
    numbers = iter(values)
    score = scores.DURING["fd"]._replace(compute=lambda *_: {"fd_toy": next(numbers)}, sign=sign)
    monkeypatch.setattr(during_training, "DURING", {"fd": score})


@pytest.mark.slow
@pytest.mark.parametrize(("values", "sign", "best"), [([1.0, 3.0, 2.0], 1, 4), ([2.0, 1.0, 3.0], 1, 8), ([2.0, 3.0, 1.0], -1, 8)])
def test_the_best_checkpoint_is_kept_however_few_are(scored, tmp_path, monkeypatch, values, sign, best):
    ranked(monkeypatch, values, sign)
    assert train.main(scored(keep=1), str(tmp_path / "run")) == 0
    assert store.saved_steps(epath.Path(tmp_path / "run")) == [best, 12]
    told = json.loads((tmp_path / "run" / "best.json").read_text())
    assert told["best"] == best
    assert told["scored"] == {str(step): sign * value for step, value in zip((4, 8, 12), values, strict=True)}


@pytest.mark.slow
def test_the_best_of_before_a_stop_is_kept_after_it(scored, tmp_path, monkeypatch, stop_during):
    ranked(monkeypatch, [1.0, 3.0, 2.0])
    with monkeypatch.context() as patch:
        stop_during(patch, 6)
        assert train.main(scored(keep=1), str(tmp_path / "run")) == 143
    assert train.main(scored(keep=1), str(tmp_path / "run")) == 0
    assert store.saved_steps(epath.Path(tmp_path / "run")) == [4, 12]


@pytest.mark.slow
def test_a_run_that_is_rolled_back_scores_anew_what_comes_again_and_keeps_the_best_of_that(scored, tmp_path, monkeypatch, metrics_of):
    ranked(monkeypatch, [1.0, 5.0, 0.5, 2.0])  # of steps 4, 8, and, from 4 on, 8 and 12
    watch = nonfinite.Guard.watch

    def spoilt(self, steps, skipped, updates):
        updates = [float("inf") if step == 10 and self.attempt == 0 else update for step, update in zip(steps, updates, strict=True)]
        return watch(self, steps, skipped, updates)

    monkeypatch.setattr(nonfinite.Guard, "watch", spoilt)
    assert train.main(scored(keep=1), str(tmp_path / "run")) == 0
    lines = metrics_of(tmp_path / "run")
    assert [line["step"] for line in lines if line.get("event") == "rollback"] == [10]
    assert scores_of(lines) == {4: 1.0, 8: 0.5, 12: 2.0}
    assert store.saved_steps(epath.Path(tmp_path / "run")) == [8, 12]
    assert json.loads((tmp_path / "run" / "best.json").read_text())["best"] == 8


@pytest.mark.slow
def test_no_checkpoint_is_kept_for_its_score_where_that_is_not_wanted(scored, tmp_path, monkeypatch):
    ranked(monkeypatch, [1.0, 3.0, 2.0])
    assert train.main(scored(dict(best=False), keep=1), str(tmp_path / "run")) == 0
    assert store.saved_steps(epath.Path(tmp_path / "run")) == [12]


@pytest.mark.slow
def test_several_steps_a_call_end_where_samples_are_scored(scored, tmp_path, metrics_of):
    train.main(scored(dict(every=4), steps=10, steps_per_call=3), str(tmp_path / "run"))
    assert list(scores_of(metrics_of(tmp_path / "run"))) == [4, 8, 10]  # the last step always


@pytest.mark.parametrize(
    ("evaluation", "message"),
    [
        (dict(scores="fid"), r"unknown config\.eval\.scores 'fid': did you mean 'fd'"),
        (dict(scores=""), r"unknown config\.eval\.scores ''"),
        (dict(scores="kid,is"), r"config\.eval\.scores=is: the Inception Score is one of Inception's"),
        (dict(features="efflite"), r"unknown config\.eval\.features 'efflite': did you mean 'efflite0'"),
        (dict(features="runs/nothing"), r"config\.eval\.features=runs/nothing: there is no such folder"),
        (dict(weights="file.pth"), r"weights are for Inception only; config\.eval\.features="),
        (dict(scores="kid,pr", num=3), r"config\.eval\.num=3: kid needs 4 pictures at least, and there are 3"),
        (dict(num=16), r"config\.eval\.num=16: 16 samples are too few for a distance over 16 features"),
    ],
)
def test_scores_that_a_run_cannot_be_given_are_refused_before_its_first_step(scored, tmp_path, evaluation, message):
    with pytest.raises(UserError, match=rf"^{message}") as refused:
        train.main(scored(evaluation), str(tmp_path / "run"))
    assert len(str(refused.value).splitlines()) <= 2
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize("evaluation", [dict(num=1), dict(num=0), dict(every=-1), dict(split="test"), dict(preset="tf")])
def test_values_that_no_run_could_use_are_refused_before_anything_heavy(tiny, evaluation):
    with pytest.raises(UserError, match=rf"config\.eval\.{next(iter(evaluation))}"):
        config_lib.check(tiny(eval=evaluation))


def test_a_run_without_samples_cannot_be_scored(curve, classifier, tmp_path):
    config = curve(eval=dict(every=5, features=str(classifier), num=24))
    with pytest.raises(UserError, match="objective 'toy_squared_error' draws no samples to score"):
        train.main(config, str(tmp_path / "run"))
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_without_scores_the_network_need_not_be_here(tiny):
    check_scoring(tiny(eval=dict(features="runs/nothing")), None, None)
    assert scored_network(tiny(eval=dict(scores="kid , pr")))[1].keys() == {"kid", "pr"}


@pytest.mark.slow
def test_tinygen_check_tries_the_scores_and_leaves_nothing(scored, tmp_path, capsys):
    assert check.main(scored(dict(scores="kid"), eval_every=4), str(tmp_path / "run")) == 0
    out = capsys.readouterr().out
    assert "scores" in out
    assert "of 16 samples only: eval_ema_kd_toy " in " ".join(out.split())
    assert "and 3 times scores included" in " ".join(out.split())
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_scores_for_whose_features_there_is_no_room_are_told_of_and_end_no_run(scored, tmp_path, metrics_of, monkeypatch, caplog):
    config = scored()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # where no folder can be made
    assert train.main(config, str(tmp_path / "run")) == 0
    assert "no scores: " in caplog.text
    assert [line["step"] for line in metrics_of(tmp_path / "run")][-1] == 12
    assert scores_of(metrics_of(tmp_path / "run")) == {}


def test_scores_by_other_rules_are_none_to_compare_with(scored):
    assert during_training.by(scored()) == during_training.by(scored(dict(every=2, best=False)))
    assert during_training.by(scored()) != during_training.by(scored(dict(num=25)))
    assert during_training.by(scored()) != during_training.by(config_lib.change(scored(), dict(objective=dict(nfe=8))))
