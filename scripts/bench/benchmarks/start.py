"""Start-up time from a shell: training until the first step is in metrics.jsonl, and sampling from that run."""

import functools
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import REPOSITORY, turns
from benchmarks.machine import caution, head
from tinygen.errors import UserError

COMMANDS = ("train", "sample")
LIMIT = 600  # seconds until the first step


class Checkout:
    """A checkout of tinygen whose commands are timed, with its own folder for runs.

    `train` and `sample` return wall-clock seconds. They raise UserError with the last line of stderr if the command
    fails.
    """

    def __init__(self, tree: Path, recipe: str, num: int, folder: Path):
        name, _, variant = recipe.partition(":")
        self.tree, self.num, self.folder = tree, num, folder
        self.recipe = f"{tree / 'configs' / name}.py{':' if variant else ''}{variant}"
        self.run, self.errors = folder / "run", folder / "errors.txt"

    def train(self) -> float:
        """Seconds until the first line of metrics.jsonl; the run is then stopped."""
        shutil.rmtree(self.run, ignore_errors=True)
        start = time.perf_counter()
        process = self._begin("train", f"--config={self.recipe}", f"--workdir={self.run}", "--config.train.log_every=1")
        lines = self.run / "metrics.jsonl"
        try:
            while not (lines.is_file() and lines.stat().st_size):
                if process.poll() is not None or time.perf_counter() - start > LIMIT:
                    self._failed("train")
                time.sleep(0.01)
            seconds = time.perf_counter() - start
            process.send_signal(signal.SIGTERM)
            if process.wait() not in (0, 128 + signal.SIGTERM):
                self._failed("train")
            return seconds
        finally:
            _end(process)

    def sample(self) -> float:
        """Seconds to draw samples from the run of `train`."""
        start = time.perf_counter()
        process = self._begin("sample", f"--ckpt={self.run}", f"--num={self.num}", f"--out={self.folder / 'samples'}")
        try:
            if process.wait():
                self._failed("sample")
            return time.perf_counter() - start
        finally:
            _end(process)

    def _begin(self, *words: str) -> subprocess.Popen[bytes]:
        environment = os.environ | {
            "PYTHONPATH": str(self.tree),
            "PYTHONDONTWRITEBYTECODE": "",  # the default
            "PYTHONPYCACHEPREFIX": str(self.folder / "bytecode"),
            "JAX_COMPILATION_CACHE_DIR": str(self.folder / "compiled"),
        }
        with self.errors.open("wb") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "tinygen", *words],
                env=environment,
                cwd=self.folder,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    def _failed(self, command: str) -> None:
        output = self.errors.read_text(errors="replace").strip() or "no output"
        raise UserError(f"tinygen {command} in {self.tree} failed: {output.splitlines()[-1]}")


def measure(recipe: str, num: int, rounds: int, against: Sequence[Path]) -> dict[str, Any]:
    """{"runs": [{"name", "train": [seconds], "sample": [seconds]}, ...]} of this and other checkouts, in turns.

    The first round compiles and is not counted.
    """
    trees = [REPOSITORY, *(tree.resolve() for tree in against)]
    with tempfile.TemporaryDirectory() as temporary:
        folders = [Path(temporary) / str(number) for number in range(len(trees))]
        for folder in folders:
            folder.mkdir()
        checkouts = [Checkout(tree, recipe, num, folder) for tree, folder in zip(trees, folders, strict=True)]
        seconds = {
            command: turns.take([functools.partial(getattr(Checkout, command), each) for each in checkouts], rounds + 1)
            for command in COMMANDS
        }
    runs = [{"name": str(tree), **{command: seconds[command][number][1:] for command in COMMANDS}} for number, tree in enumerate(trees)]
    return {"recipe": recipe, "num": num, "runs": runs}


def table(result: dict[str, Any]) -> str:
    wide = max(len(run["name"]) for run in result["runs"])
    rounds = len(result["runs"][0][COMMANDS[0]])
    return "\n".join(
        [
            head(result["machine"]),
            f"{result['recipe']}: seconds to the first step, and for {result['num']} samples; median (min to max) of {rounds}",
            *(
                f"{run['name']:<{wide}}" + "".join(f"   {command} {_spread(run[command])}" for command in COMMANDS)
                for run in result["runs"]
            ),
            *caution(result["busy_before"]),
        ]
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills a process that still runs, so that an interrupted benchmark leaves none behind."""
    process.kill()
    process.wait()


def _spread(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):6.2f} ({min(seconds):.2f} to {max(seconds):.2f})"
