"""What samples are compared with, by its name; and what is refused because it is something else."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tinygen import build
from tinygen import config as config_lib
from tinygen.errors import UserError
from tinygen.evaluation.references import find, statistics, write_statistics
from tinygen.evaluation.scores import side_of

ROWS = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
MEAN, COVARIANCE = ROWS.mean(0), np.cov(ROWS.astype(float), rowvar=False)


@pytest.fixture
def file(tmp_path):
    """file(key=array): the path of an .npz file."""

    def write(**arrays):
        np.savez(tmp_path / "ref.npz", **arrays)
        return str(tmp_path / "ref.npz")

    return write


def digits():
    return build.data_source(config_lib.base(data=dict(name="digits8")))


@pytest.mark.parametrize(("mean", "covariance"), [("mu", "sigma"), ("ref_mu", "ref_sigma"), ("mean", "cov")])
def test_statistics_are_read_by_whatever_names_others_gave_them(file, toy_network, mean, covariance):
    found = find(file(**{mean: MEAN.astype(np.float32), covariance: COVARIANCE}), toy_network, None)
    assert found.pictures is found.examples is None
    side = found.statistics
    np.testing.assert_array_equal(side.mean, MEAN)
    np.testing.assert_array_equal(side.covariance, COVARIANCE)
    assert side.mean.dtype == side.covariance.dtype == np.float64
    assert (side.num, side.features) == (0, None)


def test_statistics_beside_those_of_an_adm_file_are_not_taken(file, toy_network):
    other = dict(mu_s=np.zeros(3), sigma_s=np.eye(3))
    np.testing.assert_array_equal(statistics(file(mu=MEAN, sigma=COVARIANCE, **other), toy_network(), "--ref").mean, MEAN)


def test_of_statistics_beside_pictures_only_those_of_adm_s_own_features_count(file, toy_network):
    """As ADM's reference files have them: of more pictures than the file holds."""
    path = file(arr_0=np.zeros((4, 8, 8, 3), np.uint8), mu=MEAN, sigma=COVARIANCE)
    published = find(path, lambda: toy_network(name="inception", preset="adm"), None)
    np.testing.assert_array_equal(published.statistics.mean, MEAN)
    assert published.pictures.num == 4
    for facts in (dict(name="inception", preset="clean"), dict(name="efflite0", preset="adm")):
        found = find(path, functools.partial(toy_network, **facts), None)
        assert (found.statistics, found.pictures.num) == (None, 4)


def test_our_own_statistics_say_of_how_many_pictures_and_are_readable_by_others(tmp_path, toy_network):
    network = toy_network()
    write_statistics(tmp_path / "own.npz", side_of("fifty digits", "abc", ROWS), network)
    side = statistics(str(tmp_path / "own.npz"), network, "--ref")
    np.testing.assert_allclose(side.mean, MEAN, rtol=1e-6)
    np.testing.assert_allclose(side.covariance, COVARIANCE, rtol=1e-6)
    assert (side.num, side.fingerprint) == (50, "abc")  # a score against them is one against those pictures
    with np.load(tmp_path / "own.npz", allow_pickle=False) as plain:
        assert {"mu", "sigma"} <= set(plain.files)
    assert [path.name for path in tmp_path.iterdir()] == ["own.npz"]


