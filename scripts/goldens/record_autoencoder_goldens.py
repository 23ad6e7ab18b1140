"""Records the outputs of diffusers' autoencoder for a seeded picture and latent.

They are for tests/pretrained/stable_diffusion_vae_test.py, which does not need PyTorch.

    python scripts/goldens/record_autoencoder_goldens.py record         writes tests/golden/autoencoder*
    python scripts/goldens/record_autoencoder_goldens.py public FOLDER  once: a full-size file and diffusers' outputs
    python scripts/goldens/record_autoencoder_goldens.py compare FOLDER compare tinygen's autoencoder on the same file

The first two need an interpreter with torch, diffusers and safetensors and run on the CPU; the last needs tinygen.
Weights, picture and latent are seeded NumPy arrays, so only the outputs and the names and shapes of tensors are
recorded.

The random weights keep the output of every layer and the attention scores near one, so that all of them affect the
result.
"""

import argparse
import importlib
import json
import re
import sys
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"
SEED = 0
SMALL = dict(widths=(32, 64, 96), depth=1, latent=3, side=32)  # side: size of the picture
PUBLIC = dict(widths=(128, 256, 512, 512), depth=2, latent=4, side=128)
FILE = "diffusion_pytorch_model.safetensors"


def weights(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """float32 arrays by their names in diffusers, each seeded by its name, so that the order does not matter."""
    arrays = {}
    for name, shape in shapes.items():
        random = np.random.default_rng([SEED, zlib.crc32(name.encode())])
        if len(shape) > 1:
            array = random.normal(0, np.prod(shape[1:]) ** -0.5, shape)
        else:
            array = random.normal(1.0 if "norm" in name and name.endswith("weight") else 0.0, 0.1, shape)
        arrays[name] = array.astype(np.float32)
    return arrays


def picture(side: int) -> np.ndarray:
    """float32 [1, side, side, 3] in [-1, 1]: coloured waves with noise."""
    random = np.random.default_rng([SEED, side])
    rows, columns = np.mgrid[:side, :side] / side
    waves = [np.sin(a * rows + b * columns + c) for a, b, c in random.uniform(0, 12, (3, 3))]
    return np.clip(0.7 * np.stack(waves, -1) + random.normal(0, 0.2, (side, side, 3)), -1, 1).astype(np.float32)[None]


def latent(side: int, channels: int) -> np.ndarray:
    """float32 [1, side, side, channels], standard normal."""
    return np.random.default_rng([SEED, side, channels]).normal(size=(1, side, side, channels)).astype(np.float32)


def peer(sizes: Mapping[str, Any]) -> Any:
    """diffusers' network of the given sizes with seeded weights."""
    torch: Any = importlib.import_module("torch")
    kinds = {"down": "DownEncoderBlock2D", "up": "UpDecoderBlock2D"}
    network = importlib.import_module("diffusers").AutoencoderKL(
        **{f"{way}_block_types": (kind,) * len(sizes["widths"]) for way, kind in kinds.items()},
        block_out_channels=sizes["widths"], layers_per_block=sizes["depth"], latent_channels=sizes["latent"], norm_num_groups=32,
    )  # fmt: skip
    arrays = weights(shapes(network))
    network.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    return network.eval()


def shapes(network: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}


def outputs(network: Any, sizes: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Mean and standard deviation of the encoded picture, and the decoded latent, channels last."""
    torch: Any = importlib.import_module("torch")
    x, z = inputs(sizes)
    with torch.inference_mode():
        posterior = network.encode(torch.from_numpy(x).permute(0, 3, 1, 2)).latent_dist
        decoded = network.decode(torch.from_numpy(z).permute(0, 3, 1, 2)).sample
    named = dict(mean=posterior.mean, deviation=posterior.std, decoded=decoded)
    return {name: tensor.permute(0, 2, 3, 1).contiguous().numpy() for name, tensor in named.items()}


def inputs(sizes: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    return picture(sizes["side"]), latent(sizes["side"] // 2 ** (len(sizes["widths"]) - 1), sizes["latent"])


def record(_: argparse.Namespace) -> None:
    diffusers: Any = importlib.import_module("diffusers")
    network = peer(SMALL)
    arrays: Any = outputs(network, SMALL)
    for name, array in arrays.items():
        print(f"{name} {array.shape}: standard deviation {array.std():.3g}, largest {np.abs(array).max():.3g}")
    np.savez_compressed(GOLDEN / "autoencoder.npz", **arrays)
    listed = {"diffusers": diffusers.__version__, "small": shapes(network), "public": shapes(peer(PUBLIC))}
    text = re.sub(r"\[[\d\s,]+\]", lambda found: re.sub(r"\s+", " ", found[0]), json.dumps(listed, indent=1))  # one tensor per line
    (GOLDEN / "autoencoder_tensors.json").write_text(text + "\n")
    for path in (GOLDEN / "autoencoder.npz", GOLDEN / "autoencoder_tensors.json"):
        print(f"{path}: {path.stat().st_size:,} bytes")


def public(arguments: argparse.Namespace) -> None:
    arguments.folder.mkdir(parents=True, exist_ok=True)
    network = peer(PUBLIC)
    network.save_pretrained(arguments.folder)
    start = time.monotonic()
    arrays: Any = outputs(network, PUBLIC)
    print(f"diffusers: {sum(tensor.numel() for tensor in network.parameters()):,} parameters, {time.monotonic() - start:.1f} s")
    np.savez(arguments.folder / "outputs.npz", **arrays)


def compare(arguments: argparse.Namespace) -> None:
    sys.path.insert(0, str(GOLDEN.parents[1]))
    import jax

    from tinygen.pretrained import autoencoder

    ours = autoencoder.load(str(arguments.folder / FILE), "FOLDER")
    x, z = inputs(PUBLIC)
    got: dict[str, Any] = dict(zip(("mean", "deviation"), jax.jit(ours.encode)(ours.variables, x), strict=True))
    got["decoded"] = jax.jit(ours.decode)(ours.variables, z)
    with np.load(arguments.folder / "outputs.npz") as file:
        for name, array in file.items():
            difference = float(np.abs(np.asarray(got[name]) - array).max())
            print(
                f"{name} {array.shape}: largest difference {difference:.2g} from diffusers, whose standard deviation is {array.std():.3g}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the outputs of diffusers' autoencoder for seeded weights and inputs.")
    commands = parser.add_subparsers(required=True)
    commands.add_parser("record", help="Write the files in tests/golden").set_defaults(run=record)
    for name, run, text in (
        ("public", public, "Write a file with Stable Diffusion's sizes, and diffusers' outputs"),
        ("compare", compare, "Compare tinygen's autoencoder with these outputs"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("folder", type=Path, help="folder of the file and the outputs")
        command.set_defaults(run=run)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
