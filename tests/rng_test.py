import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

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


def test_tokens_of_probability_4e_8_are_drawn_as_often_as_that():
    """Of the first 49,152 documents 8.3 are expected to draw one of these 4,096 tokens, and these nine do. With JAX's default mode,
    whose largest Gumbel variable is 15.9, none does.
    """
    rare = {3117: 3064, 3961: 1688, 6712: 2612, 11165: 692, 15644: 4004, 17115: 454, 19826: 1894, 41699: 2771, 49117: 413}
    keys = jax.vmap(jax.random.fold_in, (None, 0))(rng.stream(0, "sample"), jnp.array(list(rare)))
    logits = jnp.full((len(rare), 4097), -17.0).at[:, 0].set(0.0)
    assert rng.categorical(keys, logits).tolist() == list(rare.values())


def test_tokens_are_drawn_as_often_as_their_probability_says():
    keys = rng.example_keys(rng.stream(0, "sample"), 0, 20_000)
    probabilities = np.array([0.5, 0.3, 0.15, 0.04, 0.01])
    tokens = np.asarray(rng.categorical(keys, jnp.broadcast_to(jnp.log(probabilities), (len(keys), 5))))
    np.testing.assert_array_equal(rng.categorical(keys[7:9], jnp.broadcast_to(jnp.log(probabilities), (2, 5))), tokens[7:9])
    error = np.sqrt(probabilities * (1 - probabilities) / len(keys))
    assert (np.abs(np.bincount(tokens, minlength=5) / len(keys) - probabilities) < 3 * error).all()


def drawn():
    """A number for each thing that is drawn: initial weights, noise of a batch and of one example, tokens, on whole and split arrays."""
    keys = rng.example_keys(rng.stream(7, "sample"), 0, 4)
    weights = nnx.Linear(3, 2, rngs=nnx.Rngs(rng.stream(7, "init"))).kernel[...]
    split = jax.sharding.NamedSharding(jax.make_mesh((4,), ("data",)), jax.sharding.PartitionSpec("data"))
    noise = jax.jit(lambda key: jax.random.normal(key, (8, 3)), out_shardings=split)(rng.stream(7, "train"))
    tokens = rng.categorical(keys, jnp.zeros((4, 1000)))
    arrays = [weights, noise, rng.normal(keys, (5,)), rng.normal(keys[2:3], (5,)), tokens]
    return [[str(array.dtype), np.asarray(array).ravel().tolist()] for array in arrays]


HOSTILE = dict(
    JAX_DEFAULT_PRNG_IMPL="unsafe_rbg",
    JAX_THREEFRY_PARTITIONABLE="0",
    JAX_ENABLE_CUSTOM_PRNG="1",
    JAX_RANDOM_SEED_OFFSET="5",
    JAX_HIGH_DYNAMIC_RANGE_GUMBEL="0",
    JAX_ENABLE_X64="1",
)


@pytest.mark.slow
def test_numbers_drawn_depend_on_keys_alone_whatever_the_environment():
    """Generator, partitioning, offset and number format would each change what is drawn."""
    program = f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import rng_test; print(rng_test.drawn())"
    run = subprocess.run([sys.executable, "-c", program], env={**os.environ, **HOSTILE}, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str(drawn())
    (_, noise), (_, alone) = drawn()[2:4]
    assert noise[10:15] == alone
