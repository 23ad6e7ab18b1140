import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussian_flow import KEY, SHAPE, M, S, column, denoiser, flow, gaussian_velocity

from tinygen.errors import UserError
from tinygen.nn.layers import Output


def nothing(x, t, cond):
    return jnp.zeros_like(x)


def run(batch, predict=nothing, *, key=0, train=True, **changes):
    """(loss, metrics, what the model was shown), compiled as one function."""
    shown = {}

    def model(x, t, r=None, cond=None, *, rngs=None):
        shown.update(x=x, t=t, cond=cond)
        out = predict(x, t, cond)
        return out if isinstance(out, Output) else Output(out)

    def whole(batch, key):
        return *flow(**changes).loss(model, batch, key, train=train), shown

    return jax.device_get(jax.jit(whole)(batch, KEY(key)))


def values(pair):
    return tuple(float(each) for each in pair)


# On data N(m, s²) the best velocity is known in closed form, and so is what it cannot know


def gaussian_floor(t):
    """Var(v | z_t), a number."""
    return S**2 / ((1 - t) ** 2 * S**2 + t**2)


def over_t(f, mean, std):
    """E f(sigmoid(mean + std n)), n ~ N(0, 1), by Gauss-Hermite quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    return np.sum(weights * f(1 / (1 + np.exp(-(mean + std * nodes))))) / np.sqrt(2 * np.pi)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (-0.8, 0.6)])
def test_the_exact_velocity_s_loss_is_the_known_floor(mean, std):
    num = 20_000
    x = np.random.default_rng(0).normal(M, S, (num, *SHAPE)).astype(np.float32)
    loss = run({"x": x}, gaussian_velocity, t_mean=mean, t_std=std)[0]
    floor = over_t(gaussian_floor, mean, std)
    # an example's error, given t, is the floor times a mean of 4 squared normals: variance 2/4
    variance = over_t(lambda t: gaussian_floor(t) ** 2 * (1 + 2 / 4), mean, std) - floor**2
    assert float(loss) == pytest.approx(floor, abs=3 * np.sqrt(variance / num))
    off = run({"x": x}, lambda x, t, cond: gaussian_velocity(x, t) + 0.1, t_mean=mean, t_std=std)[0]
    # 0.1² + 2 · 0.1 · the mean residual, which is zero within √(floor / numbers)
    assert float(off - loss) == pytest.approx(0.01, abs=3 * 0.2 * np.sqrt(floor / x.size))


def test_a_model_that_says_nothing_pays_the_mean_square_of_noise_minus_data():
    x = np.random.default_rng(0).uniform(-1, 1, (5_000, *SHAPE)).astype(np.float32)
    loss, metrics, _ = run({"x": x})
    # (ε - x)² has mean 1 + x² and variance 2 + 4 x²
    square = float(np.mean(x**2))
    assert float(loss) == pytest.approx(1 + square, abs=3 * np.sqrt((2 + 4 * square) / x.size))
    assert values(metrics["raw_loss"]) == values(metrics["loss"])
    assert float(loss) == pytest.approx(values(metrics["loss"])[0] / 5_000, rel=1e-6)


# What the model is shown


@pytest.fixture(scope="module")
def shown():
    """(x, label, what a model is shown of these 8,000 examples in training)"""
    num, draw = 8_000, np.random.default_rng(0)
    batch = {"x": draw.normal(size=(num, *SHAPE)).astype(np.float32), "label": draw.integers(0, 9, num).astype(np.int32)}
    return batch["x"], batch["label"], run(batch, key=3, cond_drop=0.25, t_mean=0.5, t_std=0.8)[2]


def noise_of(x, shown):
    t = column(np.asarray(shown["t"], np.float64))
    return (shown["x"] - (1 - t) * x) / t


def test_time_is_logit_normal_and_noise_standard_normal(shown):
    x, _, seen = shown
    logit, noise = np.log(seen["t"] / (1 - seen["t"])), noise_of(x, seen)
    num = len(x)
    assert logit.mean() == pytest.approx(0.5, abs=3 * 0.8 / np.sqrt(num))
    assert logit.std() == pytest.approx(0.8, abs=3 * 0.8 / np.sqrt(2 * num))
    assert noise.mean() == pytest.approx(0, abs=3 / np.sqrt(noise.size))
    assert noise.std() == pytest.approx(1, abs=3 / np.sqrt(2 * noise.size))
    # the fourth moment tells it from a uniform law (1.8): normal 3, its error √(96 / n)
    assert np.mean(noise**4) == pytest.approx(3, abs=3 * np.sqrt(96 / noise.size))


def test_time_noise_and_dropping_are_drawn_apart(shown):
    x, _, seen = shown
    logit, noise = np.log(seen["t"] / (1 - seen["t"])), noise_of(x, seen).reshape(len(x), -1)
    columns = np.stack([logit, np.asarray(seen["cond"]["keep"], np.float64), *noise.T])
    off = np.corrcoef(columns) - np.eye(len(columns))
    assert np.abs(off).max() < 4 / np.sqrt(len(x))  # 15 pairs: the largest of them stays below 4 standard errors


def test_in_training_the_condition_is_dropped_at_its_rate_and_the_label_left_as_it_is(shown):
    _, label, seen = shown
    keep = seen["cond"]["keep"]
    assert keep.dtype == bool
    assert (~keep).mean() == pytest.approx(0.25, abs=3 * np.sqrt(0.25 * 0.75 / len(label)))
    np.testing.assert_array_equal(seen["cond"]["label"], label)


def test_in_evaluation_no_condition_is_dropped():
    batch = {"x": np.zeros((500, *SHAPE)), "label": np.zeros(500, np.int32)}
    assert run(batch, train=False, cond_drop=0.9)[2]["cond"]["keep"].all()


def test_without_a_condition_the_model_is_given_none():
    assert run({"x": np.zeros((3, *SHAPE)), "weight": np.ones(3)})[2]["cond"] == {}


def test_another_key_shows_another_noise_and_time_and_the_same_key_the_same():
    x = np.zeros((6, *SHAPE), np.float32)
    first, again, other = (run({"x": x}, key=key)[2] for key in (0, 0, 1))
    np.testing.assert_array_equal(first["x"], again["x"])
    np.testing.assert_array_equal(first["t"], again["t"])
    for a, b in ((first["t"], other["t"]), (noise_of(x, first), noise_of(x, other))):
        drawn = np.concatenate([a.ravel(), b.ravel()]).round(4)  # noise is recovered to about 1e-6; few of 48 draws come this close
        assert len(np.unique(drawn)) > 0.9 * drawn.size


# What counts


@pytest.fixture(scope="module")
def weighed():
    """(x, weight) -> (loss, metrics, the loss's gradient by x) of a model that predicts 0.3 z, compiled once."""
    objective, model = flow(), denoiser(lambda x, t, cond: 0.3 * x)

    def loss(x, weight):
        return objective.loss(model, {"x": x, "weight": weight}, KEY(0), train=True)

    def whole(x, weight):
        (value, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(x, weight)
        return value, metrics, gradient

    compiled = jax.jit(whole)
    return lambda x, weight: jax.device_get(compiled(x, np.asarray(weight, np.float32)))


X = np.random.default_rng(0).normal(size=(6, *SHAPE)).astype(np.float32)


def test_an_example_of_weight_zero_has_no_influence(weighed):
    weight = np.array([1, 1, 0, 1, 0, 1])
    loss, metrics, gradient = weighed(X, weight)
    other_loss, other_metrics, _ = weighed(np.where(weight[:, None, None, None] == 1, X, 1e3 * X + 7), weight)
    assert loss == other_loss
    assert jax.tree.map(float, metrics) == jax.tree.map(float, other_metrics)
    assert float(metrics["loss"][1]) == 4.0
    np.testing.assert_array_equal(np.abs(gradient).max(axis=(1, 2, 3)) > 0, weight == 1)


def test_the_loss_is_the_weighted_mean_over_examples(weighed):
    weight = np.array([1, 0, 0.5, 2, 1, 0])
    each = [float(weighed(X, row)[0]) for row in np.eye(6)]
    assert float(weighed(X, weight)[0]) == pytest.approx(np.dot(weight, each) / weight.sum(), rel=1e-6)
    assert float(weighed(X, 0 * weight)[0]) == 0.0  # a batch of nothing but padding


def test_what_the_model_did_not_predict_is_not_learned_from():
    kept = np.array([[[1, 0], [0, 1]], [[0, 0], [1, 0]], [[1, 1], [1, 1]]], np.float32)[..., None]

    def loss(pred, weight):
        return flow().loss(lambda x, t, cond=None, rngs=None: Output(pred, weight=weight), {"x": X[:3]}, KEY(0), train=True)[0]

    learn = jax.jit(jax.value_and_grad(loss))
    zeros, junk = np.zeros_like(X[:3]), np.where(kept == 1, 0, 1e3).astype(np.float32)
    value, gradient = learn(zeros, kept)
    np.testing.assert_array_equal(gradient != 0, kept == 1)  # exactly zero where nothing was predicted
    assert learn(junk, kept)[0] == value
    # d/dp of a mean over all values, of which those without a prediction add nothing: however few there are, each counts as much
    whole = learn(zeros, None)[1]
    np.testing.assert_allclose(gradient, whole * kept, rtol=1e-5)


def test_the_bins_of_t_hold_their_own_quarter_and_sum_to_the_whole():
    x = np.random.default_rng(0).normal(size=(50, *SHAPE)).astype(np.float32)
    weight = np.resize(np.array([1, 0, 2], np.float32), 50)
    _, metrics, seen = run({"x": x, "weight": weight}, t_std=1.5)
    error = np.mean((noise_of(x, seen) - x) ** 2, axis=(1, 2, 3))
    quarter = np.floor(4 * seen["t"])
    assert set(quarter) == {0, 1, 2, 3}
    for index in range(4):
        inside = weight * (quarter == index)
        # recovering the noise divides float32's rounding by t, here 0.02 at least
        assert values(metrics[f"raw_loss_t{index}"]) == pytest.approx((np.dot(inside, error), inside.sum()), rel=1e-4)
    totals = np.sum([values(metrics[f"raw_loss_t{index}"]) for index in range(4)], axis=0)
    assert tuple(totals) == pytest.approx(values(metrics["raw_loss"]), rel=1e-6)


def test_the_model_s_own_statistics_join_the_metrics():
    _, metrics, _ = run({"x": np.zeros((2, *SHAPE))}, lambda x, t, cond: Output(x, stats={"experts_used": jnp.float32(5)}))
    assert float(metrics["experts_used"]) == 5.0


# Mistakes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(cond_drop=1.0), "cond_drop"),
        (dict(cond_drop=-0.1), "cond_drop"),
        (dict(t_std=0.0), "t_std"),
        (dict(sampler="hen"), "did you mean 'heun'"),
        (dict(guidance_interval=(0.8, 0.2)), "guidance_interval"),
        (dict(guidance_interval=(0.0, 1.5)), "guidance_interval"),
        (dict(guidance_interval=(0.5,)), "guidance_interval"),
        (dict(guidance=2.0, cond_drop=0.0), "cond_drop > 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, said):
    with pytest.raises(UserError, match=said) as caught:
        flow(**changes)
    assert "\n" not in str(caught.value)
