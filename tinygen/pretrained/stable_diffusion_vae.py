"""Files of latent diffusion's public autoencoders: tensor names and layouts, and sizes derived from the shapes.

Names are those of Hugging Face's diffusers (AutoencoderKL, old and new), or of the authors' code (CompVis), with or without the prefix
`first_stage_model.` of a full checkpoint, whose other networks are ignored. Kernels are PyTorch's: [C', C, height, width],
[outputs, inputs].
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict

from tinygen.models.autoencoder import Autoencoder
from tinygen.train_step import Tree, split

GROUPS = 32  # in all public autoencoders; not visible in the shapes
MOST = {"stages": 8, "blocks": 16, "features": 2**13}
SHOWN = 3  # names in a message
WHOLE = "model.diffusion_model."  # prefix of the denoiser in a full checkpoint

Path = tuple[str, ...]
Renaming = tuple[str, str | Callable[[re.Match[str]], str]]

OLDER: tuple[Renaming, ...] = (  # applied in order: names in a file -> diffusers' current names
    (r"^first_stage_model\.", ""),
    (r"\.down\.(\d+)\.block\.", r".down_blocks.\1.resnets."),
    (r"\.down\.(\d+)\.downsample\.", r".down_blocks.\1.downsamplers.0."),
    (r"\.mid\.block_1\.", ".mid_block.resnets.0."),
    (r"\.mid\.block_2\.", ".mid_block.resnets.1."),
    (r"\.mid\.attn_1\.", ".mid_block.attentions.0."),
    (r"\.down\.(\d+)\.attn\.", r".down_blocks.\1.attentions."),
    (r"(attentions\.\d+)\.norm\.", r"\1.group_norm."),
    (r"(attentions\.\d+)\.(query|q)\.", r"\1.to_q."),
    (r"(attentions\.\d+)\.(key|k)\.", r"\1.to_k."),
    (r"(attentions\.\d+)\.(value|v)\.", r"\1.to_v."),
    (r"(attentions\.\d+)\.(proj_attn|proj_out)\.", r"\1.to_out.0."),
    (r"\.nin_shortcut\.", ".conv_shortcut."),
    (r"\.norm_out\.", ".conv_norm_out."),
)
PUBLIC: tuple[Renaming, ...] = (  # applied in order: the model's paths -> diffusers' names
    (r"^(encoder|decoder)\.(stem|out)\.", lambda found: f"{found[1]}.conv_{'in' if found[2] == 'stem' else 'out'}."),
    (r"^(encoder|decoder)\.norm\.", r"\1.conv_norm_out."),
    (r"^encoder\.stages\.(\d+)\.resample\.", r"encoder.down_blocks.\1.downsamplers.0.conv."),
    (r"^decoder\.stages\.(\d+)\.resample\.", r"decoder.up_blocks.\1.upsamplers.0.conv."),
    (r"^encoder\.stages\.(\d+)\.blocks\.", r"encoder.down_blocks.\1.resnets."),
    (r"^decoder\.stages\.(\d+)\.blocks\.", r"decoder.up_blocks.\1.resnets."),
    (r"\.middle\.first\.", ".mid_block.resnets.0."),
    (r"\.middle\.second\.", ".mid_block.resnets.1."),
    (r"\.middle\.(norm|attention)\.", r".mid_block.attentions.0.\1."),
    (r"^encoder\.stages\.(\d+)\.attentions\.", r"encoder.down_blocks.\1.attentions."),
    (r"^decoder\.stages\.(\d+)\.attentions\.", r"decoder.up_blocks.\1.attentions."),
    (r"(attentions\.\d+)\.norm\.", r"\1.group_norm."),
    (r"(attentions\.\d+)\.attention\.(q|k|v)\w+\.", r"\1.to_\2."),
    (r"(attentions\.\d+)\.attention\.out\.", r"\1.to_out.0."),
    (r"\.norm_(first|second)\.", lambda found: f".norm{1 if found[1] == 'first' else 2}."),
    (r"\.(first|second)\.", lambda found: f".conv{1 if found[1] == 'first' else 2}."),
    (r"\.skip\.", ".conv_shortcut."),
    (r"^(post_)?quant\.", r"\1quant_conv."),
    (r"\.(kernel|scale)$", ".weight"),
)


def from_file(arrays: Mapping[str, np.ndarray]) -> tuple[dict[str, Any], Tree]:
    """(sizes as keywords of `Autoencoder`, including the smallest image shape; parameters in float32) from a file's arrays.

    Raises ValueError that names the first arrays that are missing, unexpected, of the wrong shape, or not finite.
    """
    if any(name.startswith(WHOLE) for name in arrays):
        arrays = {name: array for name, array in arrays.items() if name.startswith("first_stage_model.")}
    names = named(arrays)
    sizes = sizes_of({public: arrays[name].shape for public, name in names.items()})
    return sizes, parameters(arrays, names, abstract(lambda rngs: create(sizes, rngs))["params"])


def parameters(arrays: Mapping[str, np.ndarray], names: Mapping[str, str], wanted: Tree) -> Tree:
    """A file's arrays in float32 in place of the shapes `wanted`. names: of the arrays, by their names in diffusers

    Raises ValueError that names the first arrays that are missing, unexpected, of the wrong shape, or not finite.
    """
    leaves: dict[Path, Any] = dict(flatten_dict(wanted))  # pyright: ignore[reportAssignmentType]
    places = {public_name(path): (path, leaf.shape) for path, leaf in leaves.items()}
    _refuse("it lacks", [public for public in places if public not in names])
    _refuse("it has, besides an autoencoder's,", [name for public, name in names.items() if public not in places])
    turned = {public: matrix(arrays[names[public]], len(shape)) for public, (_, shape) in places.items()}
    other = [
        f"{names[public]} {list(arrays[names[public]].shape)}" for public, (_, shape) in places.items() if turned[public].shape != shape
    ]
    _refuse("of another shape than its other tensors ask for:", other)
    numbers = {public: np.asarray(array, np.float32) for public, array in turned.items() if jnp.issubdtype(array.dtype, jnp.floating)}
    odd = [names[public] for public in places if public not in numbers or not np.isfinite(numbers[public]).all()]
    _refuse("no finite numbers:", odd)
    return unflatten_dict({path: numbers[public] for public, (path, _) in places.items()})


def named(arrays: Collection[str]) -> dict[str, str]:
    """The names in a file, by diffusers' current names. Raises ValueError if two map to the same name."""
    counted = [int(found[1]) for name in arrays if (found := re.search(r"\.up\.(\d{1,4})\.", name))]
    # The authors number the decoder's stages from the highest resolution to the lowest, opposite to the order of computation.
    turned: tuple[Renaming, ...] = (
        (r"\.up\.(\d{1,4})\.block\.", lambda found: f".up_blocks.{max(counted) - int(found[1])}.resnets."),
        (r"\.up\.(\d{1,4})\.attn\.", lambda found: f".up_blocks.{max(counted) - int(found[1])}.attentions."),
        (r"\.up\.(\d{1,4})\.upsample\.", lambda found: f".up_blocks.{max(counted) - int(found[1])}.upsamplers.0."),
    )
    names: dict[str, str] = {}
    for name in arrays:
        public = renamed(name, (*turned, *OLDER))
        if public in names:
            raise ValueError(f"{names[public][:80]!a} and {name[:80]!a} are the same tensor")
        names[public] = name
    return names


