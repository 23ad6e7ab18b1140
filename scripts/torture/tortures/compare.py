"""Compares a run with an uninterrupted one: checkpoints, numbers, pictures."""

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
ONE_AT_A_TIME = threading.Lock()  # Orbax reads with an event loop of its own


def differences(reference: Path, workdir: Path, all_pictures: bool = True) -> list[str]:
    """The differences in words; empty if there are none.

    all_pictures: pictures may not be missing either (they may where they could not be written)
    """
    return [*checkpoints(reference, workdir), *numbers(reference, workdir), *pictures(reference, workdir, all_pictures)]


def checkpoints(reference: Path, workdir: Path) -> list[str]:
    wanted, found = whole(reference), whole(workdir)
    told = [f"checkpoints {found} instead of {wanted}"] if found != wanted else []
    told += [f"checkpoints/{name} was left behind" for name in torn(workdir)]
    for step in sorted({*wanted} & {*found}):
        ours = arrays(reference / "checkpoints" / str(step))
        try:
            theirs = arrays(workdir / "checkpoints" / str(step))
        except (KeyError, ValueError, OSError) as error:  # what Orbax raises over damaged files
            told.append(f"checkpoints/{step} cannot be read: {' '.join(str(error).split())[:SHOWN]}")
            continue
        names = [name for name in sorted({*ours, *theirs}) if name not in ours or name not in theirs or not same(ours[name], theirs[name])]
        told += [f"checkpoints/{step}: {len(names)} of {len(ours)} arrays differ: {', '.join(names[:FIRST])}"] if names else []
    return told


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Bit for bit: a NaN equals itself, 0 is not -0."""
    return (a.shape, a.dtype) == (b.shape, b.dtype) and a.tobytes() == b.tobytes()


def arrays(checkpoint: Path) -> dict[str, np.ndarray]:
    """{"params/blocks/0/...": array} of a checkpoint's state, read without the program that wrote it."""
    import jax
    import orbax.checkpoint as ocp

    from tinygen.nn.names import path_name

    with ONE_AT_A_TIME, contextlib.closing(ocp.PyTreeCheckpointHandler()) as reader:
        state = epath.Path(checkpoint.resolve()) / "state"
        plain = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), reader.metadata(state).tree)
        stored = reader.restore(state, args=ocp.args.PyTreeRestore(restore_args=plain))
    return {path_name(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(stored)}


def wrong_sums(workdir: Path) -> list[str]:
    """Where the SHA256SUMS of a run's checkpoints, in the format of sha256sum, disagree with their files."""
    return [word for step in whole(workdir) for word in _wrong_sums(workdir / "checkpoints" / str(step))]


def _wrong_sums(checkpoint: Path) -> list[str]:
    name = f"checkpoints/{checkpoint.name}"
    if not (checkpoint / SUMS).exists():
        return [f"{name} has no {SUMS}"]
    stated = {}
    for line in (checkpoint / SUMS).read_text(errors="replace").splitlines():
        digest, _, path = line.partition("  ")
        stated[path.removeprefix("./")] = digest
    unsealed = {checkpoint / name for name in (SUMS, "_CHECKPOINT_METADATA", "commit_success.txt")}  # Orbax's times, as it names the folder
    files = [path for path in checkpoint.rglob("*") if path.is_file() and path not in unsealed]
    found = {str(path.relative_to(checkpoint)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    wrong = sorted(path for path in {*stated, *found} if stated.get(path) != found.get(path))
    return [f"{name}: {SUMS} is wrong for {len(wrong)} files: {', '.join(wrong[:FIRST])}"] if wrong else []


def numbers(reference: Path, workdir: Path) -> list[str]:
    """The differences of metrics.jsonl, line by line, ignoring values that depend on the machine."""
    wanted, found = lines(reference), lines(workdir)
    if found == wanted:
        return []
    steps = [line.get("step", "a torn one") for line in found]
    twice = sorted({str(step) for step in steps if steps.count(step) > 1})
    missing = [str(line["step"]) for line in wanted if line["step"] not in steps]
    other = [str(line["step"]) for line in wanted if line not in found and line["step"] in steps]
    kinds = {"twice": twice, "missing": missing, "with other numbers": other}
    told = [f"{len(names)} {kind} ({', '.join(names[:FIRST])})" for kind, names in kinds.items() if names]
    return [f"metrics.jsonl, lines: {'; '.join(told) or f'{len(found)} instead of {len(wanted)}, or in another order'}"]


def lines(workdir: Path) -> list[dict[str, Any]]:
    """Each line without its timings; {} for a line that is not JSON."""
    from tinygen.workdir.logger import TIMINGS

    def read(line: str) -> dict[str, Any]:
        try:
            return {key: value for key, value in json.loads(line).items() if key not in TIMINGS}
        except ValueError:
            return {}

    path = workdir / "metrics.jsonl"
    return [read(line) for line in path.read_text().splitlines()] if path.exists() else []


def pictures(reference: Path, workdir: Path, all_of_them: bool = True) -> list[str]:
    """Files of samples/: the same names, the same bytes."""
    wanted, found = images(reference), images(workdir)
    missing = sorted(wanted.keys() - found.keys()) if all_of_them else []
    kinds = {"missing": missing, "too many": sorted(found.keys() - wanted.keys())}
    kinds["different"] = sorted(name for name in wanted.keys() & found.keys() if wanted[name] != found[name])
    return [f"samples/, {kind}: {', '.join(names[:FIRST])}" for kind, names in kinds.items() if names]


def images(workdir: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (workdir / "samples").glob("*.png")}
