"""Records torch-fidelity's scores of synthetic features in tests/golden/scores.json, with which tinygen's are compared.

    pip install torch-fidelity==0.4.0
    python scripts/goldens/record_score_goldens.py        prints and writes the numbers

Only the scores are stored: this script and the tests generate the features from a seed, with a generator that NumPy has
frozen. Each score is recorded for the features as float32, which is what torch-fidelity uses in practice, and as
float64.
"""

import argparse
import importlib
import json
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden" / "scores.json"
SEED = 7
SHAPES = {"features": (420, 24), "reference": (500, 24), "logits": (403, 60)}
KID = dict(kid_subsets=12, kid_subset_size=150, rng_seed=2020)


def arrays(seed: int) -> dict[str, np.ndarray]:
    """Features of samples and of a reference, float32 [N, D], and logits [N, K].

    Features are clusters, like classes, and rectified, like a network's. The samples lack one cluster; one column is
    zero.
    """
    random = np.random.RandomState(seed)
    dim = SHAPES["features"][1]
    centres = random.normal(size=(6, dim))

    def clusters(shape: tuple[int, int], classes: int) -> np.ndarray:
        drawn = centres[random.randint(classes, size=shape[0])] + 0.5 * random.normal(size=shape)
        drawn[:, 3] = 0
        return np.maximum(drawn, 0).astype(np.float32)

    return {
        "features": clusters(SHAPES["features"], 5),
        "reference": clusters(SHAPES["reference"], 6),
        "logits": (4 * random.normal(size=SHAPES["logits"])).astype(np.float32),
    }


def record(features: dict[str, np.ndarray], dtype: str) -> dict[str, float]:
    """torch-fidelity's scores of these arrays in this precision."""
    torch, fid, isc, kid, prc = map(
        importlib.import_module, ("torch", *(f"torch_fidelity.metric_{name}" for name in ("fid", "isc", "kid", "prc")))
    )
    tensors = {name: torch.from_numpy(array.astype(dtype)) for name, array in features.items()}
    pair, quiet = (tensors["features"], tensors["reference"]), dict(verbose=False)
    found: dict[str, Any] = kid.kid_features_to_metric(*pair, **KID, **quiet)
    found |= prc.prc_features_to_metric(*pair, prc_neighborhood=3, **quiet)
    found |= fid.fid_statistics_to_metric(*map(fid.fid_features_to_statistics, pair), **quiet)
    for name, shuffle in (("shuffled", True), ("in_order", False)):
        scores = isc.isc_features_to_metric(tensors["logits"], splits=10, shuffle=shuffle, rng_seed=2020)
        found |= {f"{key}_{name}": value for key, value in scores.items()}
    return {key: float(value) for key, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Record torch-fidelity's scores of synthetic features.")
    parser.add_argument("--out", type=Path, default=GOLDEN, help="file to write (default: %(default)s)")
    out = parser.parse_args().out
    features = arrays(SEED)
    golden = {
        "torch_fidelity": metadata.version("torch-fidelity"),
        "seed": SEED,
        **{dtype: record(features, dtype) for dtype in ("float32", "float64")},
    }
    text = json.dumps(golden, indent=1) + "\n"
    out.write_text(text, "utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
