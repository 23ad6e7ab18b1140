import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from tinygen.distributed.mesh import Layout, make_mesh
from tinygen.errors import UserError
from tinygen.models.mlp import MLP
from tinygen.nn.layers import drop
from tinygen.nn.names import path_name
from tinygen.train_step import graph_of, merge, split

MESHES = [(8, 1, 1), (1, 8, 1), (1, 1, 8), (2, 2, 2)]
SETTINGS = dict(shape=(1,), target_shape=(1,), hidden=64, depth=2, dropout=0.25, precision="float32")
X = np.linspace(-3, 3, 16, dtype=np.float32)[:, None]


def create(rngs=None, **changes):
    return MLP(**(SETTINGS | changes), rngs=rngs or nnx.Rngs(0))


def rngs(seed=0):
    return nnx.Rngs(dropout=jax.random.key(seed))


def layout_of(data, fsdp, tensor):
    mesh = make_mesh(dict(data=data, fsdp=fsdp, tensor=tensor), jax.devices()[: data * fsdp * tensor])
    return Layout(mesh, MLP.SHARDING, min_size=64 * 64)


# The function


def test_it_is_linear_layers_with_silu_between():
    model = create(depth=3)
    h = X.astype(np.float64)
    for layer in [*model.hidden, model.out]:
        h = h @ np.asarray(layer.kernel[...], np.float64) + np.asarray(layer.bias[...], np.float64)
        h = h if layer is model.out else h / (1 + np.exp(-h))
    np.testing.assert_allclose(model(X), h, rtol=1e-5, atol=1e-6)
    assert [layer.kernel.shape for layer in [*model.hidden, model.out]] == [(1, 64), (64, 64), (64, 64), (64, 1)]


def test_examples_and_targets_may_have_any_shape():
    assert create(shape=(2, 3), target_shape=(5, 1))(jnp.zeros((7, 2, 3))).shape == (7, 5, 1)


@pytest.mark.parametrize(("key", "value"), [("hidden", 0), ("depth", 0), ("dropout", 1.0), ("dropout", -0.1)])
def test_a_keyword_out_of_range_is_refused_by_name(key, value):
    with pytest.raises(UserError, match=f"config.model.{key}={value} must"):
        create(**{key: value})


# Dropout


def test_nothing_is_dropped_without_random_streams_or_at_rate_zero():
    model = create()
    np.testing.assert_array_equal(model(X), create(dropout=0.0)(X, rngs=rngs()))
    assert (model(X) != model(X, rngs=rngs())).all()


def test_the_same_key_drops_the_same_and_another_key_others():
    model = create()
    np.testing.assert_array_equal(model(X, rngs=rngs(1)), model(X, rngs=rngs(1)))
    assert (model(X, rngs=rngs(1)) != model(X, rngs=rngs(2))).all()


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_elements_are_dropped_at_their_rate_each_by_itself_and_the_mean_is_kept(rate):
    shape = (500, 400)
    x = np.asarray(drop(jnp.full(shape, 3.0), rate, jax.random.key(0)))
    np.testing.assert_allclose(np.unique(x), [0, 3 / (1 - rate)], rtol=1e-6)
    dropped = x == 0
    error = np.sqrt(rate * (1 - rate) / x.size)
    assert dropped.mean() == pytest.approx(rate, abs=3 * error)
    assert x.mean() == pytest.approx(3, abs=3 * 3 * error / (1 - rate))
    for a, b in ((dropped[1:], dropped[:-1]), (dropped[:, 1:], dropped[:, :-1])):  # neighbours
        assert np.corrcoef(a.ravel(), b.ravel())[0, 1] == pytest.approx(0, abs=3 / np.sqrt(a.size))


def test_both_hidden_layers_have_masks_of_their_own():
    """Through layers that pass their inputs on, what comes out is dropped by both masks: a share 1 - 0.75² of the features."""
    model = create(hidden=100, target_shape=(100,))
    for layer in (model.hidden[1], model.out):
        layer.kernel[...] = jnp.eye(100)
    model.hidden[0].kernel[...], model.hidden[0].bias[...] = jnp.zeros((1, 100)), jnp.ones(100)
    dropped = np.asarray(model(X, rngs=rngs())) == 0
    assert dropped.mean() == pytest.approx(1 - 0.75**2, abs=3 * np.sqrt(0.25 / dropped.size))


@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_the_mask_is_the_same_bits_on_every_mesh(sizes):
    alone = jax.jit(lambda x: drop(x, 0.25, jax.random.key(0)))(jnp.ones((16, 64)))
    layout = layout_of(*sizes)
    with jax.set_mesh(layout.mesh):
        place = jax.NamedSharding(layout.mesh, P(("data", "fsdp"), "tensor"))
        spread = jax.jit(lambda x: drop(x, 0.25, jax.random.key(0)), out_shardings=place)(jax.device_put(jnp.ones((16, 64)), place))
    assert len(spread.addressable_shards) == 8
    assert spread.addressable_shards[0].data.size == 16 * 64 / 8
    np.testing.assert_array_equal(spread, alone)


# Its place on a mesh


def placed(layout):
    """A model's (graph, weights) on a mesh."""
    params = split(create())[1]
    return graph_of(create), jax.device_put(params, layout.shardings(params))


def forward(layout, graph, params):
    """Predictions with dropout, compiled for this mesh."""
    compiled = jax.jit(lambda params, x: merge(graph, params, {})(x, rngs=rngs()))
    with jax.set_mesh(layout.mesh):
        return compiled.lower(params, layout.share({"x": X})["x"]).compile()


@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_predictions_with_dropout_hardly_depend_on_the_mesh(sizes):
    layout, one = layout_of(*sizes), layout_of(1, 1, 1)
    (graph, params), (_, alone) = placed(layout), placed(one)
    spread = forward(layout, graph, params)(params, layout.share({"x": X})["x"])
    # sums of 64 float32 numbers in another order
    np.testing.assert_allclose(spread, forward(one, graph, alone)(alone, one.share({"x": X})["x"]), rtol=1e-5, atol=1e-6)


def test_a_pair_of_layers_is_split_by_columns_and_then_by_rows_and_takes_one_sum():
    layout = layout_of(1, 1, 8)
    graph, params = placed(layout)
    specs = {path_name(path): leaf.sharding.spec for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    assert {name: spec for name, spec in specs.items() if "tensor" in spec} == {
        "hidden/0/kernel": P(None, "tensor"),
        "hidden/0/bias": P("tensor"),
        "hidden/1/kernel": P("tensor", None),
    }
    program = forward(layout, graph, params).as_text()
    assert program.count(" all-reduce(") == 1
    assert not [name for name in ("all-gather", "all-to-all", "collective-permute") if f" {name}(" in program]


def test_fsdp_splits_the_large_kernel_and_leaves_the_vectors_whole():
    params = placed(layout_of(1, 8, 1))[1]
    split_ones = {path_name(path) for path, leaf in jax.tree_util.tree_leaves_with_path(params) if not leaf.sharding.is_fully_replicated}
    assert split_ones == {"hidden/1/kernel"}
