import numpy as np
import pytest

from tinygen.errors import UserError
from tinygen.evaluation.metrics.inception_score import inception_score


def one_hot(labels, sure=50.0):
    return sure * np.eye(10)[labels]


def test_images_whose_classes_nobody_can_tell_score_1():
    assert inception_score(np.zeros((40, 10))) == (1, 0)


def test_sure_images_of_all_classes_score_the_number_of_classes():
    mean, std = inception_score(one_hot(np.arange(200) % 10), seed=None)
    assert mean == pytest.approx(10, rel=1e-12)
    assert std == pytest.approx(0, abs=1e-12)


def test_sure_images_of_one_class_score_1():
    assert inception_score(one_hot(np.full(50, 3))).mean == pytest.approx(1)


def test_it_is_the_exponential_of_the_mean_divergence_from_the_mean_of_each_split():
    logits = np.random.default_rng(0).normal(size=(23, 4))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    parts = [p[:7], p[7:15], p[15:]]  # 23 in three: cut at 7 2/3 and 15 1/3
    scores = [np.exp(np.mean(np.sum(part * np.log(part / part.mean(0)), 1))) for part in parts]
    assert inception_score(logits, splits=3, seed=None) == pytest.approx((np.mean(scores), np.std(scores)), rel=1e-12)


def test_images_in_the_order_of_their_classes_are_shuffled_before_they_are_split():
    ordered = one_hot(np.repeat(np.arange(10), 50))
    assert inception_score(ordered, seed=None).mean == pytest.approx(1)
    assert inception_score(ordered).mean > 8
    assert inception_score(ordered, seed=1) == inception_score(ordered, seed=1) != inception_score(ordered, seed=2)


def test_a_constant_on_all_logits_makes_no_difference_however_large():
    logits = np.random.default_rng(0).normal(size=(50, 10))
    assert inception_score(logits + 1e4) == pytest.approx(inception_score(logits), rel=1e-9)


def test_probabilities_that_round_to_0_add_nothing():
    assert inception_score(one_hot(np.arange(100) % 10, sure=1e5), seed=None).mean == pytest.approx(10)
    assert inception_score(one_hot(np.zeros(100, int), sure=1e5)).mean == 1


def test_logits_on_the_disk_give_the_same(tmp_path):
    logits = np.random.default_rng(0).normal(size=(50, 10)).astype(np.float32)
    np.save(tmp_path / "logits.npy", logits)
    assert inception_score(np.load(tmp_path / "logits.npy", mmap_mode="r")) == inception_score(logits)


def test_fewer_images_than_splits_and_nan_are_refused():
    with pytest.raises(UserError, match="9 images are too few"):
        inception_score(np.zeros((9, 10)))
    with pytest.raises(UserError, match="not finite"):
        inception_score(np.full((20, 10), np.nan))
