"""Creates the golden checkpoint of a release: a tiny run that every later version must be able to load and resume.

    python scripts/goldens/make_golden.py NAME        writes tests/golden/NAME.tar.xz; NAME is the release, for example 0.1

A golden checkpoint is created once, by the release that it is named after. It stands for the runs that users saved with
that release, which tests/runs/golden_test.py checks. If that test fails, fix the code or make it read the old format.
Only a golden checkpoint that has not been released yet may be recreated, with --replace.

The run takes three steps of the smallest MicroDiT on digits8 (1,700 parameters), on one CPU device. The archive
contains its workdir, `expected.json` with the sums and digests of its arrays, and `expected.npz` with four samples.
"""

import argparse
import hashlib
import json
import math
import os
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"
SAMPLES: dict[str, Any] = dict(num=4, seed=0, batch_size=8)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Create the golden checkpoint of a release.")
    parser.add_argument("name", metavar="NAME", help="the release, such as 0.1")
    parser.add_argument("--replace", action="store_true", help="overwrite an existing one: only before the release is published")
    parser.add_argument("--folder", type=Path, default=GOLDEN, help="folder of golden checkpoints (default: %(default)s)")
    arguments = parser.parse_args(argv)
    archive = arguments.folder / f"{arguments.name}.tar.xz"
    if archive.exists() and not arguments.replace:
        print(
            f"make_golden: {archive} exists. Released checkpoints must not change; see the docstring of this script.",
            file=sys.stderr,
        )
        return 2
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

    import numpy as np

    from tinygen import train
    from tinygen.checkpoints import store

    with tempfile.TemporaryDirectory() as temporary:
        workdir = Path(temporary) / arguments.name
        train.main(recipe(), str(workdir))
        saved = store.find(workdir)
        (workdir / "expected.json").write_text(json.dumps(described(saved), indent=1) + "\n")
        with (workdir / "expected.npz").open("wb") as file:
            np.savez(file, samples=draw(saved))
        for marker in workdir.rglob("commit_success.txt"):  # Orbax writes an absolute path to it
            marker.write_text("Checkpoint commit was successful")
        archive.parent.mkdir(exist_ok=True)
        with tarfile.open(archive, "w:xz", preset=9) as file:
            for path in sorted(workdir.rglob("*")):
                if path.is_file() and path.name != ".lock" and not path.name.startswith("events.out."):
                    file.add(path, path.relative_to(workdir.parent), filter=anonymous)
            files = len(file.getnames())
    print(f"{archive}: {files} files in {archive.stat().st_size:,} bytes")
    return 0


def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Removes owner and time."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def recipe() -> Any:
    """The configuration of the golden run. It is stored in the run, so later changes here do not affect existing runs."""
    from tinygen import config as config_lib

    return config_lib.base(
        data=dict(name="digits8"),
        batch_size=16,
        model=dict(name="microdit", patch=4, width=4, depth=1, heads=2, mlp_multiple=4),
        objective=dict(name="flow", nfe=8),
        optim=dict(lr=2e-3, warmup=2),
        train=dict(steps=3, log_every=1, eval_every=0, preview_every=0),
    )


def restore(saved: Any) -> Any:
    """The complete TrainState of a checkpoint, as a resumed run restores it."""
    import functools

    import jax

    from tinygen import build
    from tinygen.checkpoints import store
    from tinygen.train_step import init_state

    parts = build.parts(saved.config, saved.codec)
    abstract = jax.eval_shape(functools.partial(init_state, parts.create, build.optimizer(saved.config)[0], saved.config.seed))
    with store.make_manager(saved.workdir, keep=9, keep_every=0) as manager:
        return store.restore(manager, saved.step, abstract, parts.layout.shardings(abstract))


def described(saved: Any) -> dict[str, Any]:
    """The expected content of a checkpoint's state."""
    state = restore(saved)
    return {"step": int(state.step), **{branch: describe(getattr(state, branch)) for branch in ("params", "ema", "opt_state")}}


def describe(tree: Any) -> dict[str, Any]:
    """{"sha256": of all arrays with names and shapes, "sums": {name: sum}}. The sums show which arrays differ."""
    import jax
    import numpy as np

    from tinygen.nn.names import path_name

    arrays: Mapping[str, Any] = {path_name(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.astype(array.dtype.newbyteorder("<")).tobytes())
    return {"sha256": digest.hexdigest(), "sums": {name: math.fsum(array.ravel().tolist()) for name, array in sorted(arrays.items())}}


def draw(saved: Any) -> Any:
    """Four samples [4, 8, 8, 1] of a checkpoint, as `tinygen sample` draws them, before rounding to pixels."""
    from tinygen import build
    from tinygen.checkpoints import weights
    from tinygen.sampling import draw as drawing

    parts = build.parts(saved.config, saved.codec)
    return drawing.counted(weights.load(saved, parts, ema=True), parts, saved.codec.encode(SAMPLES["num"]), **SAMPLES)[0]


if __name__ == "__main__":
    sys.exit(main())
