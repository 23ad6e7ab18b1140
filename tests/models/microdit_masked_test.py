"""MicroDiT's parts beyond plain blocks: patches dropped in training, the mixer before, mixtures of experts, widths that grow."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small_microdit import abstract, drawn, make

from tinygen.errors import UserError
from tinygen.models.microdit import block_sizes
from tinygen.nn import experts, layers, rope
from tinygen.nn.flops import flops
from tinygen.nn.flops import products as counted
from tinygen.objectives.flow import mean_over

BATCH = 4
T, LABEL = np.array([0.1, 0.4, 0.6, 0.9], np.float32), np.array([0, 1, 2, 0], np.int32)
CLOSE = dict(rtol=1e-4, atol=1e-4)  # float32 sums in another order
WIDE = dict(shape=(8, 8, 3), depth=3, mixer_depth=1, mixer_width=8, mask=0.75)  # 16 patches, of which 4 are kept


@pytest.fixture(scope="module")
def masked():
    """masked(x, seed=None): what the model gives of it, in training where there is a seed, and the sixteen patches' weights."""
    graphdef, state = abstract(**WIDE)
    state = drawn(state)

    @functools.partial(jax.jit, static_argnames="train")
    def run(x, seed, train):
        out = nnx.merge(graphdef, state)(x, T, cond={"label": LABEL}, rngs=nnx.Rngs(mask=jax.random.key(seed)) if train else None)
        return out.pred, out.weight

    return lambda x, seed=None: jax.device_get(run(x, seed or 0, seed is not None))


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(4).normal(size=(BATCH, 8, 8, 3)).astype(np.float32)


def patches(x):
    return np.asarray(layers.patchify(jnp.asarray(x), 2)).reshape(BATCH, 16, -1)


def test_in_training_a_quarter_of_each_image_is_predicted_and_the_rest_is_zero(masked, images):
    pred, weight = masked(images, 1)
    assert weight.shape == (BATCH, 8, 8, 1)
    assert set(np.unique(weight)) == {0, 4}  # the expectation of each is 1
    kept = patches(weight / 4)
    np.testing.assert_array_equal(kept.min(-1), kept.max(-1))  # whole patches
    np.testing.assert_array_equal(kept[..., 0].sum(1), 4)
    assert len({tuple(row) for row in kept[..., 0].tolist()}) > 1
    np.testing.assert_array_equal((patches(pred) != 0).any(-1), kept[..., 0] == 1)
    assert (masked(images, 2)[1] != weight).any()


def test_without_training_nothing_is_dropped(masked, images):
    pred, weight = masked(images)
    assert weight is None
    assert (patches(pred) != 0).any(-1).all()


def test_dropped_patches_are_seen_by_the_mixer_and_by_nothing_else(images):
    for depth, seen in ((0, False), (1, True)):
        graphdef, state = abstract(**(WIDE | dict(mixer_depth=depth, mixer_width=0)))
        state = drawn(state)

        def run(x, graphdef=graphdef, state=state):
            out = nnx.merge(graphdef, state)(x, T, cond={}, rngs=nnx.Rngs(mask=1))
            return out.pred, out.weight

        run = jax.jit(run)
        pred, weight = run(images)
        changed = run(np.where(np.asarray(weight) > 0, images, -images))[0]
        assert (np.abs(changed - pred).max() > 1e-3) == seen


def test_no_gradient_comes_from_dropped_patches_and_one_comes_from_each_kept_one(masked, images):
    pred, weight = masked(images, 1)
    target = np.random.default_rng(5).normal(size=pred.shape)
    gradient = jax.grad(lambda pred: jnp.sum(mean_over(jnp.square(pred - target), weight)))(jnp.asarray(pred))
    np.testing.assert_array_equal((np.asarray(gradient) != 0).all(-1), weight[..., 0] > 0)
    expected = np.mean(np.square(pred - target)[np.broadcast_to(weight, pred.shape) > 0].reshape(BATCH, -1), 1)
    np.testing.assert_allclose(mean_over(jnp.square(pred - target), weight), expected, rtol=1e-5)


