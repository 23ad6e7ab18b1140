import functools
from pathlib import Path

import jax
import numpy as np
import pytest
import record_fid_goldens

from tinygen.errors import UserError
from tinygen.evaluation.features import inception
from tinygen.evaluation.features import inception_blocks as blocks

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def golden():
    with np.load(ROOT / "tests" / "golden" / "inception.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def arrays():
    return record_fid_goldens.weights(inception.file_shapes())


@pytest.fixture(scope="module")
def file(arrays, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "random.npz"
    np.savez(path, **arrays)
    return str(path)


@pytest.fixture(scope="module")
def outputs(file):
    """outputs(preset): of the network for the golden images, all at once; compiled once for both presets."""
    apply = None

    def run(preset):
        nonlocal apply
        network = inception.inception(preset, file)
        apply = apply or jax.jit(network.apply)
        batch = np.stack([network.prepare(image) for image in record_fid_goldens.golden_images()])
        return jax.device_get(apply(network.variables, batch))

    return run


def apart(a, b):
    return np.linalg.norm(a - b, axis=1) / np.linalg.norm(b, axis=1)


def test_features_and_logits_are_torch_fidelitys(outputs, golden):
    found = outputs("adm")
    assert found["features"].dtype == np.float32
    assert apart(found["features"], golden["torch_fidelity"]).max() < 1e-4
    assert apart(found["logits"], golden["logits"]).max() < 1e-4  # the file's bias, which is not small, is left out


def test_features_are_pytorch_fids(outputs, golden):
    assert apart(outputs("pytorch-fid")["features"], golden["pytorch_fid"]).max() < 1e-4


def test_the_goldens_tell_images_and_resizing_apart(golden):
    features = golden["torch_fidelity"]
    assert np.linalg.norm(features - features.mean(0), axis=1).min() > 0.1 * np.linalg.norm(features, axis=1).max()
    assert apart(golden["pytorch_fid"], features).max() > 1e-2


def test_a_file_has_the_public_ones_arrays():
    shapes = inception.file_shapes()
    assert len(shapes) == 94 * 5 + 1
    trained = [np.prod(shape) for name, shape in shapes.items() if "running" not in name]
    assert sum(trained) + 1008 == 21_785_568 + 2049 * 1008  # torchvision's count of Inception-v3 below its classes, and 1,008 classes
    assert shapes["Mixed_6c.branch7x7dbl_3.conv.weight"] == (160, 160, 1, 7)
    assert shapes["fc.weight"] == (1008, 2048)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda arrays: arrays.pop("Mixed_7a.branch3x3_1.bn.bias"), "there is no Mixed_7a.branch3x3_1.bn.bias"),
        (lambda arrays: arrays.update({"fc.weight": arrays["fc.weight"][:1000]}), r"fc.weight is \(1000, 2048\), not \(1008, 2048\)"),
        (lambda arrays: arrays["Conv2d_1a_3x3.conv.weight"].fill(np.nan), "Conv2d_1a_3x3.conv.weight is not finite"),
    ],
    ids=["missing", "of another shape", "not finite"],
)
def test_the_first_wrong_array_is_named(arrays, tmp_path, change, said):
    small = {name: np.array(array) for name, array in arrays.items()}
    change(small)
    with pytest.raises(ValueError, match=said):
        inception.from_file(small)


def test_another_networks_weights_are_refused_in_one_line(tmp_path):
    np.savez(tmp_path / "other.npz", kernel=np.zeros(3))
    with pytest.raises(UserError, match=r"other.npz: not Inception-v3 as FID has it: there is no .*pt_inception-2015-12-05"):
        inception.inception("adm", str(tmp_path / "other.npz"))


def test_an_unknown_preset_is_refused_before_weights_are_looked_for():
    with pytest.raises(UserError, match="unknown preset 'cleam': did you mean 'clean'"):
        inception.inception("cleam", "/nowhere")


def test_the_network_says_which_weights_it_has_and_only_the_public_ones_give_a_fid(file, caplog, monkeypatch):
    network = inception.inception("clean", file)
    assert (network.name, network.distance, network.dim, network.preset, network.size) == (
        "inception",
        "FD-Inception",
        2048,
        "clean",
        (299, 299),
    )
    assert len(network.sha256) == 64
    assert "are not the public file" in caplog.text
    monkeypatch.setattr(inception, "PUBLIC", network.sha256)
    caplog.clear()
    assert inception.inception("clean", file).distance == "FID"
    assert not caplog.messages


def brute(x, reduce, stride, around):
    """Pooling over 3x3 by its definition: of the pixels that are inside the picture."""
    H, W = x.shape[1:3]
    centres = [range(0 if around else 1, length if around else length - 1, stride) for length in (H, W)]
    rows = [[reduce(x[:, max(i - 1, 0) : i + 2, max(j - 1, 0) : j + 2], axis=(1, 2)) for j in centres[1]] for i in centres[0]]
    return np.stack([np.stack(row, 1) for row in rows], 1)


@pytest.mark.parametrize(
    ("pool", "reduce", "stride", "around"),
    [
        (blocks.average, np.mean, 1, True),
        (functools.partial(blocks.maximum, stride=1), np.max, 1, True),
        (blocks.maximum, np.max, 2, False),
    ],
    ids=["average", "maximum around", "maximum at stride 2"],
)
def test_pooling_counts_pixels_inside_the_picture_only(pool, reduce, stride, around):
    x = np.random.default_rng(0).normal(size=(2, 7, 8, 3)).astype(np.float32) - 3  # below zero: a zero outside would be the largest
    np.testing.assert_allclose(pool(x), brute(x, reduce, stride, around), atol=1e-6)
