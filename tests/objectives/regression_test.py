import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.test_util import check_grads

from tinygen import build, train
from tinygen import config as config_lib
from tinygen.errors import UserError
from tinygen.media import Curve
from tinygen.models.mlp import MLP
from tinygen.objectives.regression import Regression
from tinygen.sampling import preview
from tinygen.train_step import graph_of, init_state, merge, split

KEY = jax.random.key
NUM = 6
DRAW = np.random.default_rng(0)
BATCH = {"x": DRAW.normal(size=(NUM, 1)).astype(np.float32), "y": DRAW.normal(size=(NUM, 2)).astype(np.float32)}


def regression(**changes):
    return Regression(**(dict(shape=(1,), target_shape=(1,), target_noise=0.0) | changes))


def double(x, *, rngs=None):
    return jnp.concatenate([2 * x, -x], -1)


def perceptron(dropout=0.25):
    return MLP(shape=(1,), target_shape=(2,), hidden=8, depth=2, dropout=dropout, precision="float32", rngs=nnx.Rngs(0))


def loss_of(batch, model=double, *, key=0, train=True, **changes):
    return regression(**changes).loss(model, batch, KEY(key), train=train)


# The loss


@pytest.mark.parametrize("train", [True, False])
def test_the_loss_is_the_mean_squared_error(train):
    want = np.mean((np.concatenate([2 * BATCH["x"], -BATCH["x"]], -1) - BATCH["y"]) ** 2)
    loss, metrics = loss_of(BATCH, train=train)
    assert float(loss) == pytest.approx(want, rel=1e-6)
    for name in ("loss", "raw_loss"):
        assert tuple(map(float, metrics[name])) == pytest.approx((NUM * want, NUM), rel=1e-6)


def test_only_valid_examples_count():
    weight = np.array([1, 0, 2, 0, 1, 0], np.float32)
    each = [float(loss_of({key: value[i : i + 1] for key, value in BATCH.items()})[0]) for i in range(NUM)]
    assert float(loss_of({**BATCH, "weight": weight})[0]) == pytest.approx(np.dot(weight, each) / weight.sum(), rel=1e-6)
    assert float(loss_of({**BATCH, "weight": 0 * weight})[0]) == 0.0  # a batch of nothing but padding


def test_the_gradient_is_that_of_finite_differences_with_dropout_and_noise():
    _, params, buffers = split(perceptron())
    graph = graph_of(lambda rngs: perceptron())
    objective = regression(target_noise=0.5)
    value = jax.jit(lambda params: objective.loss(merge(graph, params, buffers), BATCH, KEY(3), train=True)[0])
    # float32: a step of 1e-2 leaves about 1e-4 of rounding and as much of curvature
    check_grads(value, (params,), order=1, modes=("rev",), eps=1e-2, atol=2e-3, rtol=2e-3)


# What is random


def test_noise_is_gaussian_of_its_size_on_the_targets_in_training_only():
    num, sigma = 50_000, 0.5
    batch = {"x": np.zeros((num, 1), np.float32), "y": np.zeros((num, 1), np.float32)}

    def moment(power, **keywords):
        """The mean of the targets' deviation from zero to this power: models that predict -1, 0 and 1 tell it by their losses."""
        low, middle, high = (
            float(loss_of(batch, lambda x, *, rngs=None, at=at: x + at, target_noise=sigma, **keywords)[0]) for at in (-1, 0, 1)
        )
        return (low - high) / 4 if power == 1 else middle

    assert moment(1) == pytest.approx(0, abs=3 * sigma / np.sqrt(num))
    assert moment(2) == pytest.approx(sigma**2, abs=3 * sigma**2 * np.sqrt(2 / num))
    assert moment(2, train=False) == 0.0


def test_noise_comes_from_the_step_s_key_alone():
    first, again, other = (float(loss_of(BATCH, key=key, target_noise=1.0)[0]) for key in (0, 0, 1))
    assert first == again != other


def test_the_model_is_given_streams_in_training_only_and_other_ones_each_step():
    given = []

    def model(x, *, rngs=None):
        given.append(rngs and jax.random.key_data(rngs.dropout()).tolist())
        return double(x)

    for key, training in ((0, True), (0, True), (1, True), (0, False)):
        loss_of(BATCH, model, key=key, train=training)
    assert given[0] == given[1] != given[2]
    assert given[3] is None


