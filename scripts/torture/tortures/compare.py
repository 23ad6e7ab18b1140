"""Compares a run with an uninterrupted one: checkpoints, metrics, pictures."""

import contextlib
import hashlib
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath

from tortures.runs import torn, whole

SUMS = "SHA256SUMS"
FIRST = 3  # differences of each kind that are listed
SHOWN = 120  # characters of an error
ONE_AT_A_TIME = threading.Lock()  # Orbax reads with its own event loop


def differences(reference: Path, workdir: Path, all_pictures: bool = True) -> list[str]:
    """Descriptions of the differences; empty if the runs are equal.

    all_pictures: whether missing pictures count (not if they could not be written)
    """
    return [*checkpoints(reference, workdir), *metrics(reference, workdir), *pictures(reference, workdir, all_pictures)]


def checkpoints(reference: Path, workdir: Path) -> list[str]:
    wanted, found = whole(reference), whole(workdir)
    problems = [f"checkpoints {found} instead of {wanted}"] if found != wanted else []
    problems += [f"checkpoints/{name} was left behind" for name in torn(workdir)]
    for step in sorted({*wanted} & {*found}):
        ours = arrays(reference / "checkpoints" / str(step))
        try:
            theirs = arrays(workdir / "checkpoints" / str(step))
        except (KeyError, ValueError, OSError) as error:  # what Orbax raises for damaged files
            problems.append(f"checkpoints/{step} cannot be read: {' '.join(str(error).split())[:SHOWN]}")
            continue
        names = [name for name in sorted({*ours, *theirs}) if name not in ours or name not in theirs or not same(ours[name], theirs[name])]
        if names:
            problems.append(f"checkpoints/{step}: {len(names)} of {len(ours)} arrays differ: {', '.join(names[:FIRST])}")
    return problems


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Bit for bit: a NaN equals itself, 0 does not equal -0."""
    return (a.shape, a.dtype) == (b.shape, b.dtype) and a.tobytes() == b.tobytes()


def arrays(checkpoint: Path) -> dict[str, np.ndarray]:
    """{"params/blocks/0/...": array} of a checkpoint's state, read by Orbax alone."""
    import jax
    import orbax.checkpoint as ocp

    from tinygen.nn.names import path_name

    with ONE_AT_A_TIME, contextlib.closing(ocp.PyTreeCheckpointHandler()) as reader:
        state = epath.Path(checkpoint.resolve()) / "state"
        plain = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), reader.metadata(state).tree)
        stored = reader.restore(state, args=ocp.args.PyTreeRestore(restore_args=plain))
    return {path_name(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(stored)}


def wrong_sums(workdir: Path) -> list[str]:
    """Mismatches between the files of a run's checkpoints and their SHA256SUMS."""
    return [problem for step in whole(workdir) for problem in _wrong_sums(workdir / "checkpoints" / str(step))]


def _wrong_sums(checkpoint: Path) -> list[str]:
    name = f"checkpoints/{checkpoint.name}"
    if not (checkpoint / SUMS).exists():
        return [f"{name} has no {SUMS}"]
    stated = {}
    for line in (checkpoint / SUMS).read_text(errors="replace").splitlines():
        digest, _, path = line.partition("  ")
        stated[path.removeprefix("./")] = digest
    unsealed = {
        checkpoint / name for name in (SUMS, "_CHECKPOINT_METADATA", "commit_success.txt")
    }  # Orbax writes these when it renames the folder
    files = [path for path in checkpoint.rglob("*") if path.is_file() and path not in unsealed]
    found = {str(path.relative_to(checkpoint)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    wrong = sorted(path for path in {*stated, *found} if stated.get(path) != found.get(path))
    return [f"{name}: {SUMS} is wrong for {len(wrong)} files: {', '.join(wrong[:FIRST])}"] if wrong else []


def metrics(reference: Path, workdir: Path) -> list[str]:
    """Differences between the lines of metrics.jsonl, apart from timings."""
    wanted, found = lines(reference), lines(workdir)
    if found == wanted:
        return []
    steps = [line.get("step", "torn") for line in found]
    duplicates = sorted({str(step) for step in steps if steps.count(step) > 1})
    missing = [str(line["step"]) for line in wanted if line["step"] not in steps]
    other = [str(line["step"]) for line in wanted if line not in found and line["step"] in steps]
    kinds = {"duplicate": duplicates, "missing": missing, "with other values": other}
    problems = [f"{len(names)} {kind} ({', '.join(names[:FIRST])})" for kind, names in kinds.items() if names]
    return [f"metrics.jsonl, lines: {'; '.join(problems) or f'{len(found)} instead of {len(wanted)}, or in another order'}"]


def lines(workdir: Path) -> list[dict[str, Any]]:
    """Each line of metrics.jsonl without its timings; {} for a line that is not JSON."""
    from tinygen.workdir.logger import TIMINGS

    def read(line: str) -> dict[str, Any]:
        try:
            return {key: value for key, value in json.loads(line).items() if key not in TIMINGS}
        except ValueError:
            return {}

    path = workdir / "metrics.jsonl"
    return [read(line) for line in path.read_text().splitlines()] if path.exists() else []


def pictures(reference: Path, workdir: Path, all_pictures: bool = True) -> list[str]:
    """Differences between the names and contents of the files in samples/."""
    wanted, found = images(reference), images(workdir)
    missing = sorted(wanted.keys() - found.keys()) if all_pictures else []
    kinds = {"missing": missing, "unexpected": sorted(found.keys() - wanted.keys())}
    kinds["different"] = sorted(name for name in wanted.keys() & found.keys() if wanted[name] != found[name])
    return [f"samples/, {kind}: {', '.join(names[:FIRST])}" for kind, names in kinds.items() if names]


def images(workdir: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (workdir / "samples").glob("*.png")}
