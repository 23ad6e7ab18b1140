"""Quantizers against closed forms, brute force and the codebook's averages in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tinygen.distributed.mesh import Layout, make_mesh
from tinygen.errors import UserError
from tinygen.nn.quantize import DEAD, FSQ, VQ, ResidualVQ
from tinygen.train_step import merge, split

DRAW = np.random.default_rng(0)
CODES, DIM, DECAY = 6, 3, 0.9
Z = DRAW.normal(size=(8, 2, 4, DIM)).astype(np.float32)


def rngs(seed=0):
    return nnx.Rngs(revival=jax.random.key(seed))


def book(use=None, codes=CODES):
    """A quantizer whose codes are known, all of them in use."""
    made = VQ(codes, DIM, decay=DECAY)
    made.use[...] = jnp.asarray(np.ones(codes) if use is None else use, jnp.float32)
    vectors = np.random.default_rng(1).normal(size=(codes, DIM)).astype(np.float32)
    made.sums[...] = made.use[...][:, None] * vectors
    return made, vectors


def nearest(rows, vectors):
    return np.square(rows[:, None].astype(np.float64) - vectors).sum(-1).argmin(-1)


# Finite scalar quantization


@pytest.mark.parametrize("levels", [(8, 5, 5, 5), (2,), (3, 2), (7, 4, 6)])
def test_every_code_is_found_again_from_its_features(levels):
    fsq = FSQ(levels)
    assert (fsq.codes, fsq.dim) == (np.prod(levels), len(levels))
    tokens = np.arange(fsq.codes, dtype=np.int32)
    z = np.asarray(fsq.lookup(tokens))
    assert len(np.unique(z, axis=0)) == fsq.codes
    inverse = np.arctanh(np.clip(z, -1 + 1e-6, 1 - 1e-6)).astype(np.float32)
    found = fsq.quantize(inverse[:, None, None])
    np.testing.assert_array_equal(found.tokens[:, 0, 0], tokens)
    np.testing.assert_array_equal(found.z[:, 0, 0], z)
    assert found.tokens.dtype == jnp.int32
    np.testing.assert_array_equal(found.penalty, 0)


@pytest.mark.parametrize(("levels", "values"), [((2,), [-1, 1]), ((3,), [-1, 0, 1]), ((4,), [-1, -1 / 3, 1 / 3, 1])])
def test_levels_are_evenly_spaced_between_minus_one_and_one_however_large_the_input(levels, values):
    z = np.linspace(-100, 100, 100_001, dtype=np.float32).reshape(1, 1, -1, 1)
    np.testing.assert_allclose(np.unique(FSQ(levels).quantize(z).z), values, rtol=1e-6)


def test_a_feature_goes_to_the_level_nearest_to_its_hyperbolic_tangent():
    z = DRAW.normal(size=(1, 1, 500, 2)).astype(np.float32)
    steps = [np.linspace(-1, 1, level) for level in (5, 4)]
    want = [at[np.abs(np.tanh(z[0, 0, :, i, None].astype(np.float64)) - at).argmin(-1)] for i, at in enumerate(steps)]
    np.testing.assert_allclose(FSQ((5, 4)).quantize(z).z[0, 0], np.stack(want, -1), atol=1e-6)


def test_the_first_feature_counts_least():
    np.testing.assert_array_equal(FSQ((3, 4)).lookup(jnp.array([0, 1, 2, 3, 11])) * 3, [[-3, -3], [0, -3], [3, -3], [-3, -1], [3, 3]])


def test_the_gradient_is_that_of_the_hyperbolic_tangent_as_if_nothing_were_rounded():
    def value(z):
        return jnp.sum(jnp.arange(1, DIM + 1) * FSQ((8, 5, 3)).quantize(z).z)

    np.testing.assert_allclose(jax.grad(value)(Z), np.arange(1, DIM + 1) * (1 - np.tanh(Z) ** 2), rtol=1e-4, atol=1e-6)
    small = 1e-4 * np.sign(Z)  # finite differences of what is rounded are zero
    assert np.abs(value(Z + small) - value(Z)) < 1e-4


@pytest.mark.parametrize("levels", [(), (8, 1), (2**20, 32)])
def test_levels_that_make_no_codes_are_refused(levels):
    with pytest.raises(UserError, match=r"config\.model\.levels=\(.*must be 2 or more"):
        FSQ(levels)


# Vector quantization


def test_a_code_is_the_nearest_and_stays_as_it_is_outside_of_training():
    made, vectors = book()
    found = made.quantize(Z)
    want = nearest(Z.reshape(-1, DIM), vectors)
    np.testing.assert_array_equal(found.tokens.ravel(), want)
    np.testing.assert_allclose(found.z.reshape(-1, DIM), vectors[want], rtol=1e-6)
    np.testing.assert_array_equal(found.z, made.lookup(found.tokens))
    np.testing.assert_allclose(made.codebook, vectors, rtol=1e-6)
    np.testing.assert_allclose(found.penalty, np.square(Z.reshape(8, -1) - vectors[want].reshape(8, -1)).mean(-1), rtol=1e-5)


def test_the_gradient_passes_straight_through_and_the_penalty_moves_the_input_only():
    made, vectors = book()
    np.testing.assert_allclose(jax.grad(lambda z: jnp.sum(Z * made.quantize(z).z))(Z), Z, rtol=1e-6)
    code = vectors[nearest(Z.reshape(-1, DIM), vectors)].reshape(Z.shape)
    want = 2 * (Z - code) / (Z[0].size)
    np.testing.assert_allclose(jax.grad(lambda z: made.quantize(z).penalty.sum())(Z), want, rtol=1e-4, atol=1e-6)


def averaged(use, vectors, rows, weight):
    """The codebook's averages after a batch, in NumPy."""
    tokens, total = nearest(rows, vectors), weight.sum()
    sums = use[:, None] * vectors
    new_use, new_sums = DECAY * use, DECAY * sums
    for row, token, each in zip(rows, tokens, weight, strict=True):
        new_use[token] += (1 - DECAY) * each * len(use) / total
        new_sums[token] += (1 - DECAY) * each * len(use) / total * row
    return new_use, new_sums


