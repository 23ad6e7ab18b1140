import tracemalloc

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from tinygen.errors import UserError
from tinygen.evaluation.metrics.neighbours import ROWS, density_coverage, precision_recall

RNG = np.random.default_rng(0)


def naive(features, reference, k):
    """(precision, recall, density, coverage) from whole matrices of distances."""

    def radii(x):
        return np.sort(cdist(x, x), axis=1)[:, k]  # the first is the row's own

    across = cdist(features, reference)
    in_real, in_drawn = across <= radii(reference), across <= radii(features)[:, None]
    return in_real.any(1).mean(), in_drawn.any(0).mean(), in_real.sum(1).mean() / k, in_real.any(0).mean()


@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize(("num", "num_reference"), [(40, 60), (ROWS + 100, 2 * ROWS + 1)])
def test_blocks_give_what_whole_matrices_give(k, num, num_reference):
    features, reference = RNG.normal(0.3, size=(num, 6)), RNG.normal(size=(num_reference, 6))
    scores = (*precision_recall(features, reference, k=k), *density_coverage(features, reference, k=k))
    assert scores == pytest.approx(naive(features, reference, k), rel=1e-12)


def test_the_radius_goes_to_the_kth_of_the_others():
    line = np.arange(10.0)[:, None] ** 2  # 0, 1, 4, 9, ...: the neighbour of 81 is at 17, the second at 32
    for k, radius in ((1, 17), (2, 32)):
        for place, inside in ((81 + radius, 1), (81 + radius + 1e-6, 0)):
            assert precision_recall(np.full((k + 1, 1), place), line, k=k).precision == inside


def test_samples_of_one_kind_are_precise_and_recall_little():
    reference = RNG.normal(size=(500, 4))
    assert precision_recall(0.05 * RNG.normal(size=(500, 4)), reference).precision > 0.99
    assert precision_recall(0.05 * RNG.normal(size=(500, 4)), reference).recall < 0.05
    assert density_coverage(0.05 * RNG.normal(size=(500, 4)), reference).coverage < 0.3
    assert density_coverage(0.05 * RNG.normal(size=(500, 4)), reference).density > 1


def test_samples_far_away_score_nothing():
    features, reference = RNG.normal(9, size=(50, 4)), RNG.normal(size=(60, 4))
    assert precision_recall(features, reference) == (0, 0)
    assert density_coverage(features, reference) == (0, 0)


def test_samples_of_the_same_distribution_are_as_dense_as_real_images():
    density, coverage = density_coverage(RNG.normal(size=(2000, 2)), RNG.normal(size=(2000, 2)))
    assert density == pytest.approx(1, abs=0.1)
    assert coverage == pytest.approx(1 - 0.5**5, abs=0.02)  # Naeem et al. 2020, lemma 2: 1 - 2⁻ᵏ of as many


def test_a_set_compared_with_itself_scores_full_marks():
    features = RNG.normal(30, size=(90, 40)).astype(np.float32)
    assert precision_recall(features, features) == (1, 1)
    assert density_coverage(features, features).coverage == 1


@pytest.mark.parametrize("noise", [0, 1e-7])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_copies_are_at_distance_0_even_where_the_networks_rounding_differs(scale, noise):
    """Eight copies of each image: every radius is 0, and only samples that are copies too are inside."""

    def computed(images):
        return (scale * images * (1 + noise * RNG.normal(size=images.shape))).astype(np.float32)

    images, others = RNG.uniform(size=(300, 33)), RNG.uniform(size=(100, 33))
    reference = computed(RNG.permutation(np.repeat(images, 8, 0)))
    assert precision_recall(computed(np.concatenate([images[:100], others])), reference).precision == 0.5
    found = density_coverage(computed(images[:100]), reference)
    assert found.coverage == pytest.approx(1 / 3)
    assert found.density == pytest.approx(8 / 5)


def test_a_pair_of_copies_makes_no_ball_of_radius_0_with_three_neighbours():
    reference = np.array([[0.0], [0.0], [1.0], [2.0], [50.0]])
    samples = np.array([[-2.0], [-2.1], [500.0], [600.0]])
    assert precision_recall(samples, reference).precision == 0.25  # the copies' third nearest is at 2


def test_features_on_the_disk_give_the_same(tmp_path):
    features, reference = RNG.normal(size=(2, 70, 5)).astype(np.float32)
    np.save(tmp_path / "x.npy", features)
    stored = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert precision_recall(stored, reference) == precision_recall(features, reference)
    assert density_coverage(stored, reference) == density_coverage(features, reference)


@pytest.mark.slow
def test_distances_of_all_pairs_are_never_in_memory():
    features = np.zeros((6000, 2), np.float32)
    tracemalloc.start()
    density_coverage(features[:500], features)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 6000**2 * 8


def test_what_cannot_be_compared_is_refused():
    x = RNG.normal(size=(9, 4))
    for score, k in ((precision_recall, 3), (density_coverage, 5)):
        for pair in ((x[:k], x), (x, x[:k])):
            with pytest.raises(UserError, match=f"{k + 1} images or more"):
                score(*pair)
        with pytest.raises(UserError, match="4 features and the reference 3"):
            score(x, x[:, :3])
        with pytest.raises(UserError, match="image 2 "):
            score(x, np.where(np.arange(9)[:, None] == 2, np.inf, x))
