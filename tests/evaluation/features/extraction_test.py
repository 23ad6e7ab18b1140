"""Features of pictures: the same however the pictures are batched, and by whatever number of devices."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tinygen.distributed.mesh import Layout, make_mesh
from tinygen.errors import UserError
from tinygen.evaluation.features import extraction, load
from tinygen.evaluation.features.extraction import extract, extractor

SIZES = np.random.default_rng(0).integers(1, 12, (41, 2))
IMAGES = [np.random.default_rng(index).integers(0, 256, (*size, 3), np.uint8) for index, size in enumerate(SIZES)]


def layout(devices):
    return Layout(make_mesh(dict(data=-1, fsdp=1, tensor=1), jax.devices()[:devices]))


@pytest.fixture
def taken(toy_network, monkeypatch):
    """taken(images a device, devices): what the toy network gives of the images, and the sizes that it came in."""

    def run(each, devices, network=None, images=IMAGES):
        monkeypatch.setattr(extraction, "ON_CPU", each)
        using = extractor(network or toy_network(), layout(devices))
        given = list(extract(iter([lambda image=image: image for image in images]), using))
        return {name: np.concatenate([part[name] for part in given]) for name in given[0]}, [len(part["features"]) for part in given]

    return run


def test_features_are_those_of_the_network_in_the_order_of_the_pictures(taken, toy_network):
    network = toy_network()
    expected = network.apply(network.variables, jnp.stack([network.prepare(image) for image in IMAGES]))
    got, _ = taken(4, 1)
    assert got.keys() == {"features", "logits"}
    for name, rows in got.items():
        np.testing.assert_allclose(rows, expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("each", "devices"), [(1, 1), (3, 1), (64, 1), (4, 2), (5, 8), (8, 8)])
def test_neither_the_size_of_batches_nor_the_number_of_devices_changes_a_feature(taken, each, devices):
    one, _ = taken(16, 1)
    other, sizes = taken(each, devices)
    for name in one:
        np.testing.assert_allclose(other[name], one[name], rtol=0, atol=2e-6)  # of float32 below 1: XLA sums in another order
    assert sum(sizes) == len(IMAGES)
    assert set(sizes[:-1]) <= {each * devices}  # only the last one is filled up, and what filled it is not given


@pytest.mark.parametrize("devices", [2, 8])
def test_devices_that_get_as_many_pictures_as_one_give_the_same_bits(taken, devices):
    one, many = taken(8, 1)[0], taken(8, devices)[0]
    for name in one:
        np.testing.assert_array_equal(many[name], one[name])


def test_a_classifier_s_features_differ_by_rounding_at_most_on_one_two_and_eight_devices(taken, classifier):
    network = load.of_run(str(classifier))
    images = IMAGES[:12]
    one = taken(4, 1, network, images)[0]["features"]
    assert one.std(0).min() > 0
    for devices in (2, 8):
        # XLA may sum a batch of another size in another order
        np.testing.assert_allclose(taken(4, devices, network, images)[0]["features"], one, rtol=1e-5, atol=1e-6)


def test_no_pictures_have_no_features(toy_network):
    assert list(extract(iter(()), extractor(toy_network(), layout(1)))) == []


@pytest.mark.parametrize("where", ["read", "prepare"])
def test_what_goes_wrong_in_a_thread_reaches_the_caller_and_the_threads_end(toy_network, where):
    def broken(*image):
        raise UserError("3.png cannot be read")

    network = toy_network(prepare=broken) if where == "prepare" else toy_network()
    reads = [lambda image=image: image for image in IMAGES]
    reads[3] = broken
    with pytest.raises(UserError, match=r"^3\.png cannot be read$"):
        list(extract(iter(reads), extractor(network, layout(1))))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("pictures")]


def test_what_goes_wrong_in_listing_the_pictures_reaches_the_caller(toy_network):
    def listed():
        yield lambda: IMAGES[0]
        raise UserError("the file ends here")

    with pytest.raises(UserError, match=r"^the file ends here$"):
        list(extract(listed(), extractor(toy_network(), layout(1))))


def test_pictures_are_prepared_ahead_but_not_without_bound(toy_network, monkeypatch):
    monkeypatch.setattr(extraction, "ON_CPU", 2)
    listed = []

    def reads():
        for index in range(1000):
            listed.append(index)
            yield lambda: IMAGES[0]

    given = extract(reads(), extractor(toy_network(), layout(1)))
    next(given)
    assert 4 < len(listed) < 20
    given.close()


def test_it_ends_before_the_next_batch_once_it_is_unwanted(toy_network, monkeypatch):
    monkeypatch.setattr(extraction, "ON_CPU", 2)
    asked = []

    def unwanted():
        asked.append(True)
        return len(asked) > 3

    given = list(extract(iter([lambda: IMAGES[0]] * 1000), extractor(toy_network(), layout(1)), unwanted))
    assert len(given) in (2, 3)  # what was under way need not be waited for
    assert len(asked) == 4


def test_where_a_batch_would_not_fit_a_device_there_are_fewer_at_once(toy_network, monkeypatch):
    def hungry(variables, x):
        pairs = jnp.tanh(jnp.einsum("ihwc,jhwc->ij", x, x)[..., None, None] * jnp.ones((100, 100)))
        return {"features": jnp.zeros((len(x), 8)) + jnp.sort(pairs, 2).sum() * 0}

    network = toy_network(apply=hungry)
    whole = extractor(network, layout(1))
    monkeypatch.setattr(extraction.limits, "device_bytes", lambda: whole.step.memory_analysis().temp_size_in_bytes)
    assert whole.size == extraction.ON_CPU
    assert 1 <= extractor(network, layout(1)).size < whole.size
    monkeypatch.setattr(extraction.limits, "device_bytes", lambda: 0)
    assert extractor(network, layout(1)).size == 1


def test_no_more_pictures_are_read_ahead_than_threads_can_prepare(toy_network, monkeypatch):
    """As read they may be large: a batch of them need not fit into memory."""
    monkeypatch.setattr(extraction.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(extraction, "ON_CPU", 16)
    network, waiting, most = toy_network(), [], []

    def prepare(image):
        waiting.remove(id(image))
        return network.prepare(image)

    def reads():
        for image in IMAGES:
            waiting.append(id(image))
            most.append(len(waiting))
            yield lambda image=image: image

    using = extractor(toy_network(prepare=prepare), layout(1))
    assert sum(len(each["features"]) for each in extract(reads(), using)) == len(IMAGES)
    assert max(most) <= 2 + 1 + 1  # under way, read last, read next
