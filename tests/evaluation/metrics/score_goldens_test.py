"""Scores equal torch-fidelity's for the same features, as recorded by scripts/goldens/record_score_goldens.py."""

import json
from pathlib import Path

import numpy as np
import pytest
import record_score_goldens

from tinygen.evaluation.metrics.frechet import frechet_distance
from tinygen.evaluation.metrics.inception_score import inception_score
from tinygen.evaluation.metrics.kid import draw_subsets, kid
from tinygen.evaluation.metrics.moments import moments_of
from tinygen.evaluation.metrics.neighbours import precision_recall

ROOT = Path(__file__).parents[3]
GOLDEN = json.loads((ROOT / "tests" / "golden" / "scores.json").read_text())


@pytest.fixture(scope="module")
def arrays():
    return record_score_goldens.arrays(GOLDEN["seed"])


@pytest.fixture(params=["float32", "float64"])
def golden(request):
    return request.param, GOLDEN[request.param]


def given(arrays, golden):
    dtype, numbers = golden
    return [arrays[name].astype(dtype) for name in ("features", "reference", "logits")], numbers


def test_kid(arrays, golden):
    (features, reference, _), numbers = given(arrays, golden)
    keywords = record_score_goldens.KID
    subsets = draw_subsets(
        len(features),
        len(reference),
        subsets=keywords["kid_subsets"],
        size=keywords["kid_subset_size"],
        seed=keywords["rng_seed"],
    )
    expected = [numbers[f"kernel_inception_distance_{name}"] for name in ("mean", "std")]
    tolerance = 1e-12 if golden[0] == "float64" else 1e-6  # its kernels are float32 where the features are
    assert kid(features, reference, subsets=subsets) == pytest.approx(expected, abs=tolerance)


def test_precision_and_recall(arrays, golden):
    (features, reference, _), numbers = given(arrays, golden)
    assert precision_recall(features, reference) == pytest.approx((numbers["precision"], numbers["recall"]), abs=1e-6)


def test_the_frechet_distance(arrays, golden):
    (features, reference, _), numbers = given(arrays, golden)
    found = [moments_of(each) for each in (features, reference)]
    value = frechet_distance(*(part for each in found for part in (each.mean, each.covariance)))
    tolerance = 1e-9 if golden[0] == "float64" else 1e-6  # its mean is float32 where the features are
    assert value == pytest.approx(numbers["frechet_inception_distance"], rel=tolerance)


@pytest.mark.parametrize(("order", "seed"), [("shuffled", 2020), ("in_order", None)])
def test_the_inception_score(arrays, golden, order, seed):
    (_, _, logits), numbers = given(arrays, golden)
    expected = [numbers[f"inception_score_{name}_{order}"] for name in ("mean", "std")]
    assert inception_score(logits, seed=seed) == pytest.approx(expected, rel=1e-9)


def test_the_recorded_features_are_not_trivial(arrays):
    assert GOLDEN["torch_fidelity"] == "0.4.0"
    assert 0.1 < np.mean(arrays["features"] == 0) < 0.9
    assert 0.5 < GOLDEN["float64"]["recall"] < GOLDEN["float64"]["precision"] < 0.95
