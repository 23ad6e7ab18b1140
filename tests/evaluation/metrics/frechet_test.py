import numpy as np
import pytest
import scipy.linalg

from tinygen.errors import UserError
from tinygen.evaluation.metrics import frechet
from tinygen.evaluation.metrics.frechet import distance_from, extrapolated, frechet_distance, too_few
from tinygen.evaluation.metrics.moments import moments_of

RNG = np.random.default_rng(0)
DIM = 12
ROTATION, _ = np.linalg.qr(RNG.normal(size=(DIM, DIM)))
MU1, MU2 = RNG.normal(size=(2, DIM))
SIGMA1, SIGMA2 = (np.cov(RNG.normal(size=(4 * DIM, DIM)) @ RNG.normal(size=(DIM, DIM)), rowvar=False) for _ in range(2))


def rotated(variances):
    return (ROTATION * variances) @ ROTATION.T


def close(value, expected):
    assert value == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("dim", [2, 12, 60])
def test_it_is_the_form_with_the_matrix_root(dim):
    random = np.random.default_rng(dim)
    mu1, mu2 = random.normal(size=(2, dim))
    one, other = (np.cov(random.normal(size=(3 * dim, dim)) @ random.normal(size=(dim, dim)), rowvar=False) for _ in range(2))
    root = scipy.linalg.sqrtm(one @ other).real
    close(frechet_distance(mu1, one, mu2, other), np.sum((mu1 - mu2) ** 2) + np.trace(one + other - 2 * root))


def test_in_one_dimension_it_is_the_distance_of_means_and_of_deviations():
    close(frechet_distance(np.array([1.0]), np.array([[4.0]]), np.array([-2.0]), np.array([[0.25]])), 3**2 + (2 - 0.5) ** 2)


def test_of_covariances_that_commute_it_is_the_distance_of_their_roots():
    a, b = RNG.uniform(0.1, 5, (2, DIM))
    close(frechet_distance(MU1, rotated(a), MU2, rotated(b)), np.sum((MU1 - MU2) ** 2) + np.sum((np.sqrt(a) - np.sqrt(b)) ** 2))


def test_of_a_covariance_and_its_multiple_it_is_a_multiple_of_the_trace():
    close(frechet_distance(MU1, SIGMA1, MU1, 9 * SIGMA1), (3 - 1) ** 2 * np.trace(SIGMA1))


def test_in_two_dimensions_determinants_give_the_trace_of_the_root():
    one, other = np.array([[2.0, 0.7], [0.7, 1.0]]), np.array([[1.0, -0.9], [-0.9, 3.0]])
    root = np.sqrt(np.trace(one @ other) + 2 * np.sqrt(np.linalg.det(one @ other)))
    close(frechet_distance(np.zeros(2), one, np.zeros(2), other), np.trace(one + other) - 2 * root)


def test_both_sides_may_be_exchanged_or_turned_together():
    value = frechet_distance(MU1, SIGMA1, MU2, SIGMA2)
    close(frechet_distance(MU2, SIGMA2, MU1, SIGMA1), value)
    turned = [ROTATION @ sigma @ ROTATION.T for sigma in (SIGMA1, SIGMA2)]
    close(frechet_distance(ROTATION @ MU1, turned[0], ROTATION @ MU2, turned[1]), value)


def test_of_equal_gaussians_it_is_nothing():
    assert 0 <= frechet_distance(MU1, SIGMA1, MU1, SIGMA1) < 1e-12 * np.trace(SIGMA1)