@pytest.mark.parametrize("positions", ["sincos", "rope"])
def test_a_kept_patch_is_predicted_as_among_the_kept_ones_alone(images, positions):
    """Without a mixer: the same patches at their positions, with nothing dropped, by a model that is given those alone."""
    graphdef, state = abstract(**(WIDE | dict(mixer_depth=0, mixer_width=0, positions=positions)))
    state = drawn(state)
    model = nnx.merge(graphdef, state)
    out = jax.jit(lambda: nnx.merge(graphdef, state)(images, T, cond={}, rngs=nnx.Rngs(mask=1)))()
    kept = np.flatnonzero(patches(out.weight)[0, :, 0])
    added, angles = (layers.sincos_2d(4, 4, 16), None) if positions == "sincos" else (0, jnp.asarray(rope.angles(4, 4, 8)[kept]))
    tokens = (model.embed(layers.patchify(jnp.asarray(images[:1]), 2)) + added)[:, kept]
    c = jax.nn.silu(model.time(jnp.asarray(T[:1])) + model.pooled_condition({}, 1))
    for block in model.blocks:
        tokens, _ = block((tokens, {}), c, None, angles=angles)
    shift, scale = jnp.split(model.final_modulation(c), 2, -1)
    alone = model.final(layers.modulate(layers.layer_norm(tokens), shift, scale))
    np.testing.assert_allclose(patches(out.pred)[0, kept], alone[0], **CLOSE)


@pytest.mark.parametrize("positions", ["sincos", "rope"])
def test_an_image_that_patches_do_not_divide_is_one_with_zeros_beyond_its_edges(images, positions):
    """5x7 in patches of 2: 3x4 of them, as of 6x8. Only its own pixels are predicted, and weigh."""
    small = images[:, :5, :7]
    wide = np.zeros((BATCH, 6, 8, 3), np.float32)
    wide[:, :5, :7] = small

    def run(x):
        graphdef, state = abstract(**WIDE | dict(shape=x.shape[1:], positions=positions, mask=0.5))
        model = nnx.merge(graphdef, drawn(state))
        return jax.jit(lambda: (model(x, T, cond={}), model(x, T, cond={}, rngs=nnx.Rngs(mask=1))))()

    (whole, dropped), (wide_whole, wide_dropped) = run(small), run(wide)
    np.testing.assert_allclose(whole.pred, wide_whole.pred[:, :5, :7], **CLOSE)
    np.testing.assert_allclose(dropped.pred, wide_dropped.pred[:, :5, :7], **CLOSE)
    np.testing.assert_array_equal(dropped.weight, wide_dropped.weight[:, :5, :7])
    assert whole.weight is None


def test_every_value_counts_as_without_a_mask_in_expectation_those_of_partial_patches_too():
    """5x7 in patches of 4: 2x2 of them, of which only the first is whole. Two are kept."""
    graphdef, state = abstract(**WIDE | dict(shape=(5, 7, 3), patch=4, mask=0.5))
    many = 1024
    x, t = np.zeros((many, 5, 7, 3), np.float32), np.full(many, 0.5, np.float32)
    run = jax.jit(lambda state: nnx.merge(graphdef, state)(x, t, cond={}, rngs=nnx.Rngs(mask=1)).weight)
    weight = run(drawn(state))
    np.testing.assert_allclose(weight.mean(0), 1.0, atol=5 / np.sqrt(many))  # each is 0 or 2: a standard deviation of 1
    squares = np.random.default_rng(0).normal(size=(5, 7, 3)) ** 2
    found = mean_over(np.broadcast_to(squares, x.shape), weight)
    np.testing.assert_allclose(found.mean(), squares.mean(), rtol=0.05)


