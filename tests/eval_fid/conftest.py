"""A call of `tinygen eval-fid` on a small run, over the features of a small classifier."""

import json
import shutil

import pytest

from tinygen import eval_fid
from tinygen.evaluation.features import extraction

NUM = 24  # samples; the network has 16 features


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """References' features, which all tests share."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run(finished, classifier, tmp_path, cache, monkeypatch):
    """run(**arguments): what a call of eval-fid on a copy of the shared run adds to eval.jsonl; with samples, to the file `record`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setattr(extraction, "ON_CPU", 1)  # of eight devices
    workdir = shutil.copytree(finished.workdir, tmp_path / "run")
    defaults = dict(
        ckpt=str(workdir), samples=None, ref="validation", num=NUM, scores=["fd"], features=str(classifier), preset=None, weights=None,
        step=None, ema=True, labels=[], settings={}, points={}, seed=0, batch_size=8, force=False,
    )  # fmt: skip

    def call(record=workdir / "eval.jsonl", **changes):
        if changes.get("samples"):
            changes = {"out": str(record), **changes}
        before = len(lines(record))
        assert eval_fid.main(**{**defaults, **changes}) == 0
        return lines(record)[before:]

    call.workdir, call.defaults = workdir, defaults
    return call


def lines(record):
    return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
