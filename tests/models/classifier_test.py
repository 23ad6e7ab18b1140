import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tinygen.distributed.mesh import Layout, make_mesh
from tinygen.errors import UserError
from tinygen.models.classifier import Classifier
from tinygen.train_step import graph_of, merge, split

SETTINGS = dict(shape=(8, 8, 1), classes=5, width=8, stages=2, depth=1, groups=4, dropout=0.5, precision="float32")
X = np.random.default_rng(0).uniform(-1, 1, (8, 8, 8, 1)).astype(np.float32)


def create(rngs=None, **changes):
    return Classifier(**(SETTINGS | changes), rngs=rngs or nnx.Rngs(0))


@pytest.mark.parametrize(
    ("shape", "stages", "features"), [((8, 8, 1), 2, 16), ((28, 28, 1), 3, 32), ((5, 9, 3), 1, 8), ((64, 64, 3), 4, 64)]
)
def test_images_of_any_size_and_channels_get_features_and_logits(shape, stages, features):
    model = create(shape=shape, stages=stages)
    x = np.zeros((3, *shape), np.float32)
    assert model.features(x).shape == (3, features)
    assert model(x).shape == (3, 5)


def test_logits_are_one_layer_above_the_features():
    model = create()
    np.testing.assert_array_equal(model(X), model.logits(model.features(X)))
    h = np.asarray(model.features(X), np.float64)
    np.testing.assert_allclose(model(X), h @ np.asarray(model.out.kernel[...]) + np.asarray(model.out.bias[...]), rtol=1e-4, atol=1e-5)


def test_an_image_s_logits_do_not_depend_on_the_batch():
    model = create()
    np.testing.assert_allclose(model(X)[:1], model(X[:1]), rtol=1e-5, atol=1e-6)


def test_features_are_dropped_in_training_only():
    model = create()
    one, other = (model(X, rngs=nnx.Rngs(dropout=jax.random.key(seed))) for seed in (1, 2))
    assert not np.array_equal(one, other)
    np.testing.assert_array_equal(model(X), create(dropout=0.0)(X, rngs=nnx.Rngs(dropout=jax.random.key(1))))


def test_more_blocks_a_stage_keep_its_size():
    model = create(depth=3)
    assert [block.skip is None for block in model.blocks] == [False, True, True] * 2
    assert model.features(X).shape == (8, 16)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(width=0), "config.model.width=0"),
        (dict(depth=0), "config.model.depth=0"),
        (dict(dropout=1.0), "config.model.dropout=1.0"),
        (dict(stages=5), "config.model.stages=5"),
        (dict(groups=3), "config.model.groups=3"),
        (dict(shape=(1,)), "reads images"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes, said):
    with pytest.raises(UserError, match=said):
        create(**changes)


# Where data, fsdp and tensor all split something, XLA's partitioner gets convolutions of split features wrong.
RULES = ((r"first/kernel$", (None, None, None, "tensor")), (r"second/kernel$", (None, None, "tensor")))


@pytest.mark.parametrize("rules", [(), RULES], ids=["own", "given"])
@pytest.mark.parametrize("sizes", [(1, 8, 1), (2, 2, 2)], ids=str)
def test_gradients_hardly_depend_on_the_mesh_or_on_how_it_splits_the_kernels(sizes, rules):
    layout = Layout(make_mesh(dict(zip(("data", "fsdp", "tensor"), sizes, strict=True))), (*rules, *Classifier.SHARDING), min_size=64)
    graph, params = graph_of(create), split(create())[1]
    placed = jax.device_put(params, layout.shardings(params))
    assert not placed["blocks"]["0"]["second"]["kernel"].sharding.is_fully_replicated

    def value(params, x):
        return jnp.mean(jnp.square(merge(graph, params, {})(x)))

    with jax.set_mesh(layout.mesh):
        spread = jax.jit(jax.grad(value))(placed, layout.share({"x": X})["x"])
    alone = jax.jit(jax.grad(value))(params, X)
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(alone))
    for ours, one in zip(jax.tree.leaves(spread), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(ours, one, rtol=1e-4, atol=1e-5 * largest)  # sums in another order
