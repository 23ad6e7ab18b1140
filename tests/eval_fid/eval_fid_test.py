"""`tinygen eval-fid`: whole calls, over the features of a small classifier."""

import json
import re

import numpy as np
import pytest
from PIL import Image
from sampling import sampled

from tinygen.evaluation import generated
from tinygen.evaluation.features import collecting, load
from tinygen.evaluation.metrics.protocol import fingerprint

NUM, MANY = 24, 80  # samples: what calls take unless told otherwise, and more


def numbers(line):
    return {name: value for name, value in line.items() if isinstance(value, float)}


def samples_kept(cache):
    """Files of features whose pictures are no reference's: a split's fingerprint ends with its name."""
    heads = (cache / "tinygen" / "features").glob("*.json")
    return [path for path in heads if not re.search(r":(train|validation)", json.loads(path.read_text())["protocol"])]


@pytest.mark.slow
def test_a_line_holds_the_score_its_error_what_was_scored_and_by_which_protocol(run, classifier, finished):
    (line,) = run(scores=["fd", "kid", "pr", "dc"])
    network = load.of_run(str(classifier))
    assert (line["checkpoint"], line["step"], line["seed"], line["reference_name"]) == (str(run.workdir), 20, 0, "validation")
    scores = {"fd_toy", "kd_toy", "kd_toy_std", "precision_toy", "recall_toy", "density_toy", "coverage_toy"}
    assert numbers(line).keys() == scores  # without an error: halves of the samples are no more than features
    (many,) = run(num=MANY)
    assert many["fd_toy"] > many["fd_toy_stderr"] > 0
    protocol = line["protocol"]
    assert fingerprint(protocol) == line["fingerprint"]
    rules = (
        f"kid of 100 subsets of {NUM // 2}, pr of 3 and dc of 5 neighbours among {NUM} samples and {protocol['reference_num']} of the "
        "reference, is of 10 splits of 2 or one more"
    )
    assert protocol | {"reference": "", "reference_num": 0} == {
        "rules": rules,
        "features": "toy", "weights_sha256": network.sha256, "preset": network.preset, "quantised": "uint8", "reference": "",
        "reference_num": 0, "num": NUM, "labels": "as the reference's", "sampler": "heun", "nfe": 4, "guidance": 1.5,
        "guidance_interval": list(finished.config.objective.guidance_interval), "ema": True, "precision": "float32",
    }  # fmt: skip


def test_a_sample_is_the_one_that_tinygen_sample_draws(run, tmp_path):
    (drawn_here,) = run(labels=["all"])
    drawn = tmp_path / "drawn"
    sampled(run.workdir, drawn, num=NUM, batch_size=8)
    (from_files,) = run(tmp_path / "files.jsonl", ckpt=None, samples=str(drawn), ref="pixel_faces:validation", num=None)
    assert numbers(from_files) == numbers(drawn_here)
    pictures = np.stack([np.asarray(Image.open(path)) for path in sorted(drawn.glob("0*.png"))])
    np.savez(tmp_path / "drawn.npz", pictures)
    (from_npz,) = run(tmp_path / "npz.jsonl", ckpt=None, samples=str(tmp_path / "drawn.npz"), ref="pixel_faces:validation", num=None)
    assert numbers(from_npz) == numbers(drawn_here)
    assert from_npz["protocol"] == from_files["protocol"]


def stopping(monkeypatch, after, drawing=1):
    """The process ends when so many batches of a drawing of samples are there; the list is of where each drawing began."""
    starts = []
    drawn = generated.drawn

    def draw(*arguments, **keywords):
        starts.append(keywords["start"])
        for number, x in enumerate(drawn(*arguments, **keywords)):
            if number == after and len(starts) == drawing:
                raise KeyboardInterrupt
            yield x

    monkeypatch.setattr(generated, "drawn", draw)
    return starts


def interrupt(run, monkeypatch):
    """A call that ends before its last batches, and leaves the features of the first ones."""
    with monkeypatch.context() as patch:
        patch.setattr(collecting, "KEPT", 8)
        stopping(patch, 9)
        with pytest.raises(KeyboardInterrupt):
            run(num=MANY)


@pytest.mark.slow
def test_an_interrupted_call_is_resumed_and_gives_the_same_score(run, monkeypatch, cache):
    (straight,) = run(num=MANY)
    interrupt(run, monkeypatch)
    assert len(samples_kept(cache)) == 1
    starts = stopping(monkeypatch, None)
    (resumed,) = run(num=MANY)
    assert starts[0] >= 32
    assert numbers(resumed) == numbers(straight)
    assert samples_kept(cache) == []


@pytest.mark.slow
def test_an_interrupted_grid_draws_only_what_it_lacks_gives_the_same_scores_and_leaves_no_features(run, monkeypatch, cache):
    points = {"nfe": [4, 8, 12]}
    straight = run(points=points)
    assert samples_kept(cache) == []
    with monkeypatch.context() as patch:
        starts = stopping(patch, 1, drawing=3)
        with pytest.raises(KeyboardInterrupt):
            run(points=points)
    assert len(starts) == 3
    assert len(samples_kept(cache)) == 2
    starts = stopping(monkeypatch, None)
    resumed = run(points=points)
    assert starts == [0]
    assert [numbers(line) for line in resumed] == [numbers(line) for line in straight]
    assert samples_kept(cache) == []


@pytest.mark.slow
@pytest.mark.parametrize("change", [dict(num=NUM), dict(ref="train"), dict(seed=1), dict(labels=["blond"]), dict(settings=dict(nfe=8))])
def test_an_interrupted_call_lends_nothing_to_one_that_asks_for_something_else(run, monkeypatch, change, tmp_path):
    (alone,) = run(**change)
    interrupt(run, monkeypatch)
    (after,) = run(**change)
    assert numbers(after) == numbers(alone)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # what is kept of the interrupted one is no other test's


@pytest.mark.slow
def test_what_decides_a_score_changes_the_fingerprint_and_what_is_compared_does_not(run):
    (base,) = run()
    changes = [
        dict(settings=dict(nfe=8)), dict(settings=dict(guidance=1.0)), dict(settings=dict(sampler="euler")), dict(ema=False),
        dict(settings=dict(time_grid="logit_normal")),
        dict(settings=dict(time_grid="shifted")), dict(settings=dict(time_grid="shifted", shift=2.0)),
        dict(num=NUM + 1), dict(labels=["all"]), dict(labels=["blond"]), dict(ref="pixel_faces"),
    ]  # fmt: skip
    interval = run(settings=dict(guidance=1.0))[0]["protocol"]["guidance_interval"]
    assert interval is None  # nothing is guided
    found = [run(**change)[0] for change in changes]
    assert len({line["fingerprint"] for line in [base, *found]}) == len(changes) + 1
    assert found[0]["protocol"]["nfe"] == 8
    assert found[3]["protocol"]["ema"] is False
    for change in (dict(step=10), dict(seed=1), dict(batch_size=16), dict(ref="pixel_faces:validation")):
        (line,) = run(**change)
        assert line["fingerprint"] == base["fingerprint"], change
    assert numbers(run(seed=1)[0]) != numbers(base)
