"""The standard error of a Fréchet distance: against all single samples left out, against repeated draws, against closed forms."""

import numpy as np
import pytest
import scipy.stats
from calibrate_frechet_error import Case, measure

from tinygen.errors import UserError
from tinygen.evaluation.metrics import frechet_error
from tinygen.evaluation.metrics.frechet import distance_from
from tinygen.evaluation.metrics.frechet_error import enough, influence, standard_error
from tinygen.evaluation.metrics.moments import moments_of

DIM = 6
RNG = np.random.default_rng(0)
ROOT1, ROOT2 = RNG.normal(size=(2, DIM, DIM))
MEAN2 = RNG.normal(size=DIM)


def of(features, distance):
    found = moments_of(features)
    return distance(found.mean, found.covariance)


@pytest.mark.parametrize("alike", [True, False], ids=["alike", "apart"])
def test_the_influence_of_a_sample_is_what_leaving_it_out_takes_away(alike):
    rows = RNG.normal(size=(150, DIM)) @ ROOT1
    distance = distance_from(np.zeros(DIM), ROOT1.T @ ROOT1) if alike else distance_from(MEAN2, ROOT2.T @ ROOT2)
    whole = of(rows, distance)
    falls = np.array([(len(rows) - 1) * (whole - of(np.delete(rows, row, 0), distance)) for row in range(len(rows))])
    assert np.std(falls - influence(rows, distance)) < 0.01 * np.std(falls)  # it lacks a constant


def test_of_a_distance_that_is_linear_in_the_samples_it_is_the_error_of_a_mean():
    """Far from the reference |μ₁ - μ₂|² is all: 2 (μ₁ - μ₂)ᵀ times the error of the mean."""
    rows, far = RNG.normal(size=(500, DIM)), np.full(DIM, 1e4)
    expected = 2 * np.std(rows @ (rows.mean(0) - far), ddof=1) / np.sqrt(500)
    assert standard_error(rows, distance_from(far, np.eye(DIM))) == pytest.approx(expected, rel=1e-3)


def test_in_one_dimension_it_is_the_delta_method_s():
    """(μ₁ - m)² + (σ₁ - s)² of Gaussians: Var μ̂ = σ²/N, Var σ̂ = σ²/2N."""
    rows = 2 * scipy.stats.norm.ppf((np.random.default_rng(1).permutation(4000) + 0.5) / 4000)[:, None]  # Gaussian to the last moment
    expected = np.sqrt((2 * 3) ** 2 * 4 / 4000 + (2 * (2 - 0.5)) ** 2 * 4 / 8000)
    assert standard_error(rows, distance_from(np.array([3.0]), np.array([[0.25]]))) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    "case",
    [
        Case(16, 60, 0, "gaussian", "equal"),
        Case(16, 400, 500, "rectified", "1/k"),
        Case(16, 200, 0, "gaussian", "1/k", 0.3, 1.2),
        Case(16, 400, 500, "classes", "exponential"),
    ],
    ids=str,
)
def test_it_is_the_deviation_of_the_distance_between_independent_draws(case):
    """Of 1,000 draws, whose deviation is known to 2 %; a jackknife's would be 1.3 to 1.45 times too large where both sides are alike."""
    true, estimates = measure(case, 1000, 100, np.random.default_rng(3))
    assert np.sqrt(np.mean(estimates**2)) == pytest.approx(true, rel=0.12)


def test_the_quadratic_part_is_that_of_a_distance_between_equal_gaussians():
    """There it is all: the distance from N(0, 1) is |μ̂|² + |Σ̂ - 1|² / 4 and less."""
    distance, dim, num = distance_from(np.zeros(8), np.eye(8)), 8, 2000
    found = [frechet_error._quadratic(np.random.default_rng(seed).normal(size=(num, dim)), distance, seed) for seed in range(400)]
    pairs = dim * (dim - 1) / 2  # of variance 1/N, and each stands twice in the square; a diagonal entry has 2/N
    expected = (pairs * (2 / 4) ** 2 * 2 + dim * (1 / 4) ** 2 * 2 * 2**2 + dim * 2) / num**2
    assert np.mean(found) == pytest.approx(expected, rel=0.08)  # of 400: known to 2 %


def test_images_in_the_order_of_their_classes_have_the_same_error():
    random = np.random.default_rng(2)
    features = np.repeat(np.arange(10.0), 60)[:, None] + 0.1 * random.normal(size=(600, 3))
    shuffled, distance = features[random.permutation(600)], distance_from(np.zeros(3), np.eye(3))
    assert standard_error(features, distance) == pytest.approx(standard_error(shuffled, distance), rel=0.02)


def test_features_that_are_always_0_change_nothing():
    rows = RNG.normal(size=(400, DIM))
    dead = np.hstack([rows, np.zeros((400, 2))])
    alone, beside = (distance_from(found.mean, found.covariance) for found in map(moments_of, (rows[:200] * 1.1, dead[:200] * 1.1)))
    assert standard_error(dead, beside) == pytest.approx(standard_error(rows, alone), rel=1e-6)


def test_it_depends_on_the_seed_alone_and_never_vanishes():
    distance = distance_from(np.zeros(DIM), np.eye(DIM))
    draws = [np.random.default_rng(seed).normal(size=(40, DIM)) for seed in range(30)]
    assert standard_error(draws[0], distance, seed=1) == standard_error(draws[0], distance, seed=1)
    assert min(standard_error(each, distance) for each in draws) > 0


def test_too_few_samples_for_halves_of_full_rank_are_refused():
    distance = distance_from(np.zeros(DIM), np.eye(DIM))
    assert (enough(1), enough(DIM), enough(2048)) == (16, 16, 4098)
    assert standard_error(RNG.normal(size=(16, DIM)), distance) > 0
    with pytest.raises(UserError, match="15 samples are too few for a standard error over 6 features: give 16 or more"):
        standard_error(RNG.normal(size=(15, DIM)), distance)
