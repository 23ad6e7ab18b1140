"""The autoencoder's loss, a run of it, and that run as an autoencoder."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.test_util import check_grads
from sampling import sampled
from scipy import integrate, stats

from tinygen import build, train
from tinygen import config as config_lib
from tinygen.checkpoints import store
from tinygen.checkpoints.weights import load
from tinygen.errors import UserError
from tinygen.media import Image
from tinygen.objectives.autoencoder import Reconstruction, divergence
from tinygen.objectives.image_quality import psnr
from tinygen.pretrained import autoencoder
from tinygen.train_step import merge

DRAW = np.random.default_rng(0)
NUM = 5
X = DRAW.uniform(-1, 1, (NUM, 4, 4, 1)).astype(np.float32)
MEAN, DEVIATION = DRAW.normal(size=(NUM, 2, 2, 3)).astype(np.float32), DRAW.uniform(0.2, 2, (NUM, 2, 2, 3)).astype(np.float32)


def model(x, *, rngs=None):
    """Images at 0.8 of their contrast, and with a stream noise of 0.1; latents as they stand above, by the example's first pixel."""
    row = jnp.argmin(jnp.abs(x[:, :1, 0, 0] - X[None, :, 0, 0, 0]), -1)
    noise = 0.0 if rngs is None else 0.1 * jax.random.normal(rngs.posterior(), x.shape)
    return 0.8 * x + noise, jnp.asarray(MEAN)[row], jnp.asarray(DEVIATION)[row]


def metrics_of(batch, kl_weight=0.0, key=0, train=True):
    loss, metrics = Reconstruction(kl_weight=kl_weight).loss(model, batch, jax.random.key(key), train=train)
    return float(loss), {name: tuple(map(float, pair)) for name, pair in metrics.items()}


# The loss


def test_the_divergence_is_the_integral_that_it_stands_for():
    def integrand(z, mean, deviation):
        p, q = stats.norm(mean, deviation), stats.norm()
        return p.pdf(z) * (p.logpdf(z) - q.logpdf(z))

    want = sum(
        integrate.quad(integrand, -20, 20, args=each, limit=200)[0] for each in zip(MEAN[0].ravel(), DEVIATION[0].ravel(), strict=True)
    )
    assert float(divergence(MEAN, DEVIATION)[0]) == pytest.approx(want, rel=1e-5)
    np.testing.assert_array_equal(divergence(np.zeros((2, 3)), np.ones((2, 3))), 0)


def test_the_divergence_s_gradient_is_that_of_finite_differences_and_zero_at_the_standard_normal():
    check_grads(lambda *args: divergence(*args).sum(), (MEAN, DEVIATION), order=1, modes=("rev",), atol=1e-2, rtol=1e-2)
    for g in jax.grad(lambda *args: divergence(*args).sum(), (0, 1))(np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32)):
        np.testing.assert_allclose(g, 0, atol=1e-6)


def test_the_loss_is_the_absolute_error_and_the_weighted_divergence():
    loss, metrics = metrics_of({"x": X}, kl_weight=1e-2)
    decoded = np.asarray(0.8 * X + 0.1 * jax.random.normal(nnx.Rngs(posterior=jax.random.key(0)).posterior(), X.shape))
    error, kl = np.abs(decoded - X).mean(), np.asarray(divergence(MEAN, DEVIATION)).mean()
    assert metrics["raw_loss"] == pytest.approx((NUM * error, NUM), rel=1e-5)
    assert metrics["kl"] == pytest.approx((NUM * kl, NUM), rel=1e-5)
    assert loss == pytest.approx(error + 1e-2 * kl, rel=1e-5)
    assert metrics["psnr"] == pytest.approx((np.asarray(psnr(decoded, X)).sum(), NUM), rel=1e-5)


def test_latents_are_drawn_by_the_step_s_key_in_training_and_in_evaluation():
    assert metrics_of({"x": X}, key=0) == metrics_of({"x": X}, key=0) == metrics_of({"x": X}, key=0, train=False)
    assert metrics_of({"x": X}, key=0)[0] != metrics_of({"x": X}, key=1)[0]