def public_name(path: Path) -> str:
    """diffusers' name of a parameter: "encoder.down_blocks.0.resnets.1.conv1.weight"."""
    return renamed(".".join(path), PUBLIC)


def renamed(name: str, renamings: Iterable[Renaming]) -> str:
    for pattern, replacement in renamings:
        name = re.sub(pattern, replacement, name)
    return name


def sizes_of(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Keywords of `Autoencoder` derived from the shapes by diffusers' names. Raises ValueError if they are inconsistent or too large."""
    return pyramid_of(shapes) | dict(latent=features(shapes, "post_quant_conv.weight", 0))


def pyramid_of(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """The keywords that models with this encoder and decoder have in common."""

    def counted(prefix: str) -> int:
        return len({found[1] for name in shapes if (found := re.match(rf"{re.escape(prefix)}\.(\d+)\.", name))})

    stages, depth = counted("encoder.down_blocks"), counted("encoder.down_blocks.0.resnets")
    if not (0 < stages <= MOST["stages"] and 0 < depth <= MOST["blocks"]):
        raise ValueError(f"its encoder has {stages} stages of {depth} blocks, unlike any of latent diffusion's")
    widths = tuple(features(shapes, f"encoder.down_blocks.{stage}.resnets.0.conv1.weight", 0) for stage in range(stages))
    if any(width % GROUPS for width in widths):
        raise ValueError(f"its stages have {', '.join(map(str, widths))} features, not multiples of {GROUPS}")
    factor, channels = 2 ** (stages - 1), features(shapes, "encoder.conv_in.weight", 1)
    return dict(shape=(factor, factor, channels), widths=widths, depth=depth, groups=GROUPS)


def features(shapes: Mapping[str, tuple[int, ...]], name: str, axis: int) -> int:
    """A size of a convolution's kernel. Raises ValueError if there is no such kernel, or it is too large."""
    shape = shapes.get(name, ())
    if len(shape) != 4 or not 0 < shape[axis] <= MOST["features"]:
        raise ValueError(f"{name} is {list(shape[:4]) if shape else 'missing'}, where an autoencoder has a convolution's kernel")
    return shape[axis]


def create(sizes: Mapping[str, Any], rngs: nnx.Rngs) -> Autoencoder:
    return Autoencoder(**sizes, precision="float32", attention="auto", needs_jvp=False, rngs=rngs)


def abstract(create: Callable[[nnx.Rngs], nnx.Module]) -> dict[str, Tree]:
    """The shapes of a model's variables: "params" and "buffers"."""
    _, params, buffers = split(nnx.eval_shape(lambda: create(nnx.Rngs(0))))
    return {"params": params, "buffers": buffers}


def matrix(array: np.ndarray, dimensions: int) -> np.ndarray:
    """A file's array in the model's layout: a kernel [C', C, h, w] -> [h, w, C, C'], a matrix [D', D] or [D', D, 1, 1] -> [D, D']."""
    if dimensions == 2 and array.ndim == 4 and array.shape[2:] == (1, 1):
        array = array[..., 0, 0]
    if array.ndim != dimensions:
        return array
    return array.transpose(2, 3, 1, 0) if dimensions == 4 else array.T


def _refuse(what: str, names: list[str]) -> None:
    if names:
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        raise ValueError(f"{what} {', '.join(ascii(name[:80])[1:-1] for name in names[:SHOWN])}{more}")