SINGULAR = {
    "half the rank": np.r_[np.ones(DIM // 2), np.zeros(DIM // 2)],
    "the other half": np.r_[np.zeros(DIM // 2), np.ones(DIM // 2)],
    "one direction": np.r_[3.0, np.zeros(DIM - 1)],
    "near singular": np.logspace(2, -14, DIM),
    "tiny": np.full(DIM, 1e-30),
    "zero": np.zeros(DIM),
    "full": np.linspace(1, 2, DIM),
}


@pytest.mark.parametrize("one", SINGULAR)
@pytest.mark.parametrize("other", SINGULAR)
def test_covariances_without_full_rank_give_their_closed_form_and_no_less_than_nothing(one, other):
    a, b = SINGULAR[one], SINGULAR[other]
    value = frechet_distance(MU1, rotated(a), MU1, rotated(b))
    assert value >= 0
    # the root of float64's rounding, in each of the directions
    assert value == pytest.approx(
        np.sum((np.sqrt(a) - np.sqrt(b)) ** 2), abs=1e-7 * DIM * np.sqrt(a.max() * b.max()) + 1e-13 * (a + b).sum()
    )


def test_fewer_samples_than_dimensions_give_a_finite_distance():
    few = moments_of(RNG.normal(size=(5, DIM)))
    assert frechet_distance(few.mean, few.covariance, MU2, SIGMA2) > 0
    assert frechet_distance(MU2, SIGMA2, few.mean, few.covariance) == pytest.approx(frechet_distance(few.mean, few.covariance, MU2, SIGMA2))


def test_float32_statistics_are_taken():
    value = frechet_distance(MU1.astype(np.float32), SIGMA1.astype(np.float32), MU2, SIGMA2)
    assert value == pytest.approx(frechet_distance(MU1, SIGMA1, MU2, SIGMA2), rel=1e-5)


@pytest.mark.parametrize(
    ("mu", "sigma", "said"),
    [
        (np.zeros(3), np.eye(3), f"{DIM} dimensions and the samples have 3"),
        (np.zeros(3), np.eye(4), "do not fit"),
        (np.zeros((2, DIM)), np.eye(DIM), "do not fit"),
        (np.full(DIM, np.nan), np.eye(DIM), "NaN"),
        (np.zeros(DIM), np.full((DIM, DIM), np.inf), "infinity"),
        (np.zeros(DIM), np.triu(np.ones((DIM, DIM))), "not symmetric"),
        (np.zeros(DIM), -np.eye(DIM), "negative eigenvalues"),
    ],
)
def test_what_are_no_moments_is_refused(mu, sigma, said):
    with pytest.raises(UserError, match=said):
        frechet_distance(mu, sigma, MU2, SIGMA2)
    with pytest.raises(
        UserError, match=said.replace(f"{DIM} dimensions and the samples have 3", f"3 dimensions and the samples have {DIM}")
    ):
        frechet_distance(MU2, SIGMA2, mu, sigma)


def test_too_few_begins_below_one_more_than_the_dimensions():
    assert not too_few(2049, 2048)
    assert "2049" in too_few(2048, 2048)
    assert too_few(1, 2048).endswith("their covariance lacks full rank, and the distance comes out far too large")


@pytest.fixture(scope="module")
def draws():
    """150 times 200 samples [200, 12] of a Gaussian, the distance from a reference, and its true value."""
    distance, root = distance_from(MU2, SIGMA2), np.linalg.cholesky(SIGMA1)
    random = np.random.default_rng(1)
    samples = [MU1 + random.normal(size=(200, DIM)) @ root.T for _ in range(150)]
    return samples, distance, distance(MU1, SIGMA1)


def measured(samples, distance):
    found = map(moments_of, samples)
    return np.array([distance(each.mean, each.covariance) for each in found])


def test_extrapolation_takes_the_bias_away(draws):
    samples, distance, truth = draws
    alike = distance_from(MU1, SIGMA1)  # the bias is nowhere as plain as where the distance is 0
    for from_reference, true in ((distance, truth), (alike, 0.0)):
        plain = measured(samples, from_reference) - true
        beyond = np.array([extrapolated(each, from_reference).distance for each in samples]) - true
        error = beyond.std() / np.sqrt(len(samples))
        assert abs(beyond.mean()) < 3 * error + 0.1 * plain.mean()
    assert plain.mean() > 20 * error


def test_extrapolation_goes_through_growing_subsets_up_to_all(draws):
    samples, distance, _ = draws
    found = extrapolated(samples[0], distance, num=7)
    assert found.sizes == sorted(set(found.sizes))
    assert len(found.sizes) == 7
    assert found.sizes[0] == 2 * (DIM + 1)
    assert found.sizes[-1] == 200
    close(found.distances[-1], measured(samples[:1], distance)[0])
    line = np.polynomial.Polynomial([found.distance, 0.0])
    slopes = np.linalg.lstsq(1 / np.array(found.sizes)[:, None], np.array(found.distances) - line(0), rcond=None)[0]
    residuals = np.array(found.distances) - found.distance - slopes / np.array(found.sizes)
    assert abs(residuals.sum()) < 1e-9  # as a least squares line's with its constant


def test_of_many_samples_the_smallest_subset_is_a_tenth(draws):
    samples, distance, _ = draws
    assert extrapolated(np.concatenate(samples[:3]), distance).sizes[0] == 60


def test_a_line_against_1_over_n_meets_0_at_its_constant():
    sizes = [100, 150, 900]
    close(frechet._intercept(sizes, [3 + 40 / size for size in sizes]), 3)


def test_the_subsets_depend_on_the_seed_alone(draws):
    samples, distance, _ = draws
    assert extrapolated(samples[0], distance, seed=1) == extrapolated(samples[0], distance, seed=1)
    assert extrapolated(samples[0], distance, seed=1) != extrapolated(samples[0], distance, seed=2)


def test_too_few_to_extrapolate_is_refused(draws):
    samples, distance, _ = draws
    enough = 2 * (DIM + 1)
    assert extrapolated(samples[0][:enough], distance).sizes[0] == DIM + 1
    with pytest.raises(UserError, match=f"give {enough} or more"):
        extrapolated(samples[0][: enough - 1], distance)