@pytest.mark.parametrize("noise", [-0.1, float("inf"), float("nan")])
def test_noise_that_is_no_deviation_is_refused(noise):
    with pytest.raises(UserError, match=r"config\.objective\.target_noise"):
        regression(target_noise=noise)


# What is shown


def test_the_plot_shows_truth_raw_and_averaged_weights_from_left_to_right():
    batch = {"x": np.array([[2.0], [-1.0], [0.0]], np.float32), "y": np.array([[4.0], [1.0], [0.0]], np.float32)}
    (shown,) = regression().preview(lambda x: 10 * x, lambda x: -x, batch, KEY(0)).values()
    assert shown.medium == Curve(curves=("truth", "raw weights", "averaged weights"))
    np.testing.assert_array_equal(shown.value, [[-1, 1, -10, 1], [0, 0, 0, 0], [2, 4, 20, -2]])


def test_what_is_no_curve_is_not_plotted():
    assert regression(target_shape=(2,)).preview(double, double, BATCH, KEY(0)) == {}


# In a run


def sine(**changes):
    """The smallest run of a perceptron on the sine, dropout and noise on."""
    config = config_lib.base(
        data=dict(name="sine"),
        batch_size=16,
        model=dict(name="mlp", hidden=32),
        objective=dict(name="regression", target_noise=0.1),
        optim=dict(lr=3e-3, schedule="constant"),
        ema=dict(decay=0.9),
        mesh=dict(data=1, fsdp=-1),
        sharding=dict(min_size=2**10),
        train=dict(steps=6, log_every=1, eval_every=6, preview_every=0, preview_num=32, checkpoint_every=0),
    )
    return config_lib.change(config, changes)


def test_a_preview_is_drawn_with_the_raw_and_the_averaged_weights():
    config = sine()
    source = build.data_source(config)
    parts = build.parts(config, source.codec)
    with jax.set_mesh(parts.layout.mesh):
        state = init_state(parts.create, build.optimizer(config)[0], config.seed)
        state = state._replace(ema=jax.tree.map(lambda leaf: 0.5 * leaf, state.params))
        points = preview.make_preview(config, source, parts)(state)["curve"].items
    x, truth, *predictions = points.T
    np.testing.assert_allclose(truth, np.sin(x), atol=1e-6)
    for predicted, weights in zip(predictions, (state.params, state.ema), strict=True):
        np.testing.assert_allclose(predicted, merge(parts.graphdef, weights, {})(x[:, None])[:, 0], rtol=1e-4, atol=1e-6)
    assert np.ptp(predictions[0]) > 1.5 * np.ptp(predictions[1])


@pytest.mark.parametrize("mesh", [dict(data=8, fsdp=1), dict(fsdp=8), dict(fsdp=1, tensor=8)], ids=str)
def test_noise_and_dropout_do_not_depend_on_the_devices(mesh, machine_of):
    def loss(mesh):
        config = sine(mesh=mesh)
        source = build.data_source(config)
        parts = build.parts(config, source.codec)
        graph = parts.graphdef
        with jax.set_mesh(parts.layout.mesh):
            params = split(parts.create(nnx.Rngs(0)))[1]
            batch = parts.layout.share(next(source.batches("train", config.batch_size, config.seed)))
            value = jax.jit(lambda params: parts.objective.loss(merge(graph, params, {}), batch, KEY(1), train=True)[0])
            return float(value(jax.device_put(params, parts.layout.shardings(params))))

    spread = loss(mesh)
    machine_of(1)
    assert spread == pytest.approx(loss(dict(fsdp=1)), rel=1e-6)  # other noise or masks move the loss of 16 examples by per cents


def test_a_small_perceptron_learns_the_sine(tmp_path, machine_of, metrics_of):
    machine_of(1)
    train.main(sine(batch_size=64, train=dict(steps=300, log_every=300, eval_every=300)), str(tmp_path / "run"))
    first, last = metrics_of(tmp_path / "run")
    assert first["loss"] > 0.4  # a sine's mean square is 0.5
    assert last["eval_ema_loss"] < 0.05


def test_data_without_a_target_are_refused():
    config = sine(data=dict(name="digits8"))
    with pytest.raises(UserError, match="objective 'regression' needs target_shape, which data set 'digits8' does not have"):
        build.parts(config, build.data_source(config).codec)
