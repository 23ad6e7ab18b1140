"""The peer of `bench_features.py --peer`: pytorch-fid's InceptionV3 on the CPU, with its initial weights.

It runs under a Python interpreter with torch, torchvision and pytorch-fid, and speaks the protocol of
`benchmarks.worker`.
"""

import argparse
import importlib
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.worker import serve


def main() -> int:
    parser = argparse.ArgumentParser(description="The peer process of bench_features.py, which starts it.")
    parser.add_argument("--mode", choices=("eager",), required=True)
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--images", type=int, required=True)
    options = parser.parse_args()
    return serve(lambda: inception(options))


def inception(options: argparse.Namespace) -> tuple[Callable[[], None], dict[str, Any]]:
    """(a turn, facts about the peer)"""
    # Imported by name: they are installed for another interpreter, so the type checker cannot resolve them.
    modules: list[Any] = [importlib.import_module(name) for name in ("torch", "pytorch_fid.inception")]
    torch, peer = modules
    blank = peer._inception_v3(num_classes=1008, aux_logits=False, weights=None).state_dict()
    peer.load_state_dict_from_url = lambda *_, **__: blank  # there is no other way to pass weights
    network = peer.InceptionV3([3], resize_input=False, normalize_input=False).eval()
    batch = 2 * torch.rand(options.batch_size, 3, 299, 299) - 1

    def turn() -> None:
        with torch.inference_mode():
            for _ in range(options.images // options.batch_size):
                network(batch)

    return turn, {"threads": torch.get_num_threads(), "versions": {"torch": torch.__version__}}


if __name__ == "__main__":
    sys.exit(main())
