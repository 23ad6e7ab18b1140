"""Files of autoencoders, good and bad. They are compared with answers recorded by scripts/goldens/record_autoencoder_goldens.py."""

import hashlib
import json
import re
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
import record_autoencoder_goldens as recording
import safetensors.flax
import safetensors.numpy
from flax.traverse_util import flatten_dict

from tinygen.errors import UserError
from tinygen.pretrained import autoencoder, stable_diffusion_vae
from tinygen.pretrained.stable_diffusion_vae import from_file, named, public_name

GOLDEN = Path(__file__).parents[1] / "golden"
TENSORS = json.loads((GOLDEN / "autoencoder_tensors.json").read_text())
OLDER = (("to_q", "query"), ("to_k", "key"), ("to_v", "value"), ("to_out.0", "proj_attn"))
AUTHORS = (  # the names of the authors' own code, from diffusers'
    (r"encoder\.down_blocks\.(\d)\.resnets\.", r"encoder.down.\1.block."),
    (r"encoder\.down_blocks\.(\d)\.downsamplers\.0\.", r"encoder.down.\1.downsample."),
    (r"decoder\.up_blocks\.(\d)\.resnets\.", lambda found: f"decoder.up.{2 - int(found[1])}.block."),
    (r"decoder\.up_blocks\.(\d)\.upsamplers\.0\.", lambda found: f"decoder.up.{2 - int(found[1])}.upsample."),
    (r"mid_block\.resnets\.0\.", "mid.block_1."),
    (r"mid_block\.resnets\.1\.", "mid.block_2."),
    (r"mid_block\.attentions\.0\.", "mid.attn_1."),
    (r"group_norm\.", "norm."),
    (r"to_([qkv])\.", r"\1."),
    (r"to_out\.0\.", "proj_out."),
    ("conv_shortcut", "nin_shortcut"),
    ("conv_norm_out", "norm_out"),
)


@pytest.fixture(scope="module")
def arrays():
    """The small autoencoder's arrays under diffusers' names. Shared: only to be read."""
    return recording.weights({name: tuple(shape) for name, shape in TENSORS["small"].items()})


@pytest.fixture
def write(tmp_path):
    def save(arrays, name="vae.safetensors"):
        safetensors.numpy.save_file({key: np.ascontiguousarray(array) for key, array in arrays.items()}, tmp_path / name)
        return str(tmp_path / name)

    return save


def as_convolutions(arrays):
    """Attention's matrices as kernels of one pixel, as older files have them."""
    return {name: array[..., None, None] if array.ndim == 2 else array for name, array in arrays.items()}


def renamed(arrays, pairs):
    made = {}
    for name, array in arrays.items():
        for pattern, replacement in pairs:
            name = re.sub(pattern, replacement, name)
        made[name] = array
    assert len(made) == len(arrays)
    return made


def test_latents_and_pictures_are_those_of_diffusers(arrays, write):
    ours = autoencoder.load(write(arrays), "--vae")
    x, z = recording.inputs(recording.SMALL)
    got = dict(zip(("mean", "deviation"), jax.jit(ours.encode)(ours.variables, x), strict=True))
    got["decoded"] = jax.jit(ours.decode)(ours.variables, z)
    with np.load(GOLDEN / "autoencoder.npz") as golden:
        for name, array in golden.items():
            assert array.std() > 0.3
            np.testing.assert_allclose(got[name], array, rtol=0, atol=1e-4, err_msg=name)  # within 1e-5 where it was recorded


def test_what_is_told_of_a_file(arrays, write):
    path = write(arrays)
    ours = autoencoder.load(path, "--vae")
    assert (ours.name, ours.sha256) == ("vae.safetensors", hashlib.sha256(Path(path).read_bytes()).hexdigest())
    assert (ours.factor, ours.channels, ours.image_channels) == (4, 3, 3)


def test_every_tensor_of_stable_diffusion_s_autoencoder_has_its_place_and_no_place_is_without():
    shapes = {name: tuple(shape) for name, shape in TENSORS["public"].items()}
    assert sum(map(np.prod, shapes.values())) == 83_653_863
    assert named(shapes) == {name: name for name in shapes}
    sizes = stable_diffusion_vae.sizes_of(shapes)
    assert sizes == dict(shape=(8, 8, 3), widths=(128, 256, 512, 512), depth=2, latent=4, groups=32)
    params = stable_diffusion_vae.abstract(lambda rngs: stable_diffusion_vae.create(sizes, rngs))["params"]
    wanted = {public_name(path): leaf.shape for path, leaf in flatten_dict(params).items()}
    assert shapes.keys() == wanted.keys()
    for name, shape in shapes.items():
        laid_out = stable_diffusion_vae.matrix(np.broadcast_to(np.float32(0), shape), len(wanted[name]))  # of four bytes
        assert laid_out.shape == wanted[name], name


