"""Features on the disk: interrupted work goes on, a reference's stay, samples' go when their score has been given."""

import dataclasses
import functools
import shutil
import threading

import jax
import numpy as np
import pytest

from tinygen.distributed.mesh import Layout, make_mesh
from tinygen.errors import UserError
from tinygen.evaluation.features import collecting, extraction
from tinygen.evaluation.features.collecting import Unwanted, collected, forget
from tinygen.evaluation.features.extraction import extractor
from tinygen.evaluation.images import Pictures

NUM = 40
IMAGES = np.random.default_rng(0).integers(0, 256, (NUM, 5, 5, 3), np.uint8)


class Killed(BaseException):
    """As a signal would end the process."""


@pytest.fixture(autouse=True)
def kept_features(tmp_path, monkeypatch):
    """The folder where this test's features lie while they grow, a few at a time."""
    monkeypatch.setattr(extraction, "ON_CPU", 4)
    monkeypatch.setattr(collecting, "KEPT", 8)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tinygen" / "features"


@pytest.fixture
def using(toy_network):
    return extractor(toy_network(), Layout(make_mesh(dict(data=-1, fsdp=1, tensor=1), jax.devices()[:1])))


@pytest.fixture
def pictures():
    """pictures(stops=N): those images; `read` counts which were asked for, and the process ends when number N is."""

    def make(stops=None, num=NUM, fingerprint="forty"):
        asked = []

        def reads(start):
            for index in range(start, NUM):  # on beyond `num`, as a folder does of which the first few are taken
                if index == stops:
                    raise Killed
                asked.append(index)
                yield functools.partial(IMAGES.__getitem__, index)

        made = Pictures(name="forty", num=num, fingerprint=fingerprint, reads=reads)
        return made, asked

    return make


def test_samples_that_are_the_reference_leave_its_features_where_they_are(pictures, using, kept_features):
    made, asked = pictures()
    features(made, using, reference=True)
    features(made, using, keep=False)
    features(made, using, reference=True)
    assert len(asked) == 2 * NUM


def test_another_call_waits_for_the_one_that_takes_the_same_features(pictures, using, capfd):
    made, asked = pictures()
    second = []
    with collected(made, using, "features", keep=False) as side:
        thread = threading.Thread(target=lambda: second.append(features(made, using, keep=False)))
        thread.start()
        thread.join(0.5)
        assert not second
        first = np.array(side.features)
    thread.join(60)
    np.testing.assert_array_equal(second[0].features, first)
    assert "waiting for it" in capfd.readouterr().err


def features(made, using, **options):
    with collected(made, using, "features", **{"keep": True, **options}) as side:
        return dataclasses.replace(side, features=np.array(side.features), logits=None if side.logits is None else np.array(side.logits))


def test_a_side_has_the_features_their_moments_and_the_pictures_name(pictures, using):
    network = using.network
    expected = np.asarray(network.apply(network.variables, np.stack([network.prepare(image) for image in IMAGES]))["features"])
    side = features(pictures()[0], using)
    np.testing.assert_allclose(side.features, expected, atol=2e-6)
    np.testing.assert_allclose(side.mean, side.features.mean(0), atol=1e-6)
    np.testing.assert_allclose(side.covariance, np.cov(side.features.astype(float), rowvar=False), rtol=1e-9, atol=1e-12)
    assert (side.name, side.num, side.fingerprint, side.logits) == ("forty", NUM, "forty", None)


def test_interrupted_work_is_resumed_and_ends_with_the_same_bits(pictures, using, kept_features):
    with pytest.raises(Killed):
        features(pictures(stops=30)[0], using, keep=False)
    assert list(kept_features.iterdir())
    again, asked = pictures()
    resumed = features(again, using, keep=False).features
    assert asked[0] > 4  # what was on the disk is not read again
    assert asked == list(range(asked[0], NUM))
    assert not list(kept_features.iterdir())
    np.testing.assert_array_equal(resumed, features(pictures()[0], using).features)


def test_no_lock_is_left(pictures, using, kept_features):
    made, _ = pictures()
    features(made, using, keep=False)
    assert list(kept_features.iterdir()) == []
    features(made, using)
    assert not list(kept_features.glob("*.lock"))
    forget(using.network, made)
    assert list(kept_features.iterdir()) == []


