"""Features of pictures, cached on disk, so that an interrupted extraction resumes.

They are in the user's cache, under a name derived from the network and the pictures. Features of a reference are kept for the next score;
those of samples are deleted after scoring.
"""

import contextlib
import functools
import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tinygen.distributed import processes
from tinygen.errors import duration
from tinygen.evaluation.features.extraction import Extractor, extract
from tinygen.evaluation.features.feature_file import FeatureFile
from tinygen.evaluation.features.network import Network
from tinygen.evaluation.images import Pictures
from tinygen.evaluation.metrics.protocol import fingerprint
from tinygen.evaluation.scores import Side, side_of
from tinygen.system.cache import alone
from tinygen.system.terminal import say

PAUSE = 30.0  # seconds between progress lines
RULES = 2  # version of the extraction and the file format: increment when either changes
KEPT = 256  # minimum pictures per write, since each write waits for the disk


class Unwanted(Exception):
    """The features are no longer wanted."""


@contextlib.contextmanager
def collected(
    pictures: Pictures,
    using: Extractor,
    what: str,
    *,
    logits: bool = False,
    keep: bool,
    reference: bool = False,
    unwanted: Callable[[], bool] = lambda: False,
) -> Iterator[Side]:
    """The pictures as one side of a score, with their features; without features except on the coordinator process.

    what: the label of the progress bar
    logits: include the network's logits
    keep: keep the features for the next call; otherwise they are deleted, unless an error ends the block
    reference: whether this is the reference, whose features are stored separately from those of samples
    unwanted: called before each batch; Unwanted is raised if it returns True
    """
    files = _files(using.network, pictures, logits, reference)
    with _alone(files["features"].path, what):
        _grow(pictures, using, files, what, unwanted)
        yield _side(pictures, files)
        if not keep:
            _delete(files)


def forget(network: Network, pictures: Pictures) -> None:
    """Deletes kept features of samples."""
    files = _files(network, pictures, network.name == "inception", reference=False)
    with _alone(files["features"].path, pictures.name):
        _delete(files)


def _delete(files: dict[str, FeatureFile]) -> None:
    for file in files.values() if processes.leads() else ():
        file.delete()


def _side(pictures: Pictures, files: dict[str, FeatureFile]) -> Side:
    if processes.leads():
        rows = {name: file.read()[: pictures.num] for name, file in files.items()}  # there may be more, from an interrupted call
        return side_of(pictures.name, pictures.fingerprint, rows["features"], rows.get("logits"))
    return Side(pictures.name, pictures.num, pictures.fingerprint, mean=np.zeros(0), covariance=np.zeros(0))


def _alone(path: Path, what: str) -> contextlib.AbstractContextManager[Any]:
    """Admits one call at a time for the same pictures; another one waits. Only the coordinator process locks."""
    if not processes.leads():
        return contextlib.nullcontext()
    waiting = functools.partial(say, f"{what}: another call computes this; waiting for it", error=True)
    return alone(path.with_name(f"{path.name}.lock"), waiting)


def _files(network: Network, pictures: Pictures, logits: bool, reference: bool) -> dict[str, FeatureFile]:
    facts = {
        "weights_sha256": network.sha256, "features": network.name, "preset": network.preset, "pictures": pictures.fingerprint,
        "reference": reference, "rules": RULES,
    }  # fmt: skip
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tinygen" / "features"
    key = fingerprint(facts)
    files = {"features": FeatureFile(home / key, network.dim, str(facts))}
    if logits:
        image = jax.ShapeDtypeStruct((1, *network.size, 3), "float32")
        classes = jax.eval_shape(network.apply, network.variables, image)["logits"].shape[-1]
        files["logits"] = FeatureFile(home / f"{key}-logits", classes, str(facts))
    return files


def _grow(pictures: Pictures, using: Extractor, files: dict[str, FeatureFile], what: str, unwanted: Callable[[], bool]) -> None:
    """Extracts the features that are missing from the files."""
    name = f"rows of {files['features'].path.name}"
    start = done = int(processes.from_lead(name, lambda: str(min(file.rows for file in files.values()))))
    if start >= pictures.num:
        return
    reads = itertools.islice(pictures.reads(start), pictures.num - start)
    held: dict[str, list[np.ndarray]] = {name: [] for name in files}
    with _bar(what, start, pictures.num) as advance:
        for given in extract(reads, using, unwanted):
            for name, rows in held.items():
                rows.append(given[name])
            done += len(given["features"])
            if sum(map(len, held["features"])) >= KEPT or done == pictures.num:
                start = _write(files, held, start)
            advance(done)
    _write(files, held, start)
    if done < pictures.num:
        raise Unwanted


def _write(files: dict[str, FeatureFile], held: dict[str, list[np.ndarray]], start: int) -> int:
    """Appends the held rows, from row `start` on. Returns the next row."""
    num = sum(map(len, held["features"]))
    if num and processes.leads():
        for name, file in files.items():
            file.append(start, np.concatenate(held[name]))
    for rows in held.values():
        rows.clear()
    return start + num


@contextlib.contextmanager
def _bar(what: str, start: int, num: int) -> Iterator[Callable[[int], None]]:
    """A progress bar with the remaining time on a terminal, otherwise a periodic line."""
    console = Console(stderr=True, quiet=not processes.leads())
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    began = said = time.monotonic()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=num, completed=start)

        def advance(done: int) -> None:
            nonlocal said
            progress.update(task, completed=done)
            now = time.monotonic()
            if not console.is_terminal and now - said > PAUSE:
                said, rate = now, (done - start) / (now - began)
                if processes.leads():
                    say(f"{what}: {done:,} of {num:,}, {rate:.3g} per second, {duration((num - done) / rate)} left", error=True)

        yield advance
