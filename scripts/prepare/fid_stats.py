"""Writes feature statistics (mean and covariance) of pictures to an .npz file for `tinygen eval-fid --ref=FILE.npz`.

    python scripts/prepare/fid_stats.py --ref=~/faces --out=faces.npz                         # Inception, as for FID
    python scripts/prepare/fid_stats.py --ref=digits:train --features=efflite0 --out=digits.npz

The file has the keys that other tools expect (mu, sigma), and the number of pictures, the weights and the preset, so
that `eval-fid` can refuse statistics of different features. Features are cached: rerunning an interrupted command
resumes it.
"""

import argparse
import sys
from pathlib import Path

from tinygen.checkpoints.weights import EVERYWHERE
from tinygen.distributed.mesh import Layout, make_mesh
from tinygen.errors import UserError
from tinygen.evaluation.features import load
from tinygen.evaluation.features.collecting import collected
from tinygen.evaluation.features.extraction import extractor
from tinygen.evaluation.references import find, write_statistics
from tinygen.system import malloc, runtime


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write feature statistics of pictures, for tinygen eval-fid.")
    parser.add_argument(
        "--ref",
        required=True,
        metavar="NAME|DIR|FILE.npz",
        help="data set NAME[:SPLIT], folder, or .npz file of pictures",
    )
    parser.add_argument("--out", required=True, type=Path, metavar="FILE.npz", help="file to write")
    parser.add_argument(
        "--features",
        default="inception",
        help="inception, efflite0, or the workdir of a classifier (default: %(default)s)",
    )
    parser.add_argument("--preset", choices=("adm", "pytorch-fid", "clean"), help="preset of inception (default: adm)")
    parser.add_argument("--weights", metavar="FILE", help="weights of inception (default: the cached file, or a download)")
    arguments = parser.parse_args(argv)
    malloc.retain_freed_memory()
    runtime.disable_async_dispatch()
    try:
        if not arguments.out.absolute().parent.is_dir():
            raise UserError(f"--out={arguments.out}: no such folder: {arguments.out.absolute().parent}")
        network = load.load(arguments.features, preset=arguments.preset, weights=arguments.weights)
        found = find(str(Path(arguments.ref).expanduser()), lambda: network, None)
        if found.pictures is None:
            raise UserError(f"--ref={arguments.ref} already holds statistics")
        using = extractor(network, Layout(make_mesh(EVERYWHERE["mesh"])))
        with collected(found.pictures, using, found.pictures.name, keep=True, reference=True) as side:
            write_statistics(arguments.out, side, network)
    except UserError as error:
        print(f"fid_stats: {error}", file=sys.stderr)
        return 2
    print(f"{arguments.out}: {side.num:,} pictures of {side.name}, {network.dim} features ({network.name}, {network.preset})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