def test_the_codebook_follows_the_averages_of_its_inputs_and_padding_counts_for_nothing():
    use = np.array([1.0, 0.5, 2.0, 0.3, 1.5, 0.7])
    made, vectors = book(use)
    weight = np.array([1, 1, 0, 1, 1, 0, 1, 0], np.float32)
    made.quantize(Z, weight=weight, rngs=rngs())
    want_use, want_sums = averaged(use, vectors, Z.reshape(-1, DIM), np.repeat(weight, 8))
    np.testing.assert_allclose(made.use[...], want_use, rtol=1e-5)
    np.testing.assert_allclose(made.sums[...], want_sums, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(made.codebook, want_sums / want_use[:, None], rtol=1e-4, atol=1e-5)
    assert float(made.use[...].mean()) == pytest.approx(DECAY * use.mean() + 1 - DECAY)


def test_a_batch_of_padding_changes_nothing():
    made, _ = book(np.array([1.0, 0.0, 1, 1, 1, 1]))
    before = np.asarray(made.use[...]), np.asarray(made.sums[...])
    made.quantize(Z, weight=np.zeros(len(Z)), rngs=rngs())
    np.testing.assert_array_equal(made.use[...], before[0])
    np.testing.assert_array_equal(made.sums[...], before[1])


def test_codes_hardly_used_take_different_valid_inputs_by_the_stream_and_the_others_stay():
    use = np.array([1.0, 0.9 * DEAD, 1.1 * DEAD, 0.0, 0.05, 1.0])
    weight = np.array([0, 1, 0, 1, 0, 0, 1, 0], np.float32)
    valid = Z[weight > 0].reshape(-1, DIM)

    def revived(seed):
        made, vectors = book(use)
        made._revive(jnp.asarray(Z.reshape(-1, DIM)), jnp.repeat(weight, 8), jax.random.key(seed))
        np.testing.assert_allclose(made.codebook[np.array([0, 2, 5])], vectors[[0, 2, 5]], rtol=1e-6)
        np.testing.assert_allclose(made.use[...], np.where(use < DEAD, 1.0, use), rtol=1e-6)
        return np.asarray(made.codebook[np.array([1, 3, 4])])

    rows = revived(0)
    places = [np.flatnonzero((valid == row).all(-1)) for row in rows]
    assert all(len(place) == 1 for place in places)
    assert len({int(place[0]) for place in places}) == 3
    np.testing.assert_array_equal(rows, revived(0))
    assert not np.array_equal(rows, revived(1))


def test_revival_comes_before_the_assignment_and_the_averages():
    use = np.array([1.0, 1.0, 0.0, 1.0, 0.0, 1.0])
    made, _ = book(use)
    made._revive(jnp.asarray(Z.reshape(-1, DIM)), jnp.ones(64), rngs().revival())
    now = np.asarray(made.use[...], np.float64), np.asarray(made.codebook)
    want_use, want_sums = averaged(*now, Z.reshape(-1, DIM), np.ones(64))
    whole, _ = book(use)
    found = whole.quantize(Z, rngs=rngs())
    np.testing.assert_array_equal(found.tokens.ravel(), nearest(Z.reshape(-1, DIM), now[1]))
    np.testing.assert_allclose(whole.use[...], want_use, rtol=1e-5)
    np.testing.assert_allclose(whole.sums[...], want_sums, rtol=1e-4, atol=1e-5)


def test_the_first_batch_gives_the_codebook_even_with_fewer_tokens_than_codes():
    made = VQ(100, DIM, decay=DECAY)
    found = made.quantize(Z, rngs=rngs())
    np.testing.assert_allclose(found.z, Z, rtol=1e-5)  # each of the 64 inputs is a code
    assert len(np.unique(found.tokens)) == 64


def test_training_on_clusters_puts_codes_into_all_of_them():
    centres = 3 * np.random.default_rng(2).normal(size=(CODES, DIM))
    rows = (centres[np.arange(600) % CODES] + 0.05 * np.random.default_rng(3).normal(size=(600, DIM))).astype(np.float32)
    made = VQ(3 * CODES, DIM, decay=DECAY)
    for step in range(100):
        made.quantize(rows.reshape(6, 10, 10, DIM), rngs=rngs(step))
    assert np.linalg.norm(centres[:, None] - np.asarray(made.codebook), axis=-1).min(-1).max() < 0.1
    assert float(made.quantize(rows.reshape(6, 10, 10, DIM)).penalty.mean()) < 0.05**2  # one code per cluster would leave this variance
    assert made.use[...].min() > DEAD


@pytest.mark.parametrize("stages", [1, 2])
def test_a_mesh_of_eight_devices_gives_the_update_of_one(stages):
    made = VQ(64, DIM, decay=DECAY) if stages == 1 else ResidualVQ(stages, 64, DIM, decay=DECAY)
    graph, _, buffers = split(made)
    weight = np.array([1, 1, 1, 1, 0, 1, 1, 1], np.float32)

    def update(buffers, z, weight):
        model = merge(graph, {}, buffers)
        found = model.quantize(z, weight=weight, rngs=rngs())
        return found, split(model)[2]

    layout = Layout(make_mesh(dict(data=2, fsdp=4, tensor=1)), (), min_size=64)
    placed = jax.device_put(buffers, layout.shardings(buffers))
    assert any(not leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(placed))
    with jax.set_mesh(layout.mesh):
        spread = jax.jit(update)(placed, *layout.share({"z": Z, "weight": weight}).values())
    alone = jax.jit(update)(buffers, Z, weight)
    assert float(jnp.abs(alone[1]["sums"] if stages == 1 else alone[1]["stages"]["0"]["sums"]).max()) > 0.5
    for ours, one in zip(jax.tree.leaves(spread), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(ours, one, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(codes=1), r"config\.model\.codes=1 must be 2"),
        (dict(codes=2**24 + 1), r"config\.model\.codes=16777217"),
        (dict(dim=0), r"config\.model\.code_width=0"),
        (dict(decay=1.0), r"config\.model\.code_decay=1\.0"),
    ],
)
def test_sizes_that_make_no_codebook_are_refused_by_name(changes, said):
    with pytest.raises(UserError, match=said):
        VQ(**(dict(codes=CODES, dim=DIM, decay=DECAY) | changes))


