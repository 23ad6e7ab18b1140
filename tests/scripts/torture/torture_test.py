"""The quick part of scripts/torture/torture.py: real runs are killed and damaged, and differences between runs are found."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tortures import cases, compare, damage, kills, runs

ROOT = Path(__file__).parents[3]


@pytest.fixture
def setup(tmp_path):
    """The smallest run: a curve, of 60 steps with six checkpoints."""
    recipe = str(ROOT / "configs" / "fsdp_sine.py:smoke")
    return runs.Setup(tmp_path / "home", recipe, steps=60, checkpoint_every=10, preview_every=20)


@pytest.mark.slow
def test_runs_killed_in_a_save_or_at_any_instant_end_as_if_nothing_had_been(setup, tmp_path):
    result = kills.measure(setup, num=4, in_saves=2, jobs=2, seed=0, folder=tmp_path / "runs")
    assert [case["problems"] for case in result["cases"]] == [[]] * 4
    assert sum(case["where"] == "save" for case in result["cases"]) >= 2


@pytest.mark.slow
def test_a_damaged_checkpoint_is_named_and_set_aside_and_its_steps_run_again(setup, tmp_path):
    finished = tmp_path / "finished"
    runs.finish(setup, finished)
    names = ("flipped byte", "truncated file", "deleted file", "torn SHA256SUMS")
    faults = {name: damage.FAULTS[name] for name in names}
    results = cases.measure(faults, setup, 2, tmp_path, cases.Scene(setup, finished, finished))
    assert {name: result["failures"] for name, result in results.items()} == {name: [] for name in names}


@pytest.mark.parametrize(
    ("output", "step"),
    [
        ("21:30 resuming from step 40", 40),
        ("21:30 this run is at step 60, and config.train.steps=60: there is nothing left to train.", 60),
        ("21:30 from the beginning", 0),
        ("21:30 4,096 examples", None),
    ],
)
def test_the_first_step_of_a_restarted_run_is_read_from_its_output(output, step):
    assert kills.first_step(output) == step


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of a finished run, to be changed."""
    shutil.copytree(finished.workdir, tmp_path / "copy")
    return tmp_path / "copy"


def test_a_copy_of_a_run_is_equal_to_it(finished, copied):
    assert compare.differences(finished.workdir, copied) == []


@pytest.mark.slow
def test_a_run_with_another_seed_is_not(tiny, finished, tmp_path):
    from tinygen import train

    assert train.main(tiny(seed=1), str(tmp_path / "other")) == 0
    found = " ".join(compare.differences(finished.workdir, tmp_path / "other"))
    assert "checkpoints/20: " in found
    assert "arrays differ" in found
    assert "with other values (1, " in found
    assert "samples/, different: " in found


def test_one_bit_of_one_array_is_a_difference():
    same, one = compare.same, np.zeros(3, np.float32)
    assert same(one, one.copy())
    assert same(np.full(2, np.nan), np.full(2, np.nan))
    assert not same(one, -one)
    assert not same(one, one.astype(np.float64))
    assert not same(one, np.nextafter(one, np.float32(1)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda lines: lines[:1] + lines[2:], "1 missing (5)"),
        (lambda lines: [*lines, lines[-1]], "1 duplicate (20)"),
        (lambda lines: [*lines[:-1], lines[-1][:-9]], "1 missing (20)"),
        (lambda lines: [lines[1], lines[0], *lines[2:]], "in another order"),
        (lambda lines: [lines[0].replace('"loss": ', '"loss": 1'), *lines[1:]], "1 with other values (1)"),
    ],
    ids=["missing", "twice", "torn", "order", "number"],
)
def test_a_line_of_metrics_that_is_not_the_same_is_reported(finished, copied, change, expected):
    path = copied / "metrics.jsonl"
    path.write_text("".join(f"{line}\n" for line in change(path.read_text().splitlines())))
    (found,) = compare.differences(finished.workdir, copied)
    assert expected in found


def test_only_the_timings_of_a_line_may_differ(finished, copied):
    path = copied / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line | {"steps_per_s": 1.0}) + "\n" for line in lines))
    assert compare.differences(finished.workdir, copied) == []


def test_pictures_and_checkpoints_that_are_not_the_same_are_reported(finished, copied):
    Image.new("L", (4, 4)).save(copied / "samples" / "000010.png")
    (copied / "samples" / "000020.png").unlink()
    shutil.rmtree(copied / "checkpoints" / "10")
    (copied / "checkpoints" / "30.orbax-checkpoint-tmp").mkdir()
    assert compare.differences(finished.workdir, copied) == [
        "checkpoints [20] instead of [10, 20]",
        "checkpoints/30.orbax-checkpoint-tmp was left behind",
        "samples/, missing: 000020.png",
        "samples/, different: 000010.png",
    ]


def test_a_checkpoint_that_cannot_be_read_is_reported(finished, copied):
    for path in (copied / "checkpoints" / "20" / "state").rglob("d/*"):  # of two that hold the same arrays one is not read
        path.write_bytes(b"")
    (found,) = compare.differences(finished.workdir, copied)
    assert found.startswith("checkpoints/20 cannot be read: ")


def test_sums_that_are_wrong_or_missing_are_reported(tmp_path):
    folder = tmp_path / "checkpoints" / "10"
    (folder / "state").mkdir(parents=True)
    (folder / "state" / "a").write_text("content")
    assert compare.wrong_sums(tmp_path) == ["checkpoints/10 has no SHA256SUMS"]
    (folder / "SHA256SUMS").write_text(f"{hashlib.sha256(b'content').hexdigest()}  state/a\n")
    assert compare.wrong_sums(tmp_path) == []
    (folder / "state" / "b").write_text("not listed")
    assert compare.wrong_sums(tmp_path) == ["checkpoints/10: SHA256SUMS is wrong for 1 files: state/b"]
