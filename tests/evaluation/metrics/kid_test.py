import numpy as np
import pytest

from tinygen.errors import UserError
from tinygen.evaluation.metrics.kid import draw_subsets, kid, mmd2, subset_size


def features(num, dim=8, seed=0, shift=0.0):
    return np.random.default_rng(seed).normal(shift, size=(num, dim)).astype(np.float32)


def test_it_is_the_sum_over_all_pairs_of_different_rows():
    x, y = features(7).astype(float), features(7, seed=1).astype(float)

    def kernel(a, b):
        return (a @ b / 8 + 1) ** 3

    pairs = [(i, j) for i in range(7) for j in range(7)]
    within = np.mean([kernel(x[i], x[j]) + kernel(y[i], y[j]) for i, j in pairs if i != j])
    between = np.mean([kernel(x[i], y[j]) for i, j in pairs])
    assert mmd2(x, y) == pytest.approx(within - 2 * between, rel=1e-12)


def test_rows_from_one_distribution_are_at_distance_0_on_average_however_few():
    values = [mmd2(features(5, seed=2 * seed), features(5, seed=2 * seed + 1)) for seed in range(400)]
    assert abs(np.mean(values)) < 3 * np.std(values) / 20
    assert min(values) < 0


def test_it_grows_with_the_distance_of_the_means():
    near, far = (kid(features(120, shift=shift), features(120, seed=1)).mean for shift in (0.5, 1.0))
    assert 0.05 < near < far / 2


def test_mean_and_deviation_are_over_the_subsets():
    x, y = features(50), features(60, seed=1)
    subsets = [(np.arange(10), np.arange(10, 20)), (np.arange(20, 50), np.arange(30))]
    values = [mmd2(x[a], y[b]) for a, b in subsets]
    assert kid(x, y, subsets=subsets) == (np.mean(values), np.std(values))


def test_subsets_hold_no_row_twice_and_depend_on_the_seed():
    first = list(draw_subsets(50, 70, subsets=3, size=20, seed=1))
    assert [[len(set(rows)) for rows in subset] for subset in first] == [[20, 20]] * 3
    assert max(rows.max() for _, rows in first) >= 50
    for seed, same in ((1, True), (2, False)):
        again = list(draw_subsets(50, 70, subsets=3, size=20, seed=seed))
        assert np.array_equal(first, again) == same


@pytest.mark.parametrize(
    ("num", "num_reference", "size"), [(2000, 3000, 1000), (1999, 3000, 999), (30, 2000, 15), (2000, 41, 20), (5, 4, 2)]
)
def test_a_subset_has_1000_rows_or_half_of_the_smaller_side(num, num_reference, size):
    subsets = list(draw_subsets(num, num_reference))
    assert len(subsets) == 100
    assert {len(rows) for subset in subsets for rows in subset} == {size} == {subset_size(num, num_reference)}


def test_subsets_of_few_pictures_still_vary():
    """If each were all of a side, their spread would be rounding."""
    mean, std = kid(features(24), features(24, seed=1))
    assert std > 1e-3 * abs(mean)
    assert std == pytest.approx(
        np.std([mmd2(features(12, seed=2 * seed), features(12, seed=2 * seed + 1)) for seed in range(200)]), rel=0.5
    )


def test_features_on_the_disk_give_the_same(tmp_path):
    x, y = features(50), features(60, seed=1)
    np.save(tmp_path / "x.npy", x)
    assert kid(np.load(tmp_path / "x.npy", mmap_mode="r"), y, seed=3) == kid(x, y, seed=3)


def test_what_cannot_be_compared_is_refused():
    for few in ((3, 9), (9, 3)):
        with pytest.raises(UserError, match=f"KID needs 4 images or more on both sides: {few[0]} samples and {few[1]} of the reference"):
            kid(features(few[0]), features(few[1]))
    with pytest.raises(UserError, match="8 features and the reference 6"):
        kid(features(9), features(9, dim=6))
    broken = features(9)
    broken[4] = np.nan
    with pytest.raises(UserError, match="not finite"):
        kid(broken, features(9))
