import tracemalloc

import numpy as np
import pytest

from tinygen.errors import UserError
from tinygen.evaluation.metrics.moments import BLOCK, Moments, moments_of


@pytest.fixture(scope="module")
def features():
    """[2500, 6] with means that are a million times the deviations, and correlated."""
    random = np.random.default_rng(0)
    return random.normal(size=(2500, 6)) @ random.normal(size=(6, 6)) + 1e6 * random.normal(size=6)


def streamed(features, size):
    moments = Moments.empty(features.shape[1])
    for start in range(0, len(features), size):
        moments.add(features[start : start + size])
    return moments


def assert_same(moments, other):
    assert moments.count == other.count
    np.testing.assert_allclose(moments.mean, other.mean, rtol=1e-12)
    np.testing.assert_allclose(moments.covariance, other.covariance, rtol=1e-9)


def test_mean_and_covariance_are_numpys_even_far_from_the_origin(features):
    moments = moments_of(features)
    np.testing.assert_allclose(moments.mean, features.mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.covariance, np.cov(features, rowvar=False), rtol=1e-9)


def test_float32_rows_are_added_in_float64(features):
    rounded = (features / 1e6).astype(np.float32)
    moments = moments_of(rounded)
    assert moments.covariance.dtype == np.float64
    np.testing.assert_allclose(moments.covariance, np.cov(rounded.astype(np.float64), rowvar=False), rtol=1e-9)


@pytest.mark.parametrize("size", [1, 7, 64, BLOCK + 1])
def test_the_size_of_batches_makes_no_difference(features, size):
    assert_same(streamed(features, size), moments_of(features))


@pytest.mark.parametrize("cuts", [[1250], [1, 2], [3, 900, 901, 2400]])
def test_the_moments_of_parts_merge_into_those_of_all_in_any_order(features, cuts):
    parts = [streamed(part, 50) for part in np.split(features, cuts)]
    for order in (parts, parts[::-1]):
        merged = Moments.empty(6)
        for part in order:
            merged = merged.merge(part)
        assert_same(merged, moments_of(features))


def test_merging_leaves_both_sides_as_they_were(features):
    one, other = moments_of(features[:100]), moments_of(features[100:200])
    one.merge(other)
    assert_same(one, moments_of(features[:100]))
    assert_same(other, moments_of(features[100:200]))


def test_nothing_and_nothing_is_nothing():
    assert Moments.empty(3).merge(Moments.empty(3)).count == 0


def test_rows_can_be_chosen(features):
    rows = np.random.default_rng(1).permutation(2500)[:1500]
    assert_same(moments_of(features, rows), moments_of(features[rows]))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 5, BLOCK + 3])
def test_features_that_are_not_finite_are_refused_with_the_number_of_the_row(features, value, row):
    broken = features.copy()
    broken[row, 2] = value
    moments = moments_of(features[:10])
    with pytest.raises(UserError, match=rf"image {10 + row} .*1 of 6"):
        moments.add(broken)
    with pytest.raises(UserError, match=f"image {70000 + row} "):
        moments.add(broken, first=70000)
    assert_same(moments, moments_of(features[:10]))


def test_a_broken_row_on_the_disk_is_named_by_its_place_there(features):
    broken = features.copy()
    broken[2222] = np.nan
    with pytest.raises(UserError, match="image 2222 "):
        moments_of(broken)


@pytest.mark.parametrize("count", [0, 1])
def test_a_covariance_of_fewer_than_two_rows_is_refused(features, count):
    with pytest.raises(UserError, match="2 images or more"):
        _ = moments_of(features[:count]).covariance


def test_memory_does_not_grow_with_the_number_of_rows():
    def peak(rows):
        features = np.zeros((rows, 128), np.float32)
        tracemalloc.start()
        moments_of(features)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert peak(20 * BLOCK) < 1.05 * peak(2 * BLOCK)
