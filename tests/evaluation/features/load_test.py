import dataclasses
import shutil

import jax
import numpy as np
import pytest

from tinygen import build, train
from tinygen import config as config_lib
from tinygen.checkpoints import store
from tinygen.checkpoints.weights import digest, load
from tinygen.errors import UserError
from tinygen.evaluation.features import load as networks
from tinygen.train_step import merge


def config(**changes):
    classifier = config_lib.base(
        data=dict(name="digits8"),
        batch_size=16,
        model=dict(name="classifier", width=8, stages=2),
        objective=dict(name="classification"),
        ema=dict(decay=0.5),
        precision="bfloat16",
        train=dict(steps=2, log_every=1, eval_every=0, preview_every=0, checkpoint_every=1),
    )
    return config_lib.change(classifier, changes)


@pytest.fixture(scope="module")
def grey(tmp_path_factory):
    """The workdir of a run on 8x8 grey digits."""
    workdir = tmp_path_factory.mktemp("runs") / "my_digits"
    assert train.main(config(), str(workdir)) == 0
    return workdir


@pytest.fixture(scope="module")
def network(grey):
    return networks.of_run(str(grey))


@pytest.fixture(scope="module")
def colour(tmp_path_factory):
    """A network of a run on 16x16 RGB faces."""
    workdir = tmp_path_factory.mktemp("runs") / "my_faces"
    assert train.main(config(data=dict(name="pixel_faces")), str(workdir)) == 0
    return networks.of_run(str(workdir))


def test_it_bears_the_run_s_name_and_never_fid_s(network):
    assert (network.name, network.distance, network.dim, network.size) == ("my_digits", "FD-my_digits", 16, (8, 8))
    assert network.preset == "8x8, grey, bicubic, [-1, 1]"


def test_a_run_s_own_pictures_get_the_features_of_its_averaged_weights_in_float32(grey, network):
    saved = store.find(grey)
    source = build.data_source(saved.config)
    x = next(source.epoch("validation", 8))["x"]
    pictures = np.repeat(saved.codec.medium.decode(x), 3, -1)
    got = jax.jit(network.apply)(network.variables, np.stack([network.prepare(picture) for picture in pictures]))
    parts = build.parts(config_lib.change(saved.config, dict(precision="float32")), saved.codec)
    model = merge(parts.graphdef, *load(saved, parts, ema=True))
    exact = pictures[..., :1] / np.float32(127.5) - 1  # the 17 levels of these digits are not all among the 256
    np.testing.assert_allclose(got["features"], model.features(exact), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got["logits"], model(exact), rtol=1e-4, atol=1e-5)


def test_input_is_of_the_run_s_size_in_three_channels(network, colour):
    picture = np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    for each, size in ((network, 8), (colour, 16)):
        x = each.prepare(picture)
        assert (x.shape, x.dtype) == ((size, size, 3), np.float32)
        assert -1 <= x.min() < 0 < x.max() <= 1
    assert np.ptp(network.prepare(picture), axis=-1).max() == 0  # grey
    assert np.ptp(colour.prepare(picture), axis=-1).max() > 0
    small = picture[:16, :16]
    np.testing.assert_allclose(colour.prepare(small), small / 127.5 - 1, atol=1e-6)


def test_grey_is_luma_and_what_was_grey_stays(network):
    grey = np.repeat(np.random.default_rng(0).integers(0, 256, (8, 8, 1), dtype=np.uint8), 3, -1)
    np.testing.assert_allclose(network.prepare(grey), grey / 127.5 - 1, atol=1e-6)
    green = np.zeros((8, 8, 3), np.uint8) + np.array([0, 255, 0], np.uint8)
    np.testing.assert_allclose((network.prepare(green) + 1) / 2, 0.587, atol=0.002)


def test_the_digest_is_the_weights(grey, network):
    again, earlier = networks.of_run(str(grey / "checkpoints")), networks.of_run(str(grey / "checkpoints" / "1"))
    assert network.sha256 == again.sha256 != earlier.sha256
    assert again.name == "my_digits"
    changed = jax.tree.map(np.copy, network.variables)
    changed[0]["out"]["bias"][0] += 1e-6
    assert digest(changed) != digest(network.variables)


def test_a_run_that_is_no_classifier_is_refused(finished):
    with pytest.raises(UserError, match=r"--features=.*objective 'flow'.*\n.*--config=classify_digits"):
        networks.of_run(str(finished.workdir))


def test_a_run_named_as_a_public_network_is_refused(classifier, tmp_path):
    workdir = shutil.copytree(classifier, tmp_path / "efflite0")
    with pytest.raises(UserError, match=r"efflite0 is the name of a public network: rename this run's folder$"):
        networks.of_run(str(workdir))


def test_a_run_on_pictures_that_are_not_square_has_input_of_their_shape(grey, monkeypatch):
    saved = store.find(grey)
    spec = {**saved.codec.spec, "x": dataclasses.replace(saved.codec.spec["x"], shape=(8, 6, 1))}
    tall = dataclasses.replace(saved, codec=dataclasses.replace(saved.codec, spec=spec))
    monkeypatch.setattr(store, "find", lambda *_, **options: tall)
    network = networks.of_run(str(grey))
    assert (network.size, network.preset) == ((8, 6), "8x6, grey, bicubic, [-1, 1]")
    picture = np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    assert jax.jit(network.apply)(network.variables, network.prepare(picture)[None])["features"].shape == (1, 16)


def test_a_place_without_a_run_is_named_by_its_own_flag(tmp_path):
    with pytest.raises(UserError, match=r"--features=.*no checkpoint there"):
        networks.of_run(str(tmp_path))
