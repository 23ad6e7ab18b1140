"""What `tinygen eval-fid` scores only when it is forced, over a grid, or not at all."""

import dataclasses
import logging
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tinygen import eval_fid
from tinygen.cli import main as cli
from tinygen.errors import UserError
from tinygen.evaluation.features import load as networks


def numbers(line):
    return {name: value for name, value in line.items() if isinstance(value, float)}


@pytest.mark.slow
def test_too_few_samples_are_refused_unless_forced_and_then_the_bias_is_reported(run, caplog):
    with pytest.raises(UserError, match=r"^--num=16: 16 samples are too few for a distance over 16 features.*\n.*--force\.$"):
        run(num=16)
    assert run(num=16, scores=["kid"])
    caplog.set_level(logging.WARNING)
    (forced,) = run(num=16, force=True)
    assert forced["protocol"]["num"] == 16
    assert forced["note"] == "16 samples for 16 features: far too large"
    assert "note" not in run(num=17)[0]
    assert "16 samples are too few" in caplog.text
    assert "fd_toy_stderr" not in run(num=2, force=True)[0]
    with pytest.raises(UserError, match=r"^--num=1: fd needs 2 pictures at least$"):
        run(num=1, force=True)


def test_more_samples_than_anyone_means_are_refused_before_the_network_draws_one(run):
    with pytest.raises(UserError, match=r"^--num=10000001: 10,000,000 samples at most$"):
        run(num=10_000_001)
    assert not (run.workdir / "eval.jsonl").exists()


@pytest.mark.slow
def test_a_grid_scores_every_combination_prints_a_table_and_draws_a_plot(run, capsys):
    found = run(points={"guidance": [1.0, 2.0], "nfe": [4, 8]})
    assert [(line["protocol"]["guidance"], line["protocol"]["nfe"]) for line in found] == [(1.0, 4), (1.0, 8), (2.0, 4), (2.0, 8)]
    assert len({line["fd_toy"] for line in found}) == 4
    out = capsys.readouterr().out
    assert f"1.0 8 {found[1]['fd_toy']:.5g}".split() in [line.split() for line in out.splitlines()]
    assert np.asarray(Image.open(run.workdir / "eval-fid-grid.png")).std() > 0


def test_a_setting_of_a_grid_that_does_not_do_is_refused_before_the_first_is_drawn(run):
    with pytest.raises(UserError):
        run(points={"nfe": [4, 0]})
    assert not (run.workdir / "eval.jsonl").exists()


def test_another_data_set_s_labels_are_not_this_model_s(run):
    (line,) = run(ref="digits8")
    assert line["protocol"]["labels"] == "every label in turn"
    with pytest.raises(UserError, match="--labels=data: the reference has no labels of this model's data"):
        run(ref="digits8", labels=["data"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(ckpt=None), "either --ckpt, a run's workdir, or --samples"),
        (dict(samples="faces"), "either --ckpt, a run's workdir, or --samples"),
        (dict(ckpt=None, samples="faces", ref=None), "--ref is missing"),
        (dict(ckpt=None, samples="faces", num=None), "^--samples=faces is not there$"),
        (dict(ckpt="nowhere"), "--ckpt=nowhere"),
        (dict(features="efflite"), "unknown --features 'efflite': did you mean 'efflite0'"),
        (dict(scores=["is"]), "the Inception Score is one of Inception's classes"),
        (dict(settings=dict(temperature=1.0)), "objective 'flow' has no such setting"),
        (dict(labels=["blnod"]), "did you mean 'blond'"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused_in_a_line_or_two(run, changes, message):
    with pytest.raises(UserError, match=message) as refused:
        run(**changes)
    assert len(str(refused.value).splitlines()) <= 2


def test_pictures_that_are_there_are_counted(run, tmp_path):
    np.savez(tmp_path / "faces.npz", np.zeros((20, 8, 8, 3), np.uint8))
    np.savez(tmp_path / "statistics.npz", mu=np.zeros(16), sigma=np.eye(16))
    files = dict(ckpt=None, samples=str(tmp_path / "faces.npz"), ref="digits8")
    for num, message in ((21, "holds 20 pictures"), (0, "fd needs 2 pictures"), (-3, "fd needs 2 pictures")):
        with pytest.raises(UserError, match=rf"^--num={num}: .*{message}"):
            run(num=num, **files)
    with pytest.raises(UserError, match=r"statistics\.npz holds no pictures"):
        run(**{**files, "samples": str(tmp_path / "statistics.npz")})
    with pytest.raises(UserError, match=r"--scores=kid compares pictures, and --ref=\S+statistics\.npz holds only a mean"):
        run(num=20, scores=["kid"], **{**files, "ref": str(tmp_path / "statistics.npz")})
    (line,) = run(tmp_path / "eval.jsonl", num=18, **{**files, "ref": str(tmp_path / "statistics.npz")})
    assert (line["protocol"]["num"], line["protocol"]["reference_num"], line["protocol"]["samples"]) == (18, 0, "files")


@pytest.fixture
def photos(tmp_path):
    """A folder of 20 pictures and of one that cannot be read."""
    place = tmp_path / "photos"
    place.mkdir()
    for number, picture in enumerate(np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), np.uint8)):
        Image.fromarray(picture).save(place / f"{number:02}.png")
    (place / "torn.png").write_bytes((place / "00.png").read_bytes()[:50])
    return place


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*")}


