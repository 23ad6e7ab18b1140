"""EDM against closed forms: data N(m, s²), whose best denoiser, its loss and its flow are known."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tinygen import build, rng
from tinygen.errors import UserError
from tinygen.nn.layers import Output
from tinygen.objectives.edm import EDM
from tinygen.samplers.table import SAMPLERS

SHAPE = (2, 2, 1)
M, S = 0.7, 0.5
SETTINGS = dict(
    shape=SHAPE, sigma_data=0.5, p_mean=-0.6, p_std=1.2, cond_drop=0.1, sampler="heun", nfe=35, guidance=1.0,
    guidance_interval=(0.0, 1000.0), sigma_min=0.002, sigma_max=80.0, rho=7.0, tolerance=1e-3,
)  # fmt: skip


def edm(**changes):
    return EDM(**(SETTINGS | changes))


def wrapped(denoise, sigma_data=0.5):
    """The network F whose D is `denoise`(z, σ, cond): the inverse of EDM's preconditioning, written anew."""

    def model(x, t, r=None, cond=None, *, rngs=None):
        sigma = jnp.exp(4 * t).reshape(-1, 1, 1, 1)
        z = x * jnp.sqrt(sigma**2 + sigma_data**2)
        skip = sigma_data**2 / (sigma**2 + sigma_data**2)
        return Output((denoise(z, sigma, cond) - skip * z) * jnp.sqrt(sigma**2 + sigma_data**2) / (sigma * sigma_data))

    return model


def best(z, sigma, cond=None):
    """E[x | x + σε = z] for x ~ N(M, S²)."""
    return (S**2 * z + sigma**2 * M) / (S**2 + sigma**2)


def run(batch, model, *, key=0, train=True, **changes):
    return jax.device_get(jax.jit(lambda batch, key: edm(**changes).loss(model, batch, key, train=train))(batch, jax.random.key(key)))


def over_sigma(f, mean, std):
    """E f(exp(mean + std n)), by Gauss-Hermite quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(100)
    return np.sum(weights * f(np.exp(mean + std * nodes))) / np.sqrt(2 * np.pi)


@pytest.mark.parametrize(("mean", "std", "data"), [(-0.6, 1.2, 0.5), (0.0, 0.6, 0.9)])
def test_the_best_denoiser_s_loss_is_the_known_floor(mean, std, data):
    num = 40_000
    x = M + S * np.random.default_rng(0).normal(size=(num, *SHAPE)).astype(np.float32)

    def floor(sigma):
        return S**2 * sigma**2 / (S**2 + sigma**2)

    def weight(sigma):
        return (sigma**2 + data**2) / (sigma * data) ** 2

    total, metrics = run({"x": x}, wrapped(best, data), p_mean=mean, p_std=std, sigma_data=data)
    assert total == pytest.approx(over_sigma(lambda sigma: weight(sigma) * floor(sigma), mean, std), rel=0.02)
    raw = metrics["raw_loss"]
    assert raw[0] / raw[1] == pytest.approx(over_sigma(floor, mean, std), rel=0.02)
    bins = [metrics[f"raw_loss_t{index}"] for index in range(4)]
    assert sum(each[0] for each in bins) == pytest.approx(raw[0], rel=1e-4)
    np.testing.assert_allclose([each[1] / num for each in bins], 0.25, atol=0.02)
    assert np.diff([each[0] / each[1] for each in bins]).min() > 0  # the more noise, the less is known


def test_the_network_sees_and_is_asked_for_unit_variance_whatever_the_noise():
    """Data of standard deviation σ_d: c_in·z, and F's target, which a network that says 0 has as its loss."""
    seen = {}

    def zero(x, t, r=None, cond=None, *, rngs=None):
        seen["variance"] = jnp.mean(jnp.square(x))
        return Output(jnp.zeros_like(x))

    x = 0.9 * np.random.default_rng(0).normal(size=(4000, 8, 8, 1)).astype(np.float32)

    def whole(batch, key):
        objective = edm(shape=(8, 8, 1), sigma_data=0.9, p_mean=0.0, p_std=2.0)
        return objective.loss(zero, batch, key, train=True)[0], seen["variance"]

    loss, variance = jax.device_get(jax.jit(whole)({"x": x}, jax.random.key(0)))
    assert variance == pytest.approx(1, abs=0.01)
    assert loss == pytest.approx(1, abs=0.01)


