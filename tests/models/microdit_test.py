import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small_microdit import SMALL, abstract, drawn, make

from tinygen.errors import UserError

BATCH = 4


def count(**changes):
    return sum(leaf.size for leaf in jax.tree.leaves(abstract(**changes)[1]))


@pytest.fixture(scope="module")
def batch():
    """(x, t, label), every example another."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(BATCH, *SMALL["shape"])).astype(np.float32)
    return x, np.array([0.1, 0.4, 0.6, 0.9], np.float32), np.array([0, 1, 2, 0], np.int32)


@pytest.fixture(scope="module", params=["block", "shared"])
def model(request):
    """A model whose weights are all drawn: (x, t, label, keep) -> prediction, compiled once."""
    graphdef, state = abstract(adaln=request.param)
    state = drawn(state)
    run = jax.jit(lambda x, t, label, keep: nnx.merge(graphdef, state)(x, t, cond={"label": label, "keep": keep}).pred)
    return lambda x, t, label, keep=True: np.asarray(run(x, t, label, np.broadcast_to(keep, len(t))))


# float32 sums in another order, through two blocks
CLOSE = dict(rtol=1e-4, atol=1e-4)


# At initialisation


@pytest.fixture(scope="module", params=["block", "shared"])
def fresh(request):
    graphdef, state = jax.jit(lambda: nnx.split(make(adaln=request.param)))()
    return nnx.merge(graphdef, state)


def test_at_initialisation_every_block_is_the_identity(fresh):
    rng = np.random.default_rng(0)
    tokens, c = jnp.asarray(rng.normal(size=(2, 6, 16)), jnp.float32), jnp.asarray(rng.normal(size=(2, 16)), jnp.float32)

    def run():
        shared = None if fresh.modulation is None else fresh.modulation(c)
        return [(block((tokens, {}), c, shared)[0], block.attention(tokens), block.feed_forward(tokens)) for block in fresh.blocks]

    for after, attended, fed in jax.jit(run)():
        np.testing.assert_array_equal(after, tokens)
        assert min(np.abs(attended).max(), np.abs(fed).max()) > 0.1  # and not since there is nothing in it


def test_at_initialisation_the_output_is_zero(fresh, batch):
    x, t, label = batch
    out = jax.jit(lambda: fresh(x, t, cond={"label": label}))()
    assert out.pred.shape == x.shape
    assert not out.pred.any()
    assert (out.head, out.weight, dict(out.stats)) == (None, None, {})


def test_only_gates_output_and_biases_start_at_zero(fresh):
    flat = {"/".join(map(str, path)): np.asarray(value) for path, value in nnx.to_flat_state(nnx.state(fresh, nnx.Param))}
    zero = {name for name, value in flat.items() if not value.any()}
    assert {name for name in zero if not name.endswith("bias")} == {
        name for name in flat if name.endswith(("modulation/kernel", "modulation_table")) or name == "final/kernel"
    }


# What the prediction depends on


def test_the_null_condition_is_the_same_whatever_the_label_and_differs_from_every_label(model, batch):
    x, t, label = batch
    null = model(x, t, label, keep=False)
    np.testing.assert_array_equal(model(x, t, (label + 1) % 3, keep=False), null)
    for index in range(3):
        assert np.abs(model(x, t, np.full_like(label, index)) - null).max(axis=(1, 2, 3)).min() > 1e-2


def test_keep_drops_the_condition_of_its_own_example_only(model, batch):
    keep = np.array([True, False, False, True])
    kept, dropped, mixed = (model(*batch, keep=which) for which in (True, False, keep))
    np.testing.assert_array_equal(mixed, np.where(keep[:, None, None, None], kept, dropped))


def test_without_a_condition_or_without_keep_it_is_the_null_or_the_label(batch):
    x, t, label = batch
    graphdef, state = abstract(depth=1)
    state = drawn(state)
    run = jax.jit(lambda cond: nnx.merge(graphdef, state)(x, t, cond=cond).pred)
    keep = np.ones(BATCH, bool)
    np.testing.assert_allclose(run({}), run({"label": label, "keep": ~keep}), **CLOSE)
    np.testing.assert_allclose(run({"label": label}), run({"label": label, "keep": keep}), **CLOSE)


@pytest.mark.parametrize("argument", [0, 1, 2])
def test_image_time_and_label_each_change_the_prediction_of_their_own_example_alone(model, batch, argument):
    changed = [np.array(each) for each in batch]
    changed[argument][1] = [changed[0][1, ::-1], 0.41, 2][argument]
    before, after = model(*batch), model(*changed)
    assert np.abs(after - before)[1].max() > 1e-2
    np.testing.assert_allclose(np.delete(after, 1, 0), np.delete(before, 1, 0), **CLOSE)


def test_permuting_the_batch_permutes_the_predictions(model, batch):
    order = np.array([2, 0, 3, 1])
    np.testing.assert_allclose(model(*(each[order] for each in batch)), model(*batch)[order], **CLOSE)


def test_a_patch_is_told_where_it_is(model, batch):
    x, t, label = batch
    moved = np.roll(x, 2, axis=2)
    assert np.abs(model(moved, t, label) - np.roll(model(x, t, label), 2, axis=2)).max() > 1e-2


def test_every_pixel_is_seen_from_every_patch(model, batch):
    x, t, label = batch
    poked = x.copy()
    poked[:, 0, 0, 0] += 1
    far = (model(poked, t, label) - model(x, t, label))[:, -2:, -2:]
    assert np.abs(far).max(axis=(1, 2, 3)).min() > 1e-4


# Sizes


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [(4, 8), (6, 2), (2, 2), (5, 3)])
@pytest.mark.parametrize("classes", [0, 5])
def test_any_size_and_any_channel_count_give_their_own_shape(channels, size, classes):
    shape = (*size, channels)
    graphdef, state = abstract(shape=shape, classes=classes, depth=1)
    x, t, label = (jax.ShapeDtypeStruct(*spec) for spec in (((2, *shape), np.float32), ((2,), np.float32), ((2,), np.int32)))
    out = jax.eval_shape(
        lambda state, x, t, label: nnx.merge(graphdef, state)(x, t, cond={"label": label} if classes else {}), state, x, t, label
    )
    assert (out.pred.shape, out.pred.dtype) == ((2, *shape), np.float32)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(shape=(6, 3, 3), patch=4), "config.model.patch=4 is larger than a side of the images, which are 6x3"),
        (dict(heads=3), "config.model.heads=3 must divide config.model.width=16"),
        (dict(width=18, heads=6), "heads of an even size"),
        (dict(width=18, heads=1), "multiple of 4"),
        (dict(adaln="own"), "'block' or 'shared'"),
        (dict(shape=(16,)), "takes images"),
        (dict(shape=(2, 4, 6, 3)), "takes images"),
        *(({key: 0}, f"config.model.{key}=0 must be positive") for key in ("patch", "width", "depth", "heads", "mlp_multiple")),
        (dict(patch=-2), "must be positive"),
        (dict(mlp_ratio=-1.0), "must be positive"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_before_anything_is_computed(changes, said):
    with pytest.raises(UserError) as caught:
        abstract(**changes)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_second_time_is_a_fault_of_the_caller(fresh, batch):
    with pytest.raises(ValueError, match="takes no r"):
        fresh(batch[0], batch[1], batch[1])


# Parameters


def formula(D, depth, heads, F, P, classes, adaln, qk_norm):
    """Parameters of a model of width D, F hidden features and P values a patch."""

    def linear(inputs, outputs):
        return (inputs + 1) * outputs

    embedding = linear(P, D) + linear(256, D) + linear(D, D) + (classes * D + D + linear(D, D) if classes else 0)
    attention = 4 * linear(D, D) + (2 * D // heads if qk_norm else 0)
    modulation = linear(D, 6 * D) if adaln == "block" else 6 * D
    block = attention + 2 * linear(D, F) + linear(F, D) + modulation
    return embedding + depth * block + (0 if adaln == "block" else linear(D, 6 * D)) + linear(D, 2 * D) + linear(D, P)


@pytest.mark.parametrize("adaln", ["block", "shared"])
@pytest.mark.parametrize(
    ("changes", "F", "P"),
    [
        (dict(), 48, 12),
        (dict(classes=0, qk_norm=False, heads=4), 48, 12),
        (dict(shape=(8, 8, 1), patch=4, width=64, depth=5, mlp_multiple=64), 192, 16),
        (dict(mlp_ratio=1.0, classes=10), 16, 12),
    ],
)
def test_the_number_of_parameters_is_its_formula(adaln, changes, F, P):
    keys = SMALL | changes
    want = formula(keys["width"], keys["depth"], keys["heads"], F, P, keys["classes"], adaln, keys["qk_norm"])
    assert count(**changes, adaln=adaln) == want


def test_shared_modulation_costs_once_what_a_block_s_own_costs_every_time():
    def growth(adaln):
        return count(depth=5, adaln=adaln) - count(depth=4, adaln=adaln)

    assert growth("block") - growth("shared") == 16 * 96  # the kernel [D, 6 D]; both have the 6 D numbers of a bias or table


def test_the_variables_are_all_trained_parameters():
    graphdef, state = abstract()
    assert {type(leaf) for leaf in jax.tree.leaves(state, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))} == {nnx.Param}


# Arithmetic


def products(jaxpr):
    """Every matrix product of a jaxpr, those of the functions that it calls included."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("dot_general", "rounded_product"):
            yield equation
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda value: hasattr(value, "eqns") or hasattr(value, "jaxpr")
        ):
            if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                yield from products(getattr(inner, "jaxpr", inner))