@pytest.mark.parametrize("change", [dict(sha256="1" * 64), dict(preset="8x8")])
def test_our_own_statistics_of_other_weights_or_another_preset_are_refused(tmp_path, toy_network, change):
    write_statistics(tmp_path / "own.npz", side_of("fifty digits", "abc", ROWS), toy_network(**change))
    with pytest.raises(UserError, match=r"own\.npz was made with other features: (weights_sha256|preset) "):
        find(str(tmp_path / "own.npz"), toy_network, None)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (dict(mu=MEAN[:4], sigma=np.eye(4)), r"of another network: it holds a mean \[4\] and covariance \[4, 4\], where toy has 8"),
        (dict(mu=MEAN, sigma=np.eye(4)), "of another network"),
        (dict(mu=MEAN[None], sigma=COVARIANCE), "of another network"),
        (dict(mu=MEAN * np.nan, sigma=COVARIANCE), "not finite"),
        (dict(mu=MEAN, sigma=COVARIANCE * np.inf), "not finite"),
        (dict(mu=MEAN, sigma=COVARIANCE + np.triu(np.ones((8, 8)), 1)), "its covariance is not symmetric"),
        (dict(mu=MEAN), r"holds mu: neither pictures \(arr_0\) nor statistics \(mu, sigma\)"),
        (dict(), "holds nothing"),
        (dict(mu=np.array(["a"] * 8), sigma=COVARIANCE), "can be read"),
        (dict(mu=MEAN * 1j, sigma=COVARIANCE), "can be read"),
        (dict(mu=np.array([None] * 8), sigma=COVARIANCE), "can be read"),  # a pickle: nothing of it is run
        (dict(mu=MEAN, sigma=COVARIANCE, num=np.arange(3)), r"num is int64\[3\], where a whole number is expected"),
        (dict(mu=MEAN, sigma=COVARIANCE, num=2.5), r"num is float64\[\], where a whole number is expected"),
        (dict(mu=MEAN, sigma=COVARIANCE, about="{"), "can be read"),
        (dict(mu=MEAN, sigma=COVARIANCE, about="3"), "can be read"),
        (dict(x=ROWS), "holds x"),
    ],
)
def test_statistics_that_are_none_are_refused_in_a_line(file, toy_network, arrays, message):
    with pytest.raises(UserError, match=message) as refused:
        find(file(**arrays), toy_network, None)
    assert str(refused.value).startswith("--ref=")
    assert len(str(refused.value).splitlines()) == 1


def test_a_file_of_statistics_that_is_damaged_is_refused(file, toy_network):
    path = Path(file(mu=MEAN, sigma=COVARIANCE))
    content = path.read_bytes()
    path.write_bytes(content.replace(COVARIANCE[3].tobytes(), COVARIANCE[4].tobytes()))
    with pytest.raises(UserError, match=r"not an \.npz file that can be read \(Bad CRC-32"):
        find(str(path), toy_network, None)


def test_train_and_validation_are_splits_of_the_run_s_own_data(toy_network):
    source = digits()
    for split in ("train", "validation"):
        found = find(split, toy_network, lambda: source)
        assert found.pictures.num == len(source.splits[split]) == len(found.examples)
    with pytest.raises(UserError, match="--ref=train is a split of a run's own data, and there is no run"):
        find("train", toy_network, None)


def test_a_data_set_is_known_by_its_name_and_split(toy_network):
    source = digits()
    assert find("digits8", toy_network, None).pictures.num == len(source.splits["train"])
    assert find("digits8:validation", toy_network, None).pictures.num == len(source.splits["validation"])
    with pytest.raises(UserError, match="unknown split 'test'; known: train, validation"):
        find("digits8:test", toy_network, None)


def test_folders_and_files_of_pictures_are_references_too(file, toy_network, tmp_path):
    assert find(file(arr_0=np.zeros((3, 4, 4, 3), np.uint8)), toy_network, None).pictures.num == 3
    Image.new("L", (4, 4)).save(tmp_path / "one.png")
    assert find(str(tmp_path), toy_network, None).pictures.num == 1


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("digit8", r"unknown --ref 'digit8': did you mean 'digits8'"),
        ("nowhere/pictures", "^--ref=nowhere/pictures is not there$"),
        ("nowhere.npz", r"^--ref=nowhere\.npz is not there$"),
    ],
)
def test_an_unknown_reference_is_refused(toy_network, ref, message):
    with pytest.raises(UserError, match=message):
        find(ref, toy_network, None)


def test_what_our_statistics_say_of_themselves(tmp_path, toy_network):
    write_statistics(tmp_path / "own.npz", side_of("fifty digits", "abc", ROWS), toy_network())
    with np.load(tmp_path / "own.npz", allow_pickle=False) as plain:
        about = json.loads(str(plain["about"]))
    assert about == {
        "network": "toy", "weights_sha256": "0" * 64, "preset": "4x4", "pictures": "fifty digits", "pictures_fingerprint": "abc",
    }  # fmt: skip
