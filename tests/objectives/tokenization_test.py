"""The tokenizer's loss and its counts of codes, and runs of it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from sampling import sampled

from tinygen import build, train
from tinygen import config as config_lib
from tinygen.checkpoints import store
from tinygen.checkpoints.weights import load
from tinygen.errors import UserError
from tinygen.media import Image
from tinygen.nn.quantize import Quantized
from tinygen.objectives.image_quality import psnr
from tinygen.objectives.tokenization import Tokenization, counted
from tinygen.pretrained import autoencoder
from tinygen.train_step import init_state, make_train_step, merge, split
from tinygen.training import held_out

DRAW = np.random.default_rng(0)
NUM = 5
X = DRAW.uniform(-1, 1, (NUM, 4, 4, 1)).astype(np.float32)
TOKENS = DRAW.integers(0, 7, (NUM, 2, 2)).astype(np.int32)
PENALTY = DRAW.uniform(1, 2, NUM).astype(np.float32)


@dataclasses.dataclass
class Model:
    """Images at 0.8 of their contrast, and tokens and penalties as they stand above. It keeps what it was called with."""

    tokens: np.ndarray
    codes: int = 9

    def __call__(self, x, *, weight=None, rngs=None):
        self.weight, self.rngs = weight, rngs
        return 0.8 * x, Quantized(x, jnp.asarray(self.tokens), jnp.asarray(PENALTY))


OBJECTIVE = Tokenization(commitment=0.5)


def loss(batch, train=True, tokens=TOKENS):
    model = Model(tokens)
    return (model, *OBJECTIVE.loss(model, batch, jax.random.key(0), train=train))


def test_the_loss_is_the_absolute_error_and_the_weighted_penalty():
    _, value, metrics = loss({"x": X})
    error = 0.2 * np.abs(X).mean()
    assert float(value) == pytest.approx(error + 0.5 * PENALTY.mean(), rel=1e-5)
    assert float(metrics["raw_loss"][0]) == pytest.approx(NUM * error, rel=1e-5)
    assert float(metrics["commitment"][0]) == pytest.approx(PENALTY.sum(), rel=1e-5)
    assert float(metrics["psnr"][0]) == pytest.approx(float(psnr(0.8 * X, X).sum()), rel=1e-5)
    assert metrics.keys() == {"loss", "raw_loss", "commitment", "psnr"}  # images are too small for structural similarity


def test_the_codebook_is_told_of_valid_examples_in_training_and_codes_are_counted_when_held_out():
    weight = np.array([1, 0, 1, 1, 0], np.float32)
    trained, _, metrics = loss({"x": X, "weight": weight})
    np.testing.assert_array_equal(trained.weight, weight)
    assert trained.rngs is not None
    assert "code_share" not in metrics
    evaluated, _, metrics = loss({"x": X, "weight": weight}, train=False)
    assert evaluated.rngs is None
    counts, total = metrics["code_share"]
    np.testing.assert_array_equal(counts, [np.bincount(TOKENS[weight > 0].ravel(), minlength=9)])
    assert float(total) == 3 * 4


def test_only_valid_examples_count():
    weight = np.array([1, 0, 1, 1, 0], np.float32)
    _, value, metrics = loss({"x": X, "weight": weight})
    assert float(metrics["loss"][1]) == 3
    assert float(value) == pytest.approx((0.2 * np.abs(X).mean((1, 2, 3)) + 0.5 * PENALTY)[weight > 0].mean(), rel=1e-5)


def test_each_stage_of_a_residual_quantizer_has_its_own_counts():
    tokens = np.stack([TOKENS, (TOKENS + 1) % 7], -1)
    counts, total = counted(tokens, np.ones(NUM), 9)
    np.testing.assert_array_equal(counts, [np.bincount(tokens[..., stage].ravel(), minlength=9) for stage in (0, 1)])
    assert float(total) == NUM * 4


@pytest.mark.parametrize(
    ("share", "use", "perplexity"),
    [
        (np.full((1, 16), 1 / 16), 1.0, 16.0),
        ([[0.5, 0.5, 0, 0]], 0.5, 2.0),
        ([[1.0, 0, 0, 0], [0.25] * 4], 5 / 8, 2.5),
    ],
)
def test_the_perplexity_of_uniform_use_is_the_number_of_codes_in_use(share, use, perplexity):
    derived = OBJECTIVE.derived({"code_share": np.asarray(share)})
    assert derived == pytest.approx({"code_use": use, "code_perplexity": perplexity})
    assert OBJECTIVE.derived({"loss": 1.0}) == {}


@pytest.mark.parametrize("weight", [-1.0, float("inf"), float("nan")])
def test_a_weight_that_is_none_is_refused(weight):
    with pytest.raises(UserError, match=r"config\.objective\.commitment"):
        Tokenization(commitment=weight)


def test_reconstructions_stand_beside_their_originals():
    (shown,) = OBJECTIVE.preview(None, Model(TOKENS), {"x": X}, jax.random.key(0)).values()
    assert (shown.medium, shown.value.shape) == (Image(), (NUM, 4, 8, 1))
    np.testing.assert_array_equal(shown.value[:, :, :4], X)
    np.testing.assert_allclose(shown.value[:, :, 4:], 0.8 * X, rtol=1e-6)


# Runs


def run(**changes):
    config = config_lib.base(
        data=dict(name="digits8"),
        batch_size=32,
        model=dict(name="tokenizer", widths=(8, 16), groups=4, quantizer="vq", codes=32, code_width=4),
        objective=dict(name="tokenizer"),
        optim=dict(lr=4e-3, warmup=10),
        ema=dict(decay=0.9),
        precision="float32",
        train=dict(steps=60, log_every=60, eval_every=60, preview_every=60, preview_num=8, checkpoint_every=0),
    )
    return config_lib.change(config, changes)


FSQ = dict(quantizer="fsq", levels=(4, 3, 3))


@pytest.fixture(scope="module", params=[dict(), dict(stages=2), FSQ], ids=["vq", "residual", "fsq"])
def trained(request, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "tokens"
    assert train.main(run(model=request.param), str(workdir)) == 0
    return workdir


@pytest.mark.slow
def test_a_small_network_learns_to_give_digits_back_by_most_of_its_codes(trained, metrics_of):
    first, last = metrics_of(trained)
    assert last["eval_ema_raw_loss"] < 0.6 * first["raw_loss"]
    assert last["eval_ema_psnr"] > first["psnr"] + 3
    assert last["eval_ema_code_use"] > 0.5
    assert 4 < last["eval_ema_code_perplexity"] <= 36
    assert not {"code_share", "code_use", "eval_code_share", "eval_ema_code_share"} & last.keys()
    assert (trained / "samples" / "000060-reconstructions.png").exists()


@pytest.mark.slow
def test_a_run_draws_no_samples(trained):
    with pytest.raises(UserError, match="objective 'tokenizer' draws no samples"):
        sampled(trained, num=1)


@pytest.mark.slow
def test_a_run_is_a_tokenizer_of_its_averaged_weights(trained):
    ours = autoencoder.load(str(trained), "--autoencoder")
    assert (ours.name, len(ours.sha256), ours.factor, ours.image_channels) == ("tokens", 64, 2, 1)
    saved = store.find(trained)
    parts = build.parts(saved.config, saved.codec)
    model = merge(parts.graphdef, *load(saved, parts, ema=True))
    x = next(build.data_source(saved.config).epoch("validation", 4))["x"]
    tokens = jax.jit(ours.encode)(ours.variables, x)
    np.testing.assert_array_equal(tokens, model.encode(x))
    assert tokens.shape == ((4, 4, 4) if ours.channels == 1 else (4, 4, 4, ours.channels))
    np.testing.assert_allclose(jax.jit(ours.decode)(ours.variables, tokens), model.decode(tokens), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_resumed_run_continues_its_codebook(accumulate, tmp_path, monkeypatch, stop_during, saved_arrays):
    config = run(optim=dict(accumulate=accumulate), train=dict(steps=12, preview_every=0, eval_every=0))
    assert train.main(config, str(tmp_path / "straight")) == 0
    with monkeypatch.context() as patch:
        stop_during(patch, 5)
        assert train.main(config, str(tmp_path / "resumed")) == 143
    assert train.main(config, str(tmp_path / "resumed")) == 0
    straight, resumed = (saved_arrays(tmp_path / name, 12) for name in ("straight", "resumed"))
    book = [name for name in straight if "quantizer" in name]
    assert len(book) == 2
    assert all(straight[name].std() > 0.01 for name in book)
    for name, array in straight.items():
        np.testing.assert_array_equal(array, resumed[name], err_msg=name)


def test_a_training_step_on_eight_devices_leaves_the_codebook_of_one(machine_of):
    def codebook(devices):
        machine_of(devices)
        config = run(model=dict(stages=2), mesh=dict(data=devices), optim=dict(accumulate=2))
        source = build.data_source(config)
        parts = build.parts(config, source.codec)
        tx, schedule = build.optimizer(config)
        step = make_train_step(parts.graphdef, parts.objective, tx, schedule, seed=0, ema_decay=0.9, accumulate=2)
        with jax.set_mesh(parts.layout.mesh):
            state = jax.jit(lambda: init_state(parts.create, tx, 0))()
            batch = parts.layout.put(next(source.epoch("validation", 32)), 32)
            return jax.device_get(jax.jit(step)(state, batch)[0].buffers)["quantizer"]["stages"]

    one, eight = codebook(1), codebook(8)
    for stage in ("0", "1"):
        assert one[stage]["sums"].std() > 0.01
        assert one[stage]["use"].std() > 0
        for name in ("use", "sums"):  # sums in another order
            np.testing.assert_allclose(one[stage][name], eight[stage][name], rtol=1e-4, atol=1e-4)


@pytest.fixture
def evaluated():
    """evaluated(batch_size): held-out metrics of one model, whatever the batches."""

    def evaluate(batch_size):
        config = run(batch_size=batch_size, model=FSQ)
        source = build.data_source(config)
        parts = build.parts(config, source.codec)
        _, params, buffers = split(parts.create(nnx.Rngs(0)))
        with jax.set_mesh(parts.layout.mesh):
            return held_out.make_held_out(config, source, parts)(params, buffers)

    return evaluate


def test_counts_of_several_batches_the_last_one_padded_equal_those_of_one_pass(evaluated, machine_of):
    machine_of(1)
    several, whole = evaluated(64), evaluated(179)  # held-out digits
    assert several["code_use"] == whole["code_use"] < 1
    assert several == pytest.approx(whole, rel=1e-5)


def test_sides_that_tokens_do_not_divide_are_refused_before_anything_is_made():
    config = run(data=dict(name="digits"), model=dict(widths=(8, 8, 8, 8)))
    with pytest.raises(UserError, match=r"images of 28x28: .* multiples of 8"):
        build.parts(config, build.data_source(config).codec)
