"""Latents as data: what is prepared, what a batch makes of it, and what is refused."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import patch_autoencoder
import pytest
from patch_autoencoder import read, source_of

from tinygen.data import latents
from tinygen.data.domain import Moments
from tinygen.data.source import check_batch
from tinygen.errors import UserError
from tinygen.pretrained.latents import in_batches


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The latents of 8x8 digits. Shared: only to be read."""
    return patch_autoencoder.make(tmp_path_factory.mktemp("latents"))


@pytest.fixture
def copy(made, tmp_path):
    """A copy of the folder, to be spoilt."""
    return shutil.copytree(made.folder, tmp_path / "copy")


def test_every_image_becomes_its_latent_with_its_label_in_the_same_order(made):
    latents = source_of(made.folder)
    about, autoencoder = latents.codec.domain, patch_autoencoder.load(made.place / "patches", "")
    assert latents.codec.labels == made.images.codec.labels
    for split, images in made.images.splits.items():
        indices = np.array([len(images) - 1, 0, 5])
        here, there = latents.splits[split].take(indices), images.take(indices)
        assert len(latents.splits[split]) == len(images)
        np.testing.assert_array_equal(here["label"], there["label"])
        mean, _ = patch_autoencoder.encode(autoencoder.variables, there["x"])
        np.testing.assert_allclose(about.unscaled(here["x"]), mean, rtol=2**-11, atol=1e-4)  # float16 rounds by half a unit of 2^-10


def test_what_is_drawn_has_mean_0_a_channel_and_variance_1(made):
    drawn = np.concatenate([batch["x"] for batch in read(source_of(made.folder), 303)])  # three epochs
    np.testing.assert_allclose(drawn.mean((0, 1, 2)), 0, atol=0.02)
    assert drawn.var() == pytest.approx(1, abs=0.02)


def test_moments_over_batches_are_those_of_draws():
    numbers = np.random.default_rng(0)
    mean, std = numbers.normal([1, -2], [1, 3], (400, 4, 4, 2)), numbers.uniform(0, 2, (400, 4, 4, 2))
    moments = Moments()
    for part in range(0, 400, 100):
        moments.add(mean[part : part + 100].astype(np.float16), std[part : part + 100])
    scale, shift = moments.scale_and_shift()
    drawn = mean + std * numbers.normal(size=mean.shape)
    np.testing.assert_allclose(shift, mean.mean((0, 1, 2)), atol=1e-3)
    assert ((drawn - shift) * scale).var() == pytest.approx(1, abs=0.04)  # 12,800 draws


def test_an_autoencoder_that_gives_one_latent_for_all_is_refused():
    moments = Moments()
    moments.add(np.full((8, 2, 2, 4), 3.0), np.zeros((8, 2, 2, 4)))
    with pytest.raises(UserError, match="do not vary"):
        moments.scale_and_shift()


def test_draws_have_the_posteriors_mean_and_spread(made):
    source = source_of(made.folder)
    train, scale = source.splits["train"], source.codec.domain.scale
    drawn = train.draw(np.full(4000, 7), [np.random.default_rng(place) for place in range(4000)])["x"] / scale
    mean = train.take(np.array([7]))["x"][0] / scale
    np.testing.assert_allclose(drawn.mean(0), mean, atol=5 * patch_autoencoder.SPREAD / 4000**0.5)
    np.testing.assert_allclose(drawn.std(0), patch_autoencoder.SPREAD, rtol=5 / 8000**0.5)


def test_a_draw_depends_on_seed_attempt_number_and_place_alone(made):
    source = source_of(made.folder)
    whole = read(source, 6)
    np.testing.assert_array_equal([each["x"] for each in whole[4:]], [each["x"] for each in read(source, 2, start=4)])
    np.testing.assert_array_equal([each["x"][[3, 9]] for each in whole], [each["x"] for each in read(source, 6, rows=[3, 9])])
    for other in (dict(attempt=1), dict(seed=1)):
        assert not np.array_equal(whole[0]["x"], read(source, 1, **other)[0]["x"])


def test_each_epoch_draws_anew_and_without_sampling_none_does(made):
    few = {sample: source_of(made.folder, sample=sample, overfit=16) for sample in (True, False)}
    drawn, means = ([np.sort(batch["x"], axis=0) for batch in read(source, 2)] for source in few.values())
    np.testing.assert_array_equal(means[0], means[1])
    assert not np.any(drawn[0] == drawn[1])
    assert few[True].fingerprint != few[False].fingerprint