def test_older_names_and_layouts_and_the_authors_own_mean_the_same(arrays):
    _, newer = from_file(arrays)
    older = renamed(as_convolutions(arrays), OLDER)
    authors = renamed(as_convolutions(arrays), AUTHORS)
    whole = {f"first_stage_model.{name}": array for name, array in authors.items()}
    assert {"encoder.mid_block.attentions.0.query.weight", "encoder.mid_block.attentions.0.proj_attn.bias"} <= older.keys()
    assert {"decoder.up.2.upsample.conv.weight", "encoder.mid.attn_1.q.weight", "encoder.norm_out.bias"} <= authors.keys()
    whole |= {f"model.diffusion_model.{name}": array for name, array in authors.items()} | {"betas": np.zeros(3)}
    for other in (older, authors, whole):
        jax.tree.map(np.testing.assert_array_equal, from_file(other)[1], newer)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_half_precision_is_read_as_float32(arrays, dtype, tmp_path):
    path = str(tmp_path / "half.safetensors")
    safetensors.flax.save_file({name: jax.numpy.asarray(array, dtype) for name, array in arrays.items()}, path)
    half = autoencoder.load(path, "--vae").variables["params"]
    _, exact = from_file({name: array.astype(dtype).astype(np.float32) for name, array in arrays.items()})
    jax.tree.map(np.testing.assert_array_equal, half, exact)
    assert {leaf.dtype for leaf in jax.tree.leaves(half)} == {np.dtype("float32")}


def without(part):
    return lambda arrays: {name: array for name, array in arrays.items() if part not in name}


def changed(name, *shape, number=0.0, dtype=np.float32):
    return lambda arrays: {**arrays, name: np.full(shape, number, dtype)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without("post_quant_conv.bias"), r"it lacks post_quant_conv.bias$"),
        (without("up_blocks.0"), r"it lacks decoder.up_blocks.0.resnets.0\S+, \S+, \S+ and 15 more$"),
        (changed("loss.logvar"), r"it has, besides an autoencoder's, loss.logvar$"),
        (changed("encoder.conv_out.weight", 6, 96, 1, 1), r"another shape .* encoder.conv_out.weight \[6, 96, 1, 1\]$"),
        (changed("quant_conv.weight", 6, 6), r"another shape .* quant_conv.weight \[6, 6\]$"),
        (changed("encoder.conv_in.bias", 32, number=np.nan), r"no finite numbers: encoder.conv_in.bias$"),
        (changed("encoder.conv_in.bias", 32, dtype=np.int32), r"no finite numbers: encoder.conv_in.bias$"),
        (
            changed("first_stage_model.quant_conv.bias", 6),
            r"quant_conv.bias' and '(first_stage_model.)?quant_conv.bias' are the same tensor$",
        ),
        (changed("encoder.conv_in.weight", 10**9, 0, 3, 3), r"encoder.conv_in.weight is \[1000000000, 0, 3, 3\], where"),
        (without("encoder"), r"its encoder has 0 stages of 0 blocks"),
        (lambda arrays: {f"encoder.down_blocks.{n}.resnets.0.conv1.bias": np.zeros(1) for n in range(99)}, r"99 stages"),
        (changed("encoder.down_blocks.0.resnets.0.conv1.weight", 40, 32, 3, 3), r"40, 64, 96 features, not multiples of 32$"),
    ],
    ids=range(12),
)
def test_a_file_that_is_no_such_autoencoder_is_refused_with_the_first_tensors_that_are_wrong(arrays, write, change, said):
    path = write(change(arrays))
    with pytest.raises(UserError, match=said) as caught:
        autoencoder.load(path, "--vae")
    assert str(caught.value).startswith(f"--vae={path}: not an autoencoder of latent diffusion")
    assert "\n" not in str(caught.value)


def test_an_image_whose_sides_the_factor_does_not_divide_is_refused(arrays, write):
    ours = autoencoder.load(write(arrays), "--vae")
    with pytest.raises(UserError, match=r"images of 32x30: this autoencoder needs sides that are multiples of 4"):
        jax.eval_shape(ours.encode, ours.variables, np.zeros((1, 32, 30, 3), np.float32))


def test_a_place_where_nothing_is_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"--vae=.*nothing: there is no such file or folder"):
        autoencoder.load(str(tmp_path / "nothing"), "--vae")
    (tmp_path / "text.safetensors").write_text("no weights")
    with pytest.raises(UserError, match=r"text.safetensors: torn, or none of"):
        autoencoder.load(str(tmp_path / "text.safetensors"), "--vae")