def test_samples_of_the_best_denoiser_follow_the_known_flow():
    """z(σ) = M + (z(σ_max) - M) √((S² + σ²) / (S² + σ_max²)), on which Heun's steps are of second order."""
    keys = rng.example_keys(jax.random.key(1), 0, 256)
    start = 80.0 * np.asarray(rng.normal(keys, SHAPE))
    exact = M + (start - M) * S / np.sqrt(S**2 + 80.0**2)
    errors = []
    for nfe in (35, 71, 143):
        sample = jax.jit(lambda keys, nfe=nfe: edm(nfe=nfe).draw(wrapped(best), keys)[0])
        errors.append(np.abs(np.asarray(sample(keys)) - exact).max())
    assert errors[0] < 0.2
    assert all(3.5 < coarse / fine < 5 for coarse, fine in itertools.pairwise(errors))


@pytest.mark.parametrize("sigma", [0.002, 0.1, 80.0])
def test_the_slope_has_float32_s_precision_at_every_noise_level(sigma):
    """(z - D) / σ from D itself has lost three digits of six at σ = 0.002: z and D agree in the first five."""
    z, F = np.random.default_rng(0).normal(size=(2, 3, *SHAPE)).astype(np.float32)
    found = edm()._slope(lambda *arguments: F, jnp.asarray(z), jnp.full(3, sigma, jnp.float32), None)
    z, F, total = z.astype(np.float64), F.astype(np.float64), float(np.float32(sigma)) ** 2 + 0.5**2
    D = 0.5**2 / total * z + float(np.float32(sigma)) * 0.5 / np.sqrt(total) * F
    np.testing.assert_allclose(found, (z - D) / float(np.float32(sigma)), rtol=1e-6, atol=1e-6)


def test_the_loss_has_float32_s_precision_where_the_noise_is_small_beside_the_data():
    """Data of 100 in noise of 0.002, and a network that says 0: computed from D, the loss is off by a thousandth."""
    x, key = np.full((4, *SHAPE), 100, np.float32), jax.random.key(0)
    loss, metrics = edm(p_mean=np.log(0.002), p_std=1e-9).loss(lambda x, *_, **__: Output(jnp.zeros_like(x)), {"x": x}, key, train=True)
    noise = np.asarray(jax.random.normal(jax.random.split(key, 4)[1], x.shape), np.float64)
    total = 0.002**2 + 0.5**2
    error = 0.5**2 / total * (x + 0.002 * noise) - x
    assert float(loss) == pytest.approx(np.mean(error**2) * total / (0.002 * 0.5) ** 2, rel=1e-5)
    assert float(metrics["raw_loss"][0]) / 4 == pytest.approx(np.mean(error**2), rel=1e-5)


@pytest.mark.parametrize("sampler", sorted(SAMPLERS.keys() - {"average"}))
def test_every_sampler_of_a_velocity_reaches_the_data_within_its_budget(sampler):
    keys = rng.example_keys(jax.random.key(1), 0, 2_000)
    objective = edm(nfe=150, sampler=sampler)
    x, taken = jax.jit(lambda keys: objective.draw(wrapped(best), keys))(keys)
    assert (taken <= objective.evaluations(conditional=False)).all()
    assert objective.evaluations(conditional=False) <= 150
    wide = {"sde": 0.17, "euler": 0.1}.get(sampler, 0.06)  # of 8,000 numbers' variance; first-order steps have an error of their own
    assert np.mean(x) == pytest.approx(M, abs=3 * S / np.sqrt(x.size))
    assert np.var(x) == pytest.approx(S**2, rel=wide)


@pytest.mark.parametrize(("sampler", "nfe", "steps"), [("heun", 35, 18), ("heun", 36, 18), ("euler", 18, 18), ("heun", 1, 1)])
def test_levels_fall_evenly_in_their_root_and_end_with_zero(sampler, nfe, steps):
    objective = edm(sampler=sampler, nfe=nfe)
    grid = objective.grid(conditional=False)
    assert len(grid) == steps + 1
    assert (grid[0], grid[-1]) == (pytest.approx(80.0), 0)
    if steps > 1:
        assert grid[-2] == pytest.approx(0.002, rel=1e-4)
        np.testing.assert_allclose(np.diff(grid[:-1] ** (1 / 7)), -(80 ** (1 / 7) - 0.002 ** (1 / 7)) / (steps - 1), rtol=1e-3)
    assert objective.evaluations(conditional=False) == {35: 35, 36: 35, 18: 18, 1: 1}[nfe]