def test_only_valid_examples_count():
    weight = np.array([1, 0, 0, 1, 1], np.float32)
    loss, metrics = metrics_of({"x": X, "weight": weight}, kl_weight=1e-2)
    assert metrics["kl"] == pytest.approx((np.asarray(divergence(MEAN, DEVIATION))[weight > 0].sum(), 3), rel=1e-5)
    assert loss == pytest.approx(metrics["loss"][0] / 3)
    assert metrics_of({"x": X, "weight": 0 * weight})[0] == 0.0


@pytest.mark.parametrize("weight", [-1.0, float("inf"), float("nan")])
def test_a_weight_that_is_none_is_refused(weight):
    with pytest.raises(UserError, match=r"config\.objective\.kl_weight"):
        Reconstruction(kl_weight=weight)


def test_reconstructions_of_the_mean_stand_beside_their_originals():
    (shown,) = Reconstruction(kl_weight=0.0).preview(model, model, {"x": X}, jax.random.key(0)).values()
    assert (shown.medium, shown.value.shape) == (Image(), (NUM, 4, 8, 1))
    np.testing.assert_array_equal(shown.value[:, :, :4], X)
    np.testing.assert_allclose(shown.value[:, :, 4:], 0.8 * X, rtol=1e-6)
    assert Reconstruction(kl_weight=0.0).preview(model, model, {"x": np.zeros((1, 4, 4, 2))}, jax.random.key(0)) == {}


# A run


def run(**changes):
    config = config_lib.base(
        data=dict(name="digits8"),
        batch_size=32,
        model=dict(name="autoencoder", widths=(8, 16), groups=4, latent=2),
        objective=dict(name="autoencoder"),
        optim=dict(lr=4e-3, warmup=10),
        ema=dict(decay=0.9),
        precision="float32",
        train=dict(steps=60, log_every=60, eval_every=60, preview_every=60, preview_num=8, checkpoint_every=0),
    )
    return config_lib.change(config, changes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "my_latents"
    assert train.main(run(), str(workdir)) == 0
    return workdir


@pytest.mark.slow
def test_a_small_network_learns_to_give_digits_back(trained, metrics_of):
    first, last = metrics_of(trained)
    assert last["eval_ema_raw_loss"] < 0.5 * first["raw_loss"]
    assert last["eval_ema_psnr"] > first["psnr"] + 3
    assert (trained / "samples" / "000060-reconstructions.png").exists()


@pytest.mark.slow
def test_a_run_is_an_autoencoder_of_its_averaged_weights(trained):
    ours = autoencoder.load(str(trained), "--vae")
    assert (ours.name, ours.factor, ours.channels, ours.image_channels) == ("my_latents", 2, 2, 1)
    saved = store.find(trained)
    parts = build.parts(saved.config, saved.codec)
    model = merge(parts.graphdef, *load(saved, parts, ema=True))
    x = next(build.data_source(saved.config).epoch("validation", 4))["x"]
    for got, want in zip(jax.jit(ours.encode)(ours.variables, x), model.encode(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    z = ours.encode(ours.variables, x)[0]
    np.testing.assert_allclose(jax.jit(ours.decode)(ours.variables, z), model.decode(z), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_its_sum_is_that_of_its_weights(trained):
    ours, again = (autoencoder.load(str(place), "--vae") for place in (trained, trained / "checkpoints" / "60"))
    assert len(ours.sha256) == 64
    assert ours.sha256 == again.sha256


def test_a_run_of_another_objective_is_refused(classifier, tmp_path):
    with pytest.raises(UserError, match=r"--vae=.*objective 'classification' has no latents\.\n.*--config=autoencoder_avatars"):
        autoencoder.load(str(classifier), "--vae")
    with pytest.raises(UserError, match=r"--vae=.*no checkpoint there"):
        autoencoder.load(str(tmp_path), "--vae")


@pytest.mark.slow
def test_a_run_draws_no_samples(trained):
    with pytest.raises(UserError, match="objective 'autoencoder' draws no samples"):
        sampled(trained, num=1)


def test_sides_that_latents_do_not_divide_are_refused_before_anything_is_made():
    config = run(data=dict(name="digits"), model=dict(widths=(8, 8, 8, 8)))
    with pytest.raises(UserError, match=r"images of 28x28: .* multiples of 8"):
        build.parts(config, build.data_source(config).codec)