def test_scores_of_pictures_are_printed_and_nothing_is_written_beside_them(run, photos, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(photos)
    np.savez(photos / "all.npz", np.zeros((20, 8, 8, 3), np.uint8))
    before = contents(photos)
    for samples in (photos, photos / "all.npz"):
        assert run(ckpt=None, samples=str(samples), ref="digits8", num=None, out=None) == []
        said = capsys.readouterr().out
        assert "  fd_toy " in said
        assert "features toy, weights_sha256 " in said
        assert said.endswith("  not recorded: --out=FILE appends them to a file, for --compare\n")
    assert contents(photos) == before
    assert not (run.workdir / "eval.jsonl").exists()


def test_scores_are_kept_in_the_file_that_out_names_and_can_be_compared(run, photos, tmp_path, capsys):
    files = dict(ckpt=None, samples=str(photos), ref="digits8", num=None, scores=["kid"])
    (first,), (again,) = run(tmp_path / "scores.jsonl", **files), run(tmp_path / "scores.jsonl", **files)
    assert first["fingerprint"] == again["fingerprint"]
    (tmp_path / "kept").mkdir()
    assert run(tmp_path / "kept" / "eval.jsonl", out=str(tmp_path / "kept"), **files)
    assert cli.main(["eval-fid", "--compare", str(tmp_path / "scores.jsonl"), str(tmp_path / "kept")]) == 0
    assert "kd_toy" in capsys.readouterr().out
    assert eval_fid.main(**{**run.defaults, "out": str(tmp_path / "of_run.jsonl")}) == 0  # in place of the workdir's
    assert (tmp_path / "of_run.jsonl").exists()
    assert not (run.workdir / "eval.jsonl").exists()


@pytest.mark.parametrize(
    ("out", "message"), [("no/such/folder.jsonl", "there is no folder no/such"), ("/dev/null", "is not a regular file")]
)
def test_a_place_that_scores_cannot_be_kept_in_is_refused_before_anything_is_scored(run, monkeypatch, out, message):
    monkeypatch.setattr(networks, "load", lambda *_, **__: pytest.fail("asked for weights"))
    with pytest.raises(UserError, match=f"^--out={out}.*{message}"):
        run(out=out)


def test_pictures_that_cannot_be_read_are_left_out_on_both_sides_and_counted_in_the_protocol(run, photos, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # features of this reference are no other test's
    files = dict(ckpt=None, samples=str(photos), ref=str(photos), num=None)
    (line,) = run(tmp_path / "scores.jsonl", **files)
    protocol = line["protocol"]
    assert [protocol[name] for name in ("num", "left_out", "reference_num", "reference_left_out")] == [20, 1, 20, 1]
    (photos / "torn.png").unlink()
    (whole,) = run(tmp_path / "scores.jsonl", **files)
    assert not {"left_out", "reference_left_out"} & whole["protocol"].keys()
    assert numbers(whole) == numbers(line)


def test_data_that_have_changed_since_training_are_warned_of(run, monkeypatch, caplog):
    find = eval_fid.find

    def trained_on_others(*arguments):
        saved = find(*arguments)
        return dataclasses.replace(saved, manifest={**saved.manifest, "data_fingerprint": "0" * 16})

    assert run()
    assert "have changed" not in caplog.text
    monkeypatch.setattr(eval_fid, "find", trained_on_others)
    run()
    assert "have changed since it was trained (their fingerprint was 0000" in caplog.text


def test_a_network_and_its_preset_of_one_name_are_named_once(run, monkeypatch, capsys):
    network = networks.of_run(run.defaults["features"])
    monkeypatch.setattr(networks, "load", lambda *_, **__: dataclasses.replace(network, preset=network.name))
    run()
    assert "(features: toy)\n" in capsys.readouterr().out


def test_scores_are_shown_with_their_errors_and_what_they_lack():
    values = {"fid": 3.0, "fid_stderr": 0.25, "fid_infinity": 2.5, "kid": 0.01, "kid_std": 0.002, "precision": 0.5}
    assert [" ".join(row.split()) for row in eval_fid.formatted(values)] == [
        "fid 3 ± 0.25; of infinitely many samples 2.5", "kid 0.01 (subsets spread by 0.002)", "precision 0.5",
    ]  # fmt: skip
    assert [" ".join(row.split()) for row in eval_fid.formatted({"fd_inception": 9.0, "precision_inception": 0.5}, "unknown weights")] == [
        "fd_inception 9 (no standard error: too few samples) [unknown weights]", "precision_inception 0.5",
    ]  # fmt: skip


def test_a_run_that_draws_no_pictures_is_refused(run, classifier, tmp_path):
    workdir = shutil.copytree(classifier, tmp_path / "classifier")
    with pytest.raises(UserError, match="objective 'classification' draws no samples to score"):
        run(ckpt=str(workdir))


def test_the_command_line_gives_all_that_a_call_needs(called, capsys):
    module, _, arguments = called("eval-fid", "--ckpt=faces", "--ref=digits", "--scores=fd,kid", "--labels=3,7", "--nfe=4", "--noema")
    assert module == "eval_fid"
    expected = SimpleNamespace(samples=None, ckpt="faces", ref="digits", scores=["fd", "kid"], labels=["3", "7"], ema=False, num=None)
    assert {name: arguments[name] for name in vars(expected)} == vars(expected)
    assert (arguments["settings"], arguments["points"], arguments["features"]) == ({"nfe": 4}, {}, "inception")
    assert cli.main(["eval-fid", "--samples=faces", "--ref=digits", "--noema"]) == 2
    assert "--ema has no effect with --samples" in capsys.readouterr().err
    assert cli.main(["eval-fid", "--preset=tf"]) == 2
    for words, message in (
        (["--compare", "a", "b", "--num=5"], "--num has no effect with --compare"),
        (["--ckpt=faces", "--grid", "nfe=4,8", "--nfe=50"], "--nfe is given twice"),
        (["--ckpt=faces", "--allow=nfe"], "--allow needs --compare"),
    ):
        capsys.readouterr()
        assert cli.main(["eval-fid", *words]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(ckpt="nowhere"), "--ckpt=nowhere"),
        (dict(ref="nowhere"), "unknown --ref 'nowhere'"),
        (dict(settings=dict(nfe=0)), "nfe"),
        (dict(scores=["fdi"]), "unknown --scores 'fdi'"),
        (dict(ckpt=None, samples="nowhere"), "--samples=nowhere is not there"),
    ],
)
def test_whatever_is_wrong_is_told_before_weights_are_downloaded(run, monkeypatch, changes, message):
    def load(*arguments, **keywords):
        raise AssertionError("asked for weights")

    monkeypatch.setattr(networks, "load", load)
    with pytest.raises(UserError, match=message):
        run(**changes)
