"""Checkpoints of released versions load for ever: into the whole state, to go on with, and to sample from."""

import json
import tarfile
from pathlib import Path
from types import SimpleNamespace

import make_golden
import numpy as np
import pytest

from tinygen import build, train
from tinygen import config as config_lib
from tinygen.checkpoints import store

ROOT = Path(__file__).parents[2]
ARCHIVES = sorted((ROOT / "tests" / "golden").glob("*.tar.xz"))
BROKEN = """
A checkpoint saved by release {} is no longer read as it was written. People have such checkpoints: mend the code, or teach
it to read the old format. Never make the archive anew for this - unless that release is not out yet, and its format was
meant to change: then `python scripts/goldens/make_golden.py {} --replace`."""


@pytest.fixture(params=ARCHIVES, ids=lambda archive: archive.name.removesuffix(".tar.xz"))
def golden(request, tmp_path):
    """A released run, unpacked where it may be changed."""
    name = request.param.name.removesuffix(".tar.xz")
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    workdir = tmp_path / name
    expected = json.loads((workdir / "expected.json").read_text())
    samples = np.load(workdir / "expected.npz")["samples"]
    return SimpleNamespace(workdir=workdir, expected=expected, samples=samples, broken=BROKEN.format(name, name))


def test_the_first_release_has_a_golden_checkpoint():
    assert "0.1.tar.xz" in [archive.name for archive in ARCHIVES], "python scripts/goldens/make_golden.py 0.1"


def test_every_number_of_the_state_is_read_as_it_was_written(golden):
    found = make_golden.described(store.find(golden.workdir))
    assert found["step"] == golden.expected["step"] == 3
    for branch in ("params", "ema", "opt_state"):
        assert found[branch]["sums"] == golden.expected[branch]["sums"], golden.broken
        assert found[branch]["sha256"] == golden.expected[branch]["sha256"], golden.broken


def test_the_run_goes_on_with_its_stored_configuration(golden, metrics_of, saved_arrays):
    config = config_lib.from_json((golden.workdir / "config.json").read_text())
    before = metrics_of(golden.workdir)
    longer = config_lib.change(config, dict(train=dict(steps=5)))
    assert train.main(longer, str(golden.workdir)) == 0, golden.broken
    lines = metrics_of(golden.workdir)
    assert lines[:3] == before
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert all(np.isfinite(line["loss"]) and line["update_ratio"] > 0 for line in lines)
    assert saved_arrays(golden.workdir, 5)["opt_state/adam/count"] == 5  # the moments went on, they were not begun anew


def test_its_samples_are_those_that_the_release_drew(golden, monkeypatch):
    monkeypatch.setattr(build, "best_precision", lambda backend: "float32")  # as on the machine that drew them
    samples = make_golden.draw(store.find(golden.workdir))
    # Eight evaluations in float32, another processor and another XLA: far below a pixel's level, which is 8e-3.
    np.testing.assert_allclose(samples, golden.samples, atol=1e-4, rtol=0, err_msg=golden.broken)


def test_a_golden_checkpoint_is_not_made_over_by_mistake(tmp_path, capsys):
    (tmp_path / "0.1.tar.xz").write_bytes(b"")
    assert make_golden.main(["0.1", f"--folder={tmp_path}"]) == 2
    assert "Released checkpoints must not change" in capsys.readouterr().err
    assert (tmp_path / "0.1.tar.xz").read_bytes() == b""
