"""Records the features of torch-fidelity, pytorch-fid and clean-fid for the same images and random weights.

    python scripts/goldens/record_fid_goldens.py record         writes tests/golden/inception.npz and resize.npz
    python scripts/goldens/record_fid_goldens.py peers FILE     once: features of 500 images and a distance, to FILE
    python scripts/goldens/record_fid_goldens.py compare FILE   compare tinygen's network with FILE

The first two need an interpreter with torch, torchvision, torch-fidelity 0.4, pytorch-fid 0.3 and clean-fid 0.1 and run
on the CPU; the last needs tinygen. Images and weights are seeded NumPy arrays, so only the outputs are recorded, and
the tests do not need PyTorch.

The features of a random Inception-v3 must depend on its input: each filter sums to zero, so that the mean of a picture
does not dominate, and is scaled to keep activations near one.
"""

import argparse
import importlib
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"
SEED = 0
SIZES = ((32, 32), (48, 64), (299, 299), (375, 500), (33, 17), (640, 480))  # of the golden images: (height, width)
PIXELS = 64  # recorded pixels of each resized image


def weights(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """float32 arrays by their names in the public file, each seeded by its name, so that the order does not matter."""
    arrays = {}
    for name, shape in shapes.items():
        random = np.random.default_rng([SEED, zlib.crc32(name.encode())])
        if name.endswith("conv.weight"):
            array = random.normal(size=shape)
            array -= array.mean((1, 2, 3), keepdims=True)
            array *= (0.34 * np.prod(shape[1:])) ** -0.5  # 0.34: the variance of a rectified standard normal
        elif name.endswith(("running_var", "bn.weight")):
            array = random.uniform(0.8, 1.2, shape)
        else:
            array = random.normal(0, 0.1, shape)
        arrays[name] = array.astype(np.float32)
    return arrays


def image(index: int, size: tuple[int, int], *, noise: float = 0.15) -> np.ndarray:
    """uint8 [height, width, 3]: smooth patches of colour with noise."""
    random = np.random.default_rng([SEED, index])
    coarse = random.uniform(size=(*random.integers(2, 12, 2), 3))
    for axis, length in enumerate(size):
        grid = np.linspace(0, coarse.shape[axis] - 1, length)
        low = np.minimum(grid.astype(int), coarse.shape[axis] - 2)
        way = (grid - low).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
        coarse = np.take(coarse, low, axis) * (1 - way) + np.take(coarse, low + 1, axis) * way
    return np.clip(255 * (coarse + noise * random.normal(size=coarse.shape)), 0, 255).round().astype(np.uint8)


def golden_images() -> list[np.ndarray]:
    return [image(index, size) for index, size in enumerate(SIZES)]


def places(index: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows, columns) of the recorded pixels of a resized image."""
    rows, columns = np.random.default_rng([SEED, index]).integers(0, 299, (2, PIXELS))
    return rows, columns


def two_sets(num: int) -> Iterator[np.ndarray]:
    """`num` images of mixed sizes; the second half has more noise."""
    sizes = np.random.default_rng(SEED).integers(24, 640, (num, 2)).tolist()
    for index, (height, width) in enumerate(sizes):
        yield image(1000 + index, (height, width), noise=0.05 + 0.1 * (2 * index >= num))


class Peers:
    """The three libraries. Each method takes one image of any size, uint8 [H, W, 3]."""

    def __init__(self) -> None:
        names = (
            "torch",
            "torch_fidelity.feature_extractor_inceptionv3",
            "pytorch_fid.inception",
            "cleanfid.resize",
            "torchvision.transforms",
        )
        modules: list[Any] = list(map(importlib.import_module, names))
        self.torch, fidelity, fid, resize, self.transforms = modules
        # Its own blocks have the same shapes.
        arrays = fid._inception_v3(num_classes=1008, aux_logits=False, weights=None).state_dict()
        shapes = {name: tuple(array.shape) for name, array in arrays.items() if not name.endswith("num_batches_tracked")}
        state = {name: self.torch.from_numpy(array) for name, array in weights(shapes).items()}
        fid.load_state_dict_from_url = lambda *_, **__: state  # there is no other way to pass weights
        self.pytorch_fid_network = fid.InceptionV3([3], resize_input=False).eval()
        with tempfile.NamedTemporaryFile(suffix=".pth") as file:
            self.torch.save(state, file.name)
            self.torch_fidelity_network = fidelity.FeatureExtractorInceptionV3("inception", ["2048", "logits_unbiased"], file.name)
        self.tf1 = importlib.import_module("torch_fidelity.interpolate_compat_tensorflow").interpolate_bilinear_2d_like_tensorflow1x
        self.clean_fid = resize.build_resizer("clean")

    def torch_fidelity(self, image: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(features [2048], logits without bias [1008])"""
        with self.torch.inference_mode():
            features, logits = self.torch_fidelity_network(self.torch.from_numpy(image).permute(2, 0, 1)[None])
        return features[0].numpy(), logits[0].numpy()

    def pytorch_fid(self, image: np.ndarray) -> np.ndarray:
        """features [2048]"""
        with self.torch.inference_mode():
            (features,) = self.pytorch_fid_network(self._interpolated(image))
        return features[0, :, 0, 0].numpy()

    def resized(self, image: np.ndarray) -> dict[str, np.ndarray]:
        """The resized image that each passes to its network, float32 [299, 299, 3], by preset."""
        tf1 = self.tf1(self.torch.from_numpy(image).permute(2, 0, 1)[None].float(), size=(299, 299), align_corners=False)
        return {
            "adm": ((tf1 - 128) / 128)[0].permute(1, 2, 0).numpy(),
            "pytorch-fid": (2 * self._interpolated(image) - 1)[0].permute(1, 2, 0).numpy(),
            "clean": (self.clean_fid(image) - 128) / 128,
        }

    def _interpolated(self, image: np.ndarray) -> Any:
        pixels = self.transforms.ToTensor()(image)[None]
        return self.torch.nn.functional.interpolate(pixels, size=(299, 299), mode="bilinear", align_corners=False)


def record(_: argparse.Namespace) -> None:
    peers = Peers()
    images = golden_images()
    features, logits = map(np.stack, zip(*map(peers.torch_fidelity, images), strict=True))
    others = np.stack([peers.pytorch_fid(image) for image in images])
    print(f"features: mean {features.mean():.3g}, spread between images {features.std(0).mean():.3g}")
    save(GOLDEN / "inception.npz", {"torch_fidelity": features, "logits": logits, "pytorch_fid": others})
    resized = [peers.resized(image) for image in images]
    save(
        GOLDEN / "resize.npz",
        {preset: np.stack([each[preset][places(index)] for index, each in enumerate(resized)]) for preset in resized[0]},
    )


def save(path: Path, arrays: dict[str, Any]) -> None:
    np.savez_compressed(path, **arrays)
    print(f"{path}: {path.stat().st_size:,} bytes")


def record_peers(arguments: argparse.Namespace) -> None:
    peers, metric = Peers(), importlib.import_module("torch_fidelity.metric_fid")
    start = time.monotonic()
    features: dict[str, list[np.ndarray]] = {"torch_fidelity": [], "pytorch_fid": []}
    for index, image in enumerate(two_sets(arguments.num)):
        features["torch_fidelity"].append(peers.torch_fidelity(image)[0])
        features["pytorch_fid"].append(peers.pytorch_fid(image))
        if index % 50 == 49:
            print(f"{index + 1} images, {time.monotonic() - start:.0f} s", flush=True)
    arrays = {name: np.stack(each) for name, each in features.items()}
    first, second = (metric.fid_features_to_statistics(peers.torch.from_numpy(half)) for half in np.split(arrays["torch_fidelity"], 2))
    distance = metric.fid_statistics_to_metric(first, second, verbose=False)[metric.KEY_METRIC_FID]
    print(f"torch-fidelity's distance between the two halves: {distance:.8g}")
    save(arguments.file, {**arrays, "distance": distance})


def compare(arguments: argparse.Namespace) -> None:
    sys.path.insert(0, str(GOLDEN.parents[1]))
    import jax

    from tinygen.evaluation.features import inception

    with np.load(arguments.file) as file:
        recorded = dict(file)
    num = len(recorded["torch_fidelity"])
    ours = {}
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/random.npz"
        np.savez(path, **weights(inception.file_shapes()))  # pyright: ignore[reportArgumentType]
        for peer, preset in (("torch_fidelity", "adm"), ("pytorch_fid", "pytorch-fid")):
            network = inception.inception(preset, path)
            apply = jax.jit(network.apply)
            rows = [apply(network.variables, network.prepare(image)[None])["features"][0] for image in two_sets(num)]
            ours[peer] = np.stack(jax.device_get(rows))
            print(f"{peer}: features of {num} images agree within {relative_difference(ours[peer], recorded[peer]):.2g} (relative)")
    distance = frechet(*np.split(ours["torch_fidelity"].astype(np.float64), 2))
    theirs = float(recorded["distance"])
    print(f"distance {distance:.8g}, torch-fidelity's {theirs:.8g}: relative difference {abs(distance / theirs - 1):.2g}")


def relative_difference(a: np.ndarray, b: np.ndarray) -> float:
    """The largest distance between corresponding rows of the features [N, D], relative to their norm."""
    return float(np.max(np.linalg.norm(a - b, axis=1) / np.linalg.norm(b, axis=1)))


def frechet(a: np.ndarray, b: np.ndarray) -> float:
    """The Fréchet distance of features [N, D], from the singular values of the product of the centred features."""
    centred = [(x - x.mean(0)) / np.sqrt(len(x) - 1) for x in (a, b)]
    means, spread = np.sum(np.square(a.mean(0) - b.mean(0))), sum(np.sum(np.square(x)) for x in centred)
    return float(means + spread - 2 * np.linalg.svd(centred[0] @ centred[1].T, compute_uv=False).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the outputs of other libraries for the same images and weights.")
    commands = parser.add_subparsers(required=True)
    commands.add_parser("record", help="Write the files in tests/golden").set_defaults(run=record)
    peers = commands.add_parser("peers", help="Write the other libraries' features of many images")
    peers.add_argument("file", type=Path, help=".npz file to write")
    peers.add_argument("--num", type=int, default=500, help="number of images, even (default: %(default)s)")
    peers.set_defaults(run=record_peers)
    ours = commands.add_parser("compare", help="Compare tinygen with them")
    ours.add_argument("file", type=Path, help=".npz file written by `peers`")
    ours.set_defaults(run=compare)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
