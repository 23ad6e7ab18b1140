import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tinygen import build, train
from tinygen import config as config_lib
from tinygen.errors import UserError
from tinygen.media import Image
from tinygen.objectives.classification import FRAME, RIGHT, WRONG, Classification
from tinygen.sampling import preview
from tinygen.train_step import init_state, merge

DRAW = np.random.default_rng(0)
NUM, CLASSES = 6, 4
LOGITS = DRAW.normal(0, 2, (NUM, CLASSES)).astype(np.float32)
BATCH = {"x": np.arange(NUM, dtype=np.float32)[:, None], "label": DRAW.integers(0, CLASSES, NUM).astype(np.int32)}


def model(x, *, rngs=None):
    """The logits that stand in LOGITS for an example's number."""
    return jnp.asarray(LOGITS)[jnp.asarray(x[:, 0], int)]


def objective(**changes):
    return Classification(**(dict(classes=CLASSES, label_smoothing=0.0) | changes))


def metrics_of(batch, train=True, **changes):
    loss, metrics = objective(**changes).loss(model, batch, jax.random.key(0), train=train)
    return float(loss), {name: tuple(map(float, pair)) for name, pair in metrics.items()}


# Loss and accuracy


def test_the_loss_is_the_mean_cross_entropy_and_accuracy_the_share_read_rightly():
    p = np.exp(LOGITS.astype(np.float64)) / np.exp(LOGITS.astype(np.float64)).sum(-1, keepdims=True)
    want = -np.mean(np.log(p[np.arange(NUM), BATCH["label"]]))
    loss, metrics = metrics_of(BATCH)
    assert loss == pytest.approx(want, rel=1e-5)
    assert metrics["loss"] == metrics["raw_loss"] == pytest.approx((NUM * want, NUM), rel=1e-5)
    assert metrics["accuracy"] == (np.sum(LOGITS.argmax(-1) == BATCH["label"]), NUM)


def test_smooth_labels_are_a_mixture_with_all_classes_in_training_only():
    p = np.exp(LOGITS.astype(np.float64)) / np.exp(LOGITS.astype(np.float64)).sum(-1, keepdims=True)
    target = 0.8 * np.eye(CLASSES)[BATCH["label"]] + 0.2 / CLASSES
    plain, (loss, metrics) = metrics_of(BATCH)[0], metrics_of(BATCH, label_smoothing=0.2)
    assert loss == pytest.approx(-np.mean(np.sum(target * np.log(p), -1)), rel=1e-5)
    assert metrics["raw_loss"][0] / NUM == pytest.approx(plain, rel=1e-6)
    assert metrics_of(BATCH, train=False, label_smoothing=0.2)[0] == pytest.approx(plain, rel=1e-6)


def test_only_valid_examples_count():
    weight = np.array([1, 0, 1, 1, 0, 0], np.float32)
    loss, metrics = metrics_of({**BATCH, "weight": weight})
    alone, theirs = metrics_of({key: value[weight > 0] for key, value in BATCH.items()})
    assert loss == pytest.approx(alone, rel=1e-6)
    assert metrics["accuracy"] == pytest.approx(theirs["accuracy"])
    assert metrics_of({**BATCH, "weight": 0 * weight})[0] == 0.0


def test_the_model_is_given_a_stream_for_dropout_in_training_only():
    given = []

    def listening(x, *, rngs=None):
        given.append(rngs)
        return model(x)

    for training in (True, False):
        objective().loss(listening, BATCH, jax.random.key(0), train=training)
    assert given[0] is not None
    assert given[1] is None


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(UserError, match=r"config\.objective\.label_smoothing"):
        objective(label_smoothing=share)


# What is shown


def pictures(channels=1):
    return {**BATCH, "x": np.broadcast_to(BATCH["x"][:, :, None, None] / 10, (NUM, 5, 5, channels))}


def by_grey(x, *, rngs=None):
    return model(10 * x[:, 0, 0, :1] + 0.5)


def test_the_most_doubtful_come_first_and_those_read_wrongly_have_a_red_frame():
    (shown,) = objective().preview(by_grey, by_grey, pictures(), None).values()
    value = np.asarray(shown.value)
    assert (shown.medium, value.shape) == (Image(), (NUM, 5 + 2 * FRAME, 5 + 2 * FRAME, 3))
    p = jax.nn.softmax(LOGITS)[np.arange(NUM), BATCH["label"]]
    np.testing.assert_allclose(value[:, FRAME, FRAME, 0] * 10, np.argsort(p), atol=1e-5)
    wrong = (LOGITS.argmax(-1) != BATCH["label"])[np.argsort(p)]
    assert 0 < wrong.sum() < NUM
    np.testing.assert_allclose(value[wrong, 0, 0], np.tile(WRONG, (wrong.sum(), 1)), rtol=1e-6)
    np.testing.assert_allclose(value[~wrong, 0, 0], np.tile(RIGHT, ((~wrong).sum(), 1)))


def test_padding_comes_last():
    weight = np.ones(NUM, np.float32)
    p = jax.nn.softmax(LOGITS)[np.arange(NUM), BATCH["label"]]
    weight[first := int(np.argmin(p))] = 0
    (shown,) = objective().preview(by_grey, by_grey, {**pictures(3), "weight": weight}, None).values()
    assert float(shown.value[-1, FRAME, FRAME, 0]) * 10 == pytest.approx(first)


def test_what_is_no_picture_is_not_shown():
    assert objective().preview(model, model, BATCH, None) == {}


# In a run


def run(**changes):
    config = config_lib.base(
        data=dict(name="digits8"),
        batch_size=64,
        model=dict(name="classifier", width=16, stages=2),
        objective=dict(name="classification", label_smoothing=0.1),
        optim=dict(lr=4e-3, warmup=10),
        ema=dict(decay=0.9),
        precision="float32",
        train=dict(steps=60, log_every=60, eval_every=60, preview_every=0, preview_num=16, checkpoint_every=0),
    )
    return config_lib.change(config, changes)


@pytest.mark.slow
def test_a_small_network_learns_small_digits(tmp_path, machine_of, metrics_of):
    machine_of(1)
    train.main(run(), str(tmp_path / "run"))
    first, last = metrics_of(tmp_path / "run")
    assert first["accuracy"] < 0.4  # one in ten at random
    assert last["eval_ema_accuracy"] > 0.8


def test_a_preview_shows_the_examples_with_their_own_labels():
    config = run()
    source = build.data_source(config)
    parts = build.parts(config, source.codec)
    with jax.set_mesh(parts.layout.mesh):
        state = init_state(parts.create, build.optimizer(config)[0], config.seed)
        shown = preview.make_preview(config, source, parts)(state)["doubtful"].items
    batch = next(source.epoch("validation", 16))
    read = np.asarray(merge(parts.graphdef, state.ema, {})(batch["x"]).argmax(-1))
    red = np.sum(np.all(shown[:, 0, 0] == Image().decode(np.array(WRONG)), -1))
    assert red == np.sum(read != batch["label"]) != np.sum(read != source.codec.encode(16)["label"])


def test_data_without_labels_are_refused():
    config = run(data=dict(label=""))
    with pytest.raises(UserError, match=r"these data have no labels: see config\.data\.label"):
        build.parts(config, build.data_source(config).codec)


def test_data_that_are_no_images_are_refused():
    config = run(data=dict(name="sine"))
    with pytest.raises(UserError, match="no labels"):
        build.parts(config, build.data_source(config).codec)