def test_held_out_latents_are_means(made):
    source = source_of(made.folder)
    means = source.splits["validation"].take(np.arange(8))["x"]
    np.testing.assert_array_equal(next(source.epoch("validation", 8))["x"], means)
    shuffled = read(source, 1, "validation")[0]["x"]
    assert all(any(np.array_equal(each, mean) for mean in source.splits["validation"].take(np.arange(179))["x"]) for each in shuffled)


def test_labels_may_be_left_out(made):
    source = source_of(made.folder, label=False)
    assert source.codec.labels == ()
    assert set(source.splits["train"].take(np.arange(2))) == {"x"}


def edited(**changes):
    """As if it had been written so: its sum is right."""

    def edit(folder):
        path = folder / "latents.json"
        tree = {**json.loads(path.read_text()), **changes}
        del tree[latents.SUM]
        path.write_text(json.dumps({**tree, latents.SUM: latents._sum(tree)}))

    return edit


def shortened(folder):
    path = folder / "train.array_record"
    path.write_bytes(path.read_bytes()[:-1])


def turned(folder):
    """The same number of bytes, some of them others."""
    path = folder / "train.array_record"
    content = bytearray(path.read_bytes())
    content[1000:60_000] = bytes(each ^ 255 for each in content[1000:60_000])
    path.write_bytes(content)


SPOILT = {
    "no provenance": (lambda folder: (folder / "latents.json").unlink(), "latents.json is not there.*\n.*prepare_latents"),
    "a torn one": (lambda folder: (folder / "latents.json").write_text('{"version": 1'), "latents.json is damaged"),
    "a list": (lambda folder: (folder / "latents.json").write_text("[]"), "latents.json is damaged"),
    "without latents": (edited(latents=None), "latents.json is damaged"),
    "another version": (edited(version=7), "its version is 7"),
    "no counts": (edited(counts={}), "latents.json is damaged"),
    "another count": (edited(counts={"train": 9, "validation": 179}), "holds 1,618 records instead of 9"),
    "no split": (lambda folder: (folder / "validation.array_record").unlink(), "validation.array_record is not there"),
    "a short split": (shortened, "has [0-9,]+ bytes instead of"),
    "other bytes": (turned, "train.array_record cannot be read"),
}


@pytest.mark.parametrize(("spoil", "told"), SPOILT.values(), ids=SPOILT)
def test_a_folder_that_is_not_whole_is_refused(copy, spoil, told):
    spoil(copy)
    with pytest.raises(UserError, match=told):
        source_of(copy).splits["train"].take(np.arange(100))


def test_a_missing_path_says_how_latents_are_made():
    with pytest.raises(UserError, match=r"config.data.path is empty.*\npython scripts/prepare/prepare_latents.py"):
        source_of("")


def test_the_fingerprint_is_of_the_latents_not_of_their_place(made, copy):
    assert source_of(copy).fingerprint == source_of(made.folder, autoencoder="elsewhere").fingerprint
    assert source_of(copy, label=False).fingerprint != source_of(copy).fingerprint


def test_batches_of_any_number_are_computed_row_by_row_over_all_devices(made):
    found = patch_autoencoder.load(made.place / "patches", "")
    x = np.random.default_rng(0).normal(size=(21, 4, 4, 1)).astype(np.float32)
    assert jax.local_device_count() == 8
    for most in (1, 2, 64):
        mean, std = in_batches(found.encode, found.variables, most)(x)
        np.testing.assert_allclose(mean, patch_autoencoder.encode(found.variables, x)[0], atol=1e-6)
        assert std.shape == mean.shape == (21, 2, 2, 4)


@pytest.mark.parametrize("key", ["scale", "sha256"])
def test_what_has_been_changed_by_hand_is_refused(copy, key):
    path = copy / "latents.json"
    tree = json.loads(path.read_text())
    tree["latents"][key] = {"scale": 5.0, "sha256": "f" * 64}[key]
    path.write_text(json.dumps(tree))
    with pytest.raises(UserError, match=r"latents.json: it has been changed since it was written"):
        source_of(copy)


def test_latents_of_another_scale_are_other_data_and_their_spread_is_looked_at(copy, made):
    prepared = latents.Prepared.read(copy)
    dataclasses.replace(prepared, latents=dataclasses.replace(prepared.latents, scale=5 * prepared.latents.scale)).write(copy)
    spoilt = source_of(copy)
    assert spoilt.fingerprint != source_of(made.folder).fingerprint
    with pytest.raises(UserError, match=r"a standard deviation of [45]"):
        check_batch(read(spoilt, 1)[0], spoilt.codec)