@pytest.mark.parametrize(
    ("precision", "primitive"), [("float32", "dot_general"), ("bfloat16", "rounded_product"), ("bfloat16_activations", "rounded_product")]
)
def test_every_matrix_product_but_the_time_s_takes_the_chosen_precision_and_gives_float32(batch, precision, primitive):
    graphdef, state = abstract(precision=precision)
    x, t, label = batch
    jaxpr = jax.make_jaxpr(lambda state: nnx.merge(graphdef, state)(x, t, cond={"label": label}).pred)(state)
    found = list(products(jaxpr.jaxpr))
    # a block: q k v out, gate up down, modulation, scores, mixing; besides: patches, time twice, condition, final modulation, final
    assert len(found) == 2 * 10 + 6
    exact = [equation for equation in found if equation.primitive.name == "dot_general"]
    if primitive == "rounded_product":
        assert [equation.invars[1].aval.shape[0] for equation in exact] == [256, 16]  # sines and cosines, then the width
    else:
        assert exact == found
    assert {str(equation.outvars[0].aval.dtype) for equation in found} == {"float32"}
    assert {equation.params["precision"] for equation in exact} == {(jax.lax.Precision.HIGHEST,) * 2}


# Derivatives


@pytest.fixture(scope="module")
def directional():
    """In float64, at one point of (weights, image, time): f, its derivative along a direction both ways, and the direction's parts."""
    with jax.enable_x64(True):
        graphdef, state = abstract(depth=1, shape=(2, 4, 1), time_scale=1.0)
        rng = np.random.default_rng(3)
        x, label = rng.normal(size=(2, 2, 4, 1)), np.array([0, 2])
        point = (drawn(state, np.float64), x, np.array([0.25, 0.75]))
        out = rng.normal(size=x.shape)

        def f(point):
            state, x, t = point
            return nnx.merge(graphdef, state)(x, t, cond={"label": label}).pred

        def both(point, direction):
            forward = jnp.vdot(out, jax.jvp(f, (point,), (direction,))[1])
            gradient = jax.vjp(f, point)[1](out)[0]
            return forward, sum(jnp.vdot(*pair) for pair in zip(*map(jax.tree.leaves, (gradient, direction)), strict=True))

        value = jax.jit(lambda point: jnp.vdot(out, f(point)))
        zero = jax.tree.map(np.zeros_like, point)
        yield value, jax.jit(both), point, (drawn(state, np.float64), rng.normal(size=x.shape), np.ones(2)), zero


@pytest.mark.parametrize(
    ("part", "step", "tolerance"),
    [
        (0, 1e-5, 1e-7),  # the step's square, and the rounding 1e-16 over the step
        (1, 1e-5, 1e-7),
        (2, 2.0**-7, 1e-3),  # sines of t are float32, rounded by 6e-8: over a step of 1/128 that is 1e-5, and its square 6e-5
    ],
    ids=["weights", "image", "time"],
)
def test_forward_and_reverse_derivatives_agree_with_central_differences(directional, part, step, tolerance):
    value, both, point, directions, zero = directional
    with jax.enable_x64(True):
        direction = tuple(directions[i] if i == part else zero[i] for i in range(3))
        ahead, behind = (jax.tree.map(lambda p, d, s=sign: p + s * step * d, point, direction) for sign in (1, -1))
        difference = (value(ahead) - value(behind)) / (2 * step)
        forward, reverse = both(point, direction)
        assert abs(difference) > 1e-2
        np.testing.assert_allclose(forward, difference, rtol=tolerance)
        # both are linear maps of one function: float64's rounding, but for time, whose sines are float32
        np.testing.assert_allclose(reverse, forward, rtol=1e-6 if part == 2 else 1e-12)