# Residual stages


def test_each_stage_lowers_the_error_of_the_ones_before():
    z = np.random.default_rng(4).normal(size=(8, 8, 8, DIM)).astype(np.float32)
    errors = []
    for stages in (1, 2, 3):
        made = ResidualVQ(stages, 16, DIM, decay=DECAY)
        for step in range(30):
            made.quantize(z, rngs=rngs(step))
        found = made.quantize(z)
        assert found.tokens.shape == (8, 8, 8, stages)
        np.testing.assert_array_equal(found.z, made.lookup(found.tokens))
        errors.append(float(np.square(found.z - z).mean()))
    assert errors[2] < 0.5 * errors[1] < 0.25 * errors[0]


def test_residual_codes_add_up_and_so_do_the_penalties():
    made = ResidualVQ(2, CODES, DIM, decay=DECAY)
    for step in range(3):
        made.quantize(Z, rngs=rngs(step))
    first = made.stages[0].quantize(Z)
    second = made.stages[1].quantize(Z - first.z)
    found = made.quantize(Z)
    np.testing.assert_allclose(found.z, first.z + second.z, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found.tokens, np.stack([first.tokens, second.tokens], -1))
    np.testing.assert_allclose(found.penalty, first.penalty + second.penalty, rtol=1e-5)
    np.testing.assert_allclose(jax.grad(lambda z: jnp.sum(Z * made.quantize(z).z))(Z), Z, rtol=1e-6)


def test_no_stage_is_refused():
    with pytest.raises(UserError, match=r"config\.model\.stages=0"):
        ResidualVQ(0, CODES, DIM, decay=DECAY)
