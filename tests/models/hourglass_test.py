"""The hourglass: blocks of true neighbours, positions on every head, conditions, and how it is computed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small_microdit import drawn

from tinygen.errors import UserError
from tinygen.models.hourglass import Hourglass
from tinygen.nn.layers import depth_to_space, space_to_depth

SMALL = dict(
    places=(4, 6), vocabulary=5, classes=3, text_vocabulary=0, text_length=0, text_features=0, width=16, depth=(1, 2, 1), shorten=2,
    resampling="linear", heads=2, mlp_ratio=4.0, mlp_multiple=8, tied=True, text_depth=1, text_width=0, adaln="block", qk_norm=True,
    precision="float32", attention="auto", remat="none", scan=0,
)  # fmt: skip
T = jnp.zeros(2)
CLOSE = dict(rtol=1e-4, atol=1e-4)  # float32 sums in another order


def make(**changes):
    return Hourglass(**(SMALL | changes), rngs=nnx.Rngs(0))


def random(**changes):
    """A model whose weights are all drawn, compiled: (tokens, cond) -> logits."""
    graphdef, state = nnx.split(nnx.eval_shape(lambda: make(**changes)))
    state = drawn(state)
    run = jax.jit(lambda x, cond: nnx.merge(graphdef, state)(x, jnp.zeros(len(x)), cond=cond).pred)
    return lambda x, cond=None: np.asarray(run(x, cond or {"label": jnp.zeros(len(x), jnp.int32)}))


def tokens(places=(4, 6), num=2, most=6):
    return np.random.default_rng(0).integers(0, most, (num, *places)).astype(np.int32)


def test_blocks_go_there_and_back_and_hold_neighbours_in_both_directions():
    x = jnp.arange(2 * 4 * 6 * 3.0).reshape(2, 4, 6, 3)
    blocks = space_to_depth(x, 2)
    np.testing.assert_array_equal(depth_to_space(blocks, 2, (4, 6)), x)
    np.testing.assert_array_equal(np.sort(blocks[0, 1, 2].ravel()), np.sort(x[0, 2:4, 4:6].ravel()))


@pytest.mark.parametrize(
    "changes", [{}, dict(resampling="attention"), dict(tied=False, adaln="shared"), dict(places=(6,)), dict(shorten=1)]
)
def test_every_place_has_logits_that_depend_on_every_token_and_on_where_it_is(changes):
    model, places = random(**changes), changes.get("places", (4, 6))
    x = tokens(places, 1)
    out = model(x)
    assert out.shape == (1, *places, 5)
    last = tuple(side - 1 for side in places)
    moved = x.copy()
    moved[0][last] = (moved[0][last] + 1) % 5
    assert np.abs(model(moved) - out)[(0, *[0] * len(places))].max() > 1e-4
    one = np.zeros((1, *places), np.int32)
    one[0][last] = 3
    same = model(one).reshape(-1, 5)[:-1]
    assert np.abs(same - same[0])[1:].max(1).min() > 1e-5  # equal tokens at all other places, and no two of those alike


@pytest.mark.parametrize("head", [0, 1])
def test_every_head_is_told_the_places(head):
    """Only one head contributes, in every block: without its positions equal tokens would have equal logits."""
    graphdef, state = nnx.split(nnx.eval_shape(lambda: make(shorten=1)))
    model = nnx.merge(graphdef, drawn(state))
    for blocks in (model.pre, model.valley, model.post):
        for block in blocks:
            kernel = block.attention.out.kernel
            kernel.value = kernel[...].at[8 * (1 - head) : 8 * (2 - head)].set(0.0)
    x = np.zeros((1, 4, 6), np.int32)
    x[0, 1, 1] = 3
    out = np.asarray(model(jnp.asarray(x), T[:1], cond={"label": jnp.zeros(1, jnp.int32)}).pred).reshape(-1, 5)
    others = np.delete(out, 7, 0)
    assert np.abs(others - others[0])[1:].max(1).min() > 1e-6


def test_the_mask_is_a_token_of_its_own_and_is_never_predicted():
    model = random()
    x = tokens(most=5)
    assert np.abs(model(np.full_like(x, 5)) - model(np.full_like(x, 4))).max() > 1e-3
    assert model(x).shape[-1] == 5


def test_a_fresh_model_predicts_nearly_uniform_tokens_and_attention_between_blocks_adds_nothing_yet():
    x = jnp.asarray(tokens(most=5))
    plain, mixed = (np.asarray(make(resampling=way)(x, T).pred) for way in ("linear", "attention"))
    assert np.abs(plain - plain.mean(-1, keepdims=True)).max() < 1.0
    assert make(tied=False)(x, T).pred.any() == np.False_
    assert mixed.shape == plain.shape
    fresh = make(resampling="attention")
    assert not np.asarray(fresh.down_attention.out.kernel[...]).any()
    assert not np.asarray(fresh.up_attention.out.kernel[...]).any()


def test_labels_and_captions_change_the_logits_of_their_own_example():
    x = tokens()
    model = random()
    one, two = (model(x, {"label": jnp.array([0, label])}) for label in (0, 2))
    np.testing.assert_allclose(one[0], two[0], **CLOSE)
    assert np.abs(one[1] - two[1]).max() > 1e-3
    dropped = [model(x, {"label": jnp.array([label, 1]), "keep": jnp.array([False, True])})[0] for label in (0, 2)]
    np.testing.assert_allclose(*dropped, **CLOSE)
    reads = random(classes=0, text_vocabulary=7, text_length=3)
    one, two = (reads(x, {"text": jnp.array([[1, 2, 0], [1, last, 0]])}) for last in (2, 6))
    np.testing.assert_allclose(one[0], two[0], **CLOSE)
    assert np.abs(one[1] - two[1]).max() > 1e-3


@pytest.mark.parametrize("changes", [dict(scan=1), dict(remat="full"), dict(scan=2, remat="products")])
def test_loops_and_recomputation_change_nothing(changes):
    x = tokens()
    np.testing.assert_allclose(random(**changes)(x), random()(x), **CLOSE)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(shorten=4), "config.model.shorten=4 does not divide the tokens of an example, 4x6"),
        (dict(places=(2, 2, 2)), r"grids of tokens \[H, W\] or texts \[L\]"),
        (dict(heads=3), "config.model.heads=3 must divide config.model.width=16"),
        (dict(width=12), "multiple of 4"),
        (dict(depth=(1, 1)), "three numbers"),
        (dict(depth=(1, 0, 1)), "needs blocks in the valley"),
        (dict(resampling="cubic"), "unknown config.model.resampling"),
        (dict(adaln="none"), "adaln"),
        (dict(scan=3), "config.scan=3"),
        (dict(width=0), "config.model.width=0 must be positive"),
        (dict(text_vocabulary=5, text_length=2, text_width=12), "text_width=12"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_before_anything_is_computed(changes, said):
    with pytest.raises(UserError, match=said):
        nnx.eval_shape(lambda: make(**changes))