@pytest.mark.parametrize("interval", [(0.0, 1000.0), (0.1, 2.0)])
def test_guidance_acts_inside_its_interval_of_noise_and_is_counted(interval):
    calls = []

    def denoise(z, sigma, cond):
        calls.append(z.shape[0])
        kept = cond["keep"].reshape(-1, 1, 1, 1)
        return best(z, sigma) + jnp.where(kept, 0.3, 0.0)

    objective = edm(guidance=3.0, nfe=40, guidance_interval=interval, sampler="euler")
    cond = {"label": jnp.zeros(8, jnp.int32)}
    keys = rng.example_keys(jax.random.key(1), 0, 8)
    grid = objective.grid(conditional=True)
    inside = (grid[:-1] >= interval[0]) & (grid[:-1] <= interval[1])
    assert objective.evaluations(conditional=True) == len(inside) + inside.sum() <= 40
    z = 80.0 * np.asarray(rng.normal(keys, SHAPE), np.float64)
    for sigma, next_sigma, acts in zip(grid[:-1].astype(float), grid[1:].astype(float), inside, strict=True):
        D = best(z, sigma) + (0.9 if acts else 0.3)
        z = z + (next_sigma - sigma) * (z - D) / sigma
    found = jax.jit(lambda keys: objective.draw(wrapped(denoise), keys, cond)[0])(keys)
    np.testing.assert_allclose(found, z, atol=2e-3)


def test_what_the_model_did_not_predict_and_padded_examples_are_not_learned_from():
    mask = jnp.zeros((1, 2, 2, 1)).at[:, 0].set(1.0)

    def half(right):
        inner = wrapped(lambda z, sigma, cond: jnp.where(mask > 0, best(z, sigma), right))
        return lambda *arguments, **keywords: Output(inner(*arguments, **keywords).pred, weight=mask)

    x = M + S * np.random.default_rng(0).normal(size=(6, *SHAPE)).astype(np.float32)
    first, second = (run({"x": x}, half(right))[0] for right in (0.0, 100.0))
    assert first == second > 0
    valid = np.array([1, 1, 1, 0, 0, 0], np.float32)
    other = x.copy()
    other[3:] = 50
    assert run({"x": x, "weight": valid}, half(0.0))[0] == run({"x": other, "weight": valid}, half(0.0))[0]


def test_training_drops_conditions_and_masks_and_evaluation_does_neither():
    seen = {}

    def model(x, t, r=None, cond=None, *, rngs=None):
        seen.update(keep=cond["keep"], masks=rngs is not None)
        return Output(jnp.zeros_like(x))

    batch = {"x": np.zeros((2000, *SHAPE), np.float32), "label": np.zeros(2000, np.int32)}
    for train, share, masks in ((True, 0.75, True), (False, 1.0, False)):

        def whole(key, train=train):
            edm(cond_drop=0.25).loss(model, batch, key, train=train)
            return seen["keep"]

        keep = jax.jit(whole)(jax.random.key(0))
        assert np.mean(keep) == pytest.approx(share, abs=0.04)
        assert seen["masks"] == masks


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(sigma_data=0.0), "config.objective.sigma_data=0.0 must be positive"),
        (dict(p_std=-1.0), "config.objective.p_std=-1.0 must be positive"),
        (dict(p_mean=float("nan")), "config.objective.p_mean=nan must be finite"),
        (dict(rho=0.0), "config.objective.rho=0.0 must be positive"),
        (dict(sigma_min=90.0), "sigma_min=90.0 and sigma_max=80.0 must be 0 < sigma_min < sigma_max"),
        (dict(guidance_interval=(2.0, 1.0)), "must be \\(low, high\\) with 0 <= low <= high, of σ"),
        (dict(cond_drop=1.0), "config.objective.cond_drop=1.0"),
        (dict(guidance=2.0, cond_drop=0.0), "guidance 2.0 needs a model trained with"),
        (dict(guidance=2.0, nfe=1), "nfe=1 is too few: one heun step with guidance 2.0 takes 2 network evaluations"),
        (dict(sampler="rk5"), "unknown sampler"),
        (dict(nfe=20_000), "at most 10,000"),
    ],
)
def test_settings_that_make_no_sense_are_refused_in_one_line(changes, message):
    with pytest.raises(UserError, match=message) as refused:
        edm(**changes)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("name", "most", "good"), [("edm", 1, 1), ("meanflow", 100, 16), ("improved_meanflow", 100, 16)])
def test_a_model_whose_embedding_turns_too_fast_for_an_objective_is_refused(tiny, name, most, good):
    def made(**model):
        config = tiny(objective=dict(name=name), model=model)
        return build.parts(config, build.data_source(config).codec)

    said = f"config.model.time_scale=1000.0: objective {name!r} wants {most} or less, such as --config.model.time_scale={good}"
    with pytest.raises(UserError) as refused:
        made()
    assert str(refused.value) == said
    with pytest.raises(UserError, match="time_scale"):
        made(time_scale=most + 0.5)
    for scale in (most, good):
        assert made(time_scale=float(scale))
