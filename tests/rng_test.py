import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tinygen import rng

NAMES = ("init", "train", "eval", "preview", "sample")


def words(key):
    return tuple(np.asarray(jax.random.key_data(key)).ravel().tolist())


def test_every_seed_and_name_has_its_own_stream():
    assert len({words(rng.stream(seed, name)) for seed in (0, 1, 2, 2**32 - 1) for name in NAMES}) == 4 * len(NAMES)


@pytest.mark.parametrize(
    ("seed", "name", "expected"),
    [(0, "init", (3020537540, 2946840664)), (0, "train", (2561911289, 2218184944)), (7, "sample", (3512167562, 3551941471))],
)
def test_streams_are_the_same_for_ever(seed, name, expected):
    """A checkpoint's samples and a resumed run's noise come from these: whoever changes them breaks old runs."""
    assert words(rng.stream(seed, name)) == expected


def test_example_i_s_key_depends_on_i_alone():
    root = rng.stream(0, "sample")
    keys = [words(key) for key in rng.example_keys(root, 0, 7)]
    assert len(set(keys)) == 7
    assert [words(key) for key in rng.example_keys(root, 3, 4)] == keys[3:]
    assert words(rng.example_keys(root, 5, 1)) == keys[5]
    assert keys != [words(key) for key in rng.example_keys(rng.stream(1, "sample"), 0, 7)]


def test_example_i_s_noise_depends_on_its_key_alone_and_is_standard_normal():
    keys = rng.example_keys(rng.stream(0, "sample"), 0, 5_000)
    noise = np.asarray(rng.normal(keys, (2, 3)))
    assert noise.shape == (5_000, 2, 3)
    np.testing.assert_array_equal(rng.normal(keys[7:9], (2, 3)), noise[7:9])
    assert noise.mean() == pytest.approx(0, abs=3 / np.sqrt(noise.size))
    assert noise.std() == pytest.approx(1, abs=3 / np.sqrt(2 * noise.size))
    assert len(jnp.unique(noise)) > 0.99 * noise.size  # of 30,000 floats near zero few coincide