@pytest.mark.slow
def test_three_quarters_dropped_take_less_than_half_of_the_work():
    """Two blocks of mixer, twelve of backbone: products of a whole gradient."""
    sizes = dict(shape=(32, 32, 3), width=64, depth=12, mixer_depth=2, heads=4, mlp_multiple=64)
    x, t = jax.ShapeDtypeStruct((2, 32, 32, 3), "float32"), jax.ShapeDtypeStruct((2,), "float32")

    def work(mask):
        graphdef, state = abstract(**sizes, mask=mask)

        def loss(state, x, t):
            out = nnx.merge(graphdef, state)(x, t, cond={}, rngs=nnx.Rngs(mask=0))
            return jnp.sum(out.pred)

        return flops(counted(jax.grad(loss), state, x, t))

    assert work(0.75) / work(0.0) < 0.45
    assert work(0.5) / work(0.0) < 0.7


def test_every_second_block_is_a_mixture_and_never_the_last():
    for depth, expected in ((1, [0]), (2, [1, 0]), (5, [0, 1, 0, 1, 0]), (6, [1, 0, 1, 0, 1, 0])):
        model = nnx.eval_shape(lambda depth=depth: make(depth=depth, experts=2, mixer_depth=1))
        assert [block.experts is not None for block in model.blocks] == expected
        assert [block.feed_forward is None for block in model.blocks] == expected
        assert model.mixer[0].experts is None


def test_what_experts_tell_is_the_mean_over_the_mixtures(images):
    graphdef, state = abstract(shape=(8, 8, 3), depth=5, experts=2, capacity=1.0)
    state = drawn(state)
    stats = jax.jit(lambda: nnx.merge(graphdef, state)(images, T, cond={"label": LABEL}).stats)()
    assert set(stats) == set(experts.STATS)
    assert all(0 < float(value) <= 1 for value in stats.values())


@pytest.mark.parametrize(
    "changes", [dict(mixer_depth=2, mixer_width=8, mask=0.5), dict(experts=2), dict(attention_first=0.5, mlp_ratio_first=1.0)]
)
def test_at_initialisation_the_output_is_zero_whatever_the_parts(images, changes):
    out = jax.jit(lambda: make(shape=(8, 8, 3), **changes)(images, T, cond={"label": LABEL}, rngs=nnx.Rngs(mask=0)))()
    assert not out.pred.any()


def test_width_grows_from_the_first_block_to_the_last():
    assert block_sizes(4, 8, 4.0, 0.5, 0.5) == ([0.5, 0.5 + 3.5 / 3, 0.5 + 7 / 3, 4.0], [4, 5, 7, 8])
    assert block_sizes(3, 4, 4.0, 0.0, 1.0) == ([4.0] * 3, [4] * 3)
    assert block_sizes(1, 4, 4.0, 0.5, 0.5)[1] == [4]
    model = nnx.eval_shape(lambda: make(depth=3, width=32, heads=4, attention_first=0.5, mlp_ratio_first=1.0))
    assert [block.attention.query.kernel.shape for block in model.blocks] == [(32, 16), (32, 24), (32, 32)]
    assert [block.feed_forward.gate.kernel.shape[1] for block in model.blocks] == [24, 56, 88]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(mask=1.0), "config.model.mask=1.0 must lie in [0, 1)"),
        (dict(mask=0.95), "config.model.mask=0.95 leaves none of an image's 6 patches"),
        (dict(mixer_depth=-1), "config.model.mixer_depth=-1"),
        (dict(mixer_width=8), "config.model.mixer_width=8 has no effect without blocks"),
        (dict(mixer_depth=1, mixer_width=12), "config.model.mixer_width=12 must be a multiple of 4 and of a head's size"),
        (dict(experts=8, capacity=1.0), "gives 8 experts less than one token each of an image's 6"),
        (dict(positions="ropee"), "unknown config.model.positions 'ropee': did you mean 'rope'?"),
        (dict(positions="rope", width=24, heads=4), "must be a multiple of 4, but config.model.heads=4 gives 6"),
        (dict(position_grid=-1), "config.model.position_grid=-1 must be 0"),
        (dict(attention_first=0.0), "config.model.attention_first=0.0 must lie above 0"),
        (dict(mlp_ratio_first=-1.0), "config.model.mlp_ratio_first=-1.0"),
    ],
)
def test_parts_that_do_not_fit_are_refused_before_anything_is_computed(changes, said):
    with pytest.raises(UserError) as caught:
        abstract(**changes)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
