import numpy as np
import pytest

from tinygen.data.codec import Field
from tinygen.data.source import check_batch
from tinygen.data.synthetic import sine
from tinygen.errors import UserError


def everything(source, split):
    return source.splits[split].take(np.arange(len(source.splits[split])))


@pytest.mark.parametrize(("split", "num"), [("train", 4000), ("validation", 1000)])
def test_both_splits_are_the_sine_of_points_from_the_whole_interval_uniformly(split, num):
    batch = everything(sine(num=4000, held_out=1000), split)
    x = batch["x"]
    assert x.shape == batch["y"].shape == (num, 1)
    assert x.dtype == batch["y"].dtype == np.float32
    np.testing.assert_allclose(batch["y"], np.sin(x.astype(np.float64)), atol=3e-7)  # x and y are rounded to float32, each by itself
    counts = np.histogram(x, 10, (-np.pi, np.pi))[0]
    assert counts.sum() == num
    assert np.abs(counts - num / 10).max() < 4 * np.sqrt(num * 0.1 * 0.9)


def test_nothing_is_both_trained_on_and_held_out():
    source = sine(num=1000, held_out=500)
    assert not np.intersect1d(everything(source, "train")["x"], everything(source, "validation")["x"]).size


def test_it_keeps_its_codec_s_promise_and_another_scale_is_refused():
    source = sine(num=256, held_out=64)
    assert source.codec.medium.name == "curve"
    assert source.codec.facts().items() >= {"classes": 0, "shape": (1,), "target_shape": (1,)}.items()
    assert source.codec.spec["y"] == Field(shape=(1,), dtype="float32", low=-1.0, high=1.0)
    batch = next(source.batches("train", 64, seed=0))
    check_batch(batch, source.codec)
    with pytest.raises(UserError, match="is its scale wrong"):
        check_batch({**batch, "x": 2 * batch["x"]}, source.codec)
    with pytest.raises(UserError, match="is its scale wrong"):
        check_batch({**batch, "y": 2 * batch["y"]}, source.codec)


def test_the_data_are_the_same_every_time_and_known_by_their_fingerprint():
    first, again = sine(num=100, held_out=10), sine(num=100, held_out=10)
    np.testing.assert_array_equal(everything(first, "train")["x"], everything(again, "train")["x"])
    assert first.fingerprint == again.fingerprint
    others = {sine(num=num, held_out=held_out).fingerprint for num, held_out in ((100, 10), (99, 11), (100, 11), (101, 10))}
    assert len(others) == 4
    assert first.fingerprint in others


@pytest.mark.parametrize("key", ["num", "held_out"])
def test_a_split_without_examples_is_refused(key):
    with pytest.raises(UserError, match=f"config.data.{key}=0 must be positive"):
        sine(**(dict(num=10, held_out=10) | {key: 0}))