def test_calls_one_after_another_never_hold_a_lock_that_was_deleted(pictures, using, monkeypatch):
    made, _ = pictures()
    inside, most = [], []
    side = collecting._side

    def counted(*arguments):
        inside.append(None)
        most.append(len(inside))
        found = side(*arguments)
        inside.pop()
        return found

    monkeypatch.setattr(collecting, "_side", counted)
    threads = [threading.Thread(target=features, args=(made, using), kwargs=dict(keep=False)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 6


def test_a_cache_that_is_emptied_meanwhile_is_told_in_a_line(pictures, using, kept_features, monkeypatch):
    write = collecting._write
    monkeypatch.setattr(collecting, "_write", lambda *arguments: [write(*arguments), shutil.rmtree(kept_features)][0])
    with pytest.raises(UserError, match="was emptied while it was being written"):
        features(pictures()[0], using)


def test_a_reference_s_features_stay_and_are_not_taken_again(pictures, using, kept_features):
    first = features(pictures()[0], using, keep=True).features
    again, asked = pictures()
    np.testing.assert_array_equal(features(again, using, keep=True).features, first)
    assert asked == []


def test_samples_features_are_deleted_once_scored_and_kept_otherwise(pictures, using, kept_features):
    with pytest.raises(UserError), collected(pictures()[0], using, "samples", keep=False):
        raise UserError("the record cannot be written")
    assert list(kept_features.iterdir())
    again, asked = pictures()
    features(again, using, keep=False)
    assert asked == []
    assert not list(kept_features.iterdir())


@pytest.mark.parametrize(
    "change", [dict(sha256="1" * 64), dict(name="other"), dict(preset="8x8")], ids=["other weights", "another network", "another preset"]
)
def test_features_of_other_networks_are_not_taken_for_these(pictures, using, toy_network, change):
    features(pictures()[0], using)
    again, asked = pictures()
    features(again, using._replace(network=toy_network(**change)))
    assert asked == list(range(NUM))


def test_other_pictures_have_features_of_their_own(pictures, using):
    features(pictures()[0], using)
    again, asked = pictures(fingerprint="others")
    features(again, using)
    assert asked == list(range(NUM))


def test_fewer_pictures_than_lie_on_the_disk_are_scored_as_those_alone(pictures, using):
    """As of samples whose call for more of them was interrupted: their fingerprint says which they are, not how many."""
    whole = features(pictures()[0], using, logits=True)
    few, asked = pictures(num=12)
    side = features(few, using, logits=True)
    assert asked == []
    assert side.num == len(side.features) == len(side.logits) == 12
    np.testing.assert_array_equal(side.features, whole.features[:12])
    np.testing.assert_allclose(side.mean, whole.features[:12].mean(0), atol=1e-6)


def test_logits_come_with_features_that_are_there_already(pictures, using):
    plain = features(pictures()[0], using)
    both = features(pictures()[0], using, logits=True)
    np.testing.assert_array_equal(both.features, plain.features)
    np.testing.assert_allclose(both.logits, both.features @ using.network.variables[1], atol=1e-5)


@pytest.mark.parametrize("ahead", ["features", "logits"])
def test_features_and_logits_that_are_out_of_step_come_together_again(pictures, using, kept_features, ahead):
    expected = features(pictures()[0], using, logits=True)
    whole = {path.name: path.read_bytes() for path in kept_features.iterdir()}
    for path in kept_features.iterdir():
        path.unlink()
    with pytest.raises(Killed):
        features(pictures(stops=20)[0], using, logits=True)
    for name, content in whole.items():  # a process killed between the one's rows and the other's
        if ("logits" in name) == (ahead == "logits"):
            (kept_features / name).write_bytes(content)
    side = features(pictures()[0], using, logits=True)
    np.testing.assert_array_equal(side.features, expected.features)
    np.testing.assert_array_equal(side.logits, expected.logits)


def test_work_that_is_no_longer_wanted_is_kept_for_the_next_time(pictures, using):
    asked_whether = []

    def unwanted():
        asked_whether.append(True)
        return len(asked_whether) > 5

    with pytest.raises(Unwanted):
        features(pictures()[0], using, unwanted=unwanted)
    again, asked = pictures()
    features(again, using)
    assert 4 <= asked[0] <= 20


def test_features_that_are_not_finite_name_the_picture_and_none_are_kept(pictures, using, toy_network):
    def poisoned(image):
        prepared = using.network.prepare(image)
        return prepared * np.nan if np.array_equal(image, IMAGES[13]) else prepared

    with pytest.raises(UserError, match=r"image 13 \(counted from 0\) are not finite"):
        features(pictures()[0], using._replace(network=toy_network(prepare=poisoned)))
    again, asked = pictures()
    features(again, using)
    assert asked[0] <= 13


def test_on_no_terminal_a_line_from_time_to_time_says_how_far_it_is(pictures, using, monkeypatch, capsys):
    monkeypatch.setattr(collecting, "PAUSE", 0.0)
    features(pictures()[0], using)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("features: 4 of 40, ")
    assert lines[-1].endswith(" per second, 0 s left")
