"""Files of VQGAN with random weights, good and bad, against the authors' architecture in tests/shared/small_vqgan.py."""

import hashlib
from pathlib import Path

import jax
import numpy as np
import pytest
import record_autoencoder_goldens as recording
import safetensors.numpy
import small_vqgan

from tinygen.errors import UserError
from tinygen.pretrained import autoencoder, vqgan
from tinygen.pretrained.stable_diffusion_vae import named

SIZES = dict(widths=(32, 64, 96), depth=1, codes=50, width=8)


@pytest.fixture(scope="module", params=[False, True], ids=["middle", "attends"])
def attends(request):
    return request.param


@pytest.fixture(scope="module")
def arrays(attends):
    """Shared: only to be read."""
    return small_vqgan.arrays(**SIZES, attends=attends)


@pytest.fixture
def write(tmp_path):
    def save(arrays, name="vqgan.safetensors"):
        safetensors.numpy.save_file({key: np.ascontiguousarray(array) for key, array in arrays.items()}, tmp_path / name)
        return str(tmp_path / name)

    return save


def test_tokens_and_pictures_are_those_of_the_authors_architecture(arrays, attends, write):
    path = write(arrays)
    ours = autoencoder.load(path, "--autoencoder")
    assert (ours.name, ours.sha256) == ("vqgan.safetensors", hashlib.sha256(Path(path).read_bytes()).hexdigest())
    assert (ours.factor, ours.codes, ours.channels, ours.image_channels) == (4, 50, 1, 3)
    reference = small_vqgan.Reference(arrays, last=2, depth=1)
    x = recording.picture(32)
    want, distances = reference.encode(x.transpose(0, 3, 1, 2))
    tokens = np.asarray(jax.jit(ours.encode)(ours.variables, x))
    assert len(np.unique(tokens)) > 5
    chosen = np.take_along_axis(distances, tokens[..., None], -1)[..., 0]
    np.testing.assert_allclose(chosen, distances.min(-1), rtol=1e-3)  # of two codes as near, either
    assert np.mean(tokens == want) > 0.95
    decoded = jax.jit(ours.decode)(ours.variables, want.astype(np.int32))
    truth = reference.decode(want).transpose(0, 2, 3, 1)
    assert truth.std() > 0.1
    np.testing.assert_allclose(decoded, truth, rtol=0, atol=1e-4 * np.abs(truth).max())


def test_sizes_are_read_off_the_shapes_of_the_public_f16_model():
    shapes = small_vqgan.shapes(widths=(128, 128, 256, 256, 512), depth=2, codes=1024, width=256, attends=True)
    book = shapes.pop(vqgan.CODEBOOK)
    sizes = vqgan.sizes_of({public: shapes[name] for public, name in named(shapes).items()}, book)
    assert sizes == dict(shape=(16, 16, 3), widths=(128, 128, 256, 256, 512), depth=2, groups=32, attends=True, codes=1024, code_width=256)


def test_every_array_has_its_place_and_the_networks_of_the_loss_are_ignored(arrays, attends):
    sizes, variables = vqgan.from_file({**arrays, "loss.discriminator.main.0.weight": np.zeros((4, 3, 4, 4), np.float32)})
    assert sizes["attends"] is attends
    leaves = jax.tree.leaves(variables["params"])
    assert len(leaves) == len(arrays) - 1
    assert sum(map(np.size, leaves)) == sum(array.size for name, array in arrays.items() if name != vqgan.CODEBOOK)
    np.testing.assert_array_equal(variables["buffers"]["quantizer"]["sums"], arrays[vqgan.CODEBOOK])


def without(part):
    return lambda arrays: {name: array for name, array in arrays.items() if part not in name}


def changed(name, *shape, number=0.0):
    return lambda arrays: {**arrays, name: np.full(shape, number, np.float32)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (changed("quantize.embedding.weight", 1, 8), r"quantize\.embedding\.weight is \[1, 8\], where"),
        (changed("quantize.embedding.weight", 50, 8, number=np.nan), r"no finite numbers: quantize\.embedding\.weight$"),
        (changed("quantize.embedding.weight", 50, 9), r"another shape .*conv_out\.weight"),
        (without("decoder.mid.attn_1.q.bias"), r"it lacks decoder\.mid_block\.attentions\.0\.to_q\.bias$"),
        (changed("encoder.extra", 3), r"it has, besides an autoencoder's, encoder\.extra$"),
    ],
    ids=range(5),
)
def test_a_file_that_is_no_vqgan_is_refused_with_the_first_tensors_that_are_wrong(arrays, write, change, said):
    path = write(change(arrays))
    with pytest.raises(UserError, match=said) as caught:
        autoencoder.load(path, "--autoencoder")
    assert str(caught.value).startswith(f"--autoencoder={path}: not a tokenizer of VQGAN: ")


def test_a_place_where_nothing_is_and_a_run_of_another_objective_are_refused(classifier, tmp_path):
    with pytest.raises(UserError, match=r"--autoencoder=.*nothing: there is no such file or folder"):
        autoencoder.load(str(tmp_path / "nothing"), "--autoencoder")
    with pytest.raises(UserError, match=r"objective 'classification' has no latents\.\n.*fsq_faces"):
        autoencoder.load(str(classifier), "--autoencoder")
