"""The other side of `bench_features.py --peer`: pytorch-fid's InceptionV3 on the CPU, with the weights that it begins with.

It runs under an interpreter that has torch, torchvision and pytorch-fid, and speaks the lines of `bench_peer.py`.
"""

import argparse
import importlib
import json
import os
import sys
import time
from typing import Any


def main() -> int:
    parser = argparse.ArgumentParser(description="The peer of bench_features.py, which starts it.")
    parser.add_argument("--mode", choices=("eager",), required=True)
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--images", type=int, required=True)
    options = parser.parse_args()
    lines = os.fdopen(os.dup(1), "w", buffering=1)  # standard output is for the protocol alone
    os.dup2(2, 1)
    try:
        # By name: they are installed for another interpreter than this project's, whose type checker never sees them.
        modules: list[Any] = [importlib.import_module(name) for name in ("torch", "pytorch_fid.inception")]
    except ImportError as error:
        print(json.dumps({"error": f"{sys.executable}: {error}"}), file=lines)
        return 1
    torch, inception = modules
    blank = inception._inception_v3(num_classes=1008, aux_logits=False, weights=None).state_dict()
    inception.load_state_dict_from_url = lambda *_, **__: blank  # it knows no other way of being given weights
    network = inception.InceptionV3([3], resize_input=False, normalize_input=False).eval()
    batch = 2 * torch.rand(options.batch_size, 3, 299, 299) - 1
    print(json.dumps({"ready": {"threads": torch.get_num_threads(), "versions": {"torch": torch.__version__}}}), file=lines)
    for _ in sys.stdin:
        start = time.perf_counter()
        with torch.inference_mode():
            for _ in range(options.images // options.batch_size):
                network(batch)
        print(json.dumps({"seconds": time.perf_counter() - start}), file=lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
