"""Real `tinygen train` processes: start them, follow their output, kill them, wait for them."""

import contextlib
import dataclasses
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tortures import REPOSITORY

TINYGEN = [sys.executable, "-m", "tinygen"]
LIMIT = 600  # seconds after which a run counts as hanging
STEP = re.compile(r"step ([\d,]+)/[\d,]+: loss ")  # a step's line in the log
POLL = 0.001  # seconds between two looks at a folder


class Broken(Exception):
    """A run behaved unexpectedly, so that its case cannot continue."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """What is trained, in how many processes: the whole command except for the workdir.

    home: cache folder of the processes (compiled programs, indices of folders), separate from the user's
    timeout: seconds until a lost process is noticed
    settings: further config overrides, {"data.name": "folder"}
    """

    home: Path
    recipe: str = str(REPOSITORY / "configs" / "dit_digits8.py:smoke")
    steps: int = 400
    checkpoint_every: int = 20
    preview_every: int = 50
    processes: int = 1
    timeout: int = 15
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def command(self, workdir: Path) -> list[str]:
        train = dict(steps=self.steps, log_every=1, checkpoint_every=self.checkpoint_every)
        train |= dict(preview_every=self.preview_every, eval_every=self.preview_every)
        keys = {"precision": "float32", **{f"train.{key}": value for key, value in train.items()}, **self.settings}
        if self.processes > 1:
            keys["distributed_timeout"] = self.timeout
        return [*TINYGEN, "train", f"--config={self.recipe}", f"--workdir={workdir}", *(f"--config.{key}={keys[key]}" for key in keys)]

    def environment(self) -> dict[str, str]:
        # Without JAX_*, such as a shared compilation cache.
        own = {key: value for key, value in os.environ.items() if not key.startswith("JAX_")}
        own |= dict(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=1", XDG_CACHE_HOME=str(self.home))
        own["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
        return own


class Process:
    """One process. A thread reads its output, which could not be written to a file while the disk is full."""

    def __init__(self, command: list[str], environment: Mapping[str, str]):
        self.child = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self.lines: list[str] = []
        self.step = 0  # the last logged one
        self.updated = threading.Condition()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        with self.child.stdout as stdout:
            for line in stdout:
                with self.updated:
                    self.lines.append(line.rstrip("\n"))
                    if found := STEP.search(line):
                        self.step = int(found[1].replace(",", ""))
                    self.updated.notify_all()
        with self.updated:
            self.lines.append("")  # wakes `Run.until` if the process has ended
            self.updated.notify_all()

    @property
    def running(self) -> bool:
        return self.child.poll() is None

    @property
    def output(self) -> str:
        return "\n".join(self.lines)


class Run:
    """The processes of one `tinygen train`; those still running are killed when the context exits.

    environment: variables in addition to those of the setup
    """

    def __init__(self, setup: Setup, workdir: Path, environment: Mapping[str, str] | None = None):
        self.began = time.monotonic()
        command, flags = setup.command(workdir), [""]
        if setup.processes > 1:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                address = f"127.0.0.1:{free.getsockname()[1]}"
            flags = [f"{address},{setup.processes},{index}" for index in range(setup.processes)]
        variables = setup.environment() | dict(environment or {})
        self.processes = [Process([*command, f"--config.distributed={flag}"], variables) for flag in flags]

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.child.kill()
        self.wait()

    def until(self, step: int) -> None:
        """Waits until process 0 has logged a step. Raises Broken if the run ends before."""
        first = self.processes[0]
        with first.updated:
            if not first.updated.wait_for(lambda: first.step >= step or not first.running, LIMIT):
                raise Broken(f"step {step} was not reached within {LIMIT} s")
            if first.step < step:
                raise Broken(f"the run ended before step {step}: {self.last()}")

    def signal(self, number: int, index: int = 0) -> None:
        self.processes[index].child.send_signal(number)

    def stop(self) -> None:
        """Sends SIGSTOP to process 0 and waits until it has stopped or ended."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.processes[0].child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def wait(self, limit: float = LIMIT) -> list[int | None]:
        """The exit statuses; None for a process that was killed because it still ran after `limit` seconds."""
        deadline, statuses = time.monotonic() + limit, []
        for process in self.processes:
            try:
                statuses.append(process.child.wait(max(0.0, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                statuses.append(None)
        for process in self.processes:
            process.child.kill()
            process.child.wait()
            process.reader.join()
        return statuses

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def output(self) -> str:
        return "\n".join(process.output for process in self.processes)

    def last(self, lines: int = 2) -> str:
        """The last lines of output that are not metrics of a step, joined into one."""
        return " | ".join([line for line in self.output.splitlines() if line.strip() and not STEP.search(line)][-lines:])


def finish(setup: Setup, workdir: Path) -> Run:
    """Trains to the end. Raises Broken unless the exit status is 0."""
    with Run(setup, workdir) as run:
        statuses = run.wait()
    if any(statuses):
        raise Broken(f"{workdir.name}: exit status {statuses}: {run.last()}")
    return run


def torn(workdir: Path) -> list[str]:
    """Names of the temporary folders of checkpoints that are being written, or that a killed process left behind."""
    with contextlib.suppress(FileNotFoundError):
        return sorted(each for each in os.listdir(workdir / "checkpoints") if "orbax-checkpoint-tmp" in each)
    return []


def whole(workdir: Path) -> list[int]:
    """Steps of the complete checkpoints, in order."""
    with contextlib.suppress(FileNotFoundError):
        return sorted(int(each) for each in os.listdir(workdir / "checkpoints") if each.isdigit())
    return []


def save_durations(run: Run, workdir: Path) -> list[float]:
    """Watches a run to its end and returns how many seconds each save took."""
    found, seconds = {}, {}
    while any(process.running for process in run.processes):
        now, names = time.monotonic(), torn(workdir)
        for name in names:
            found.setdefault(name, now)
        for name in found.keys() - names:
            seconds.setdefault(name, now - found[name])
        time.sleep(POLL)
    return list(seconds.values())


def await_save(run: Run, workdir: Path, number: int) -> None:
    """Waits until the run writes its checkpoint `number`, counted from 0, or has ended."""
    seen: set[str] = set()
    for polls in itertools.count():
        seen |= {name.partition(".")[0] for name in torn(workdir)}
        if len(seen) > number or (polls % 50 == 0 and not all(process.running for process in run.processes)):
            return
        time.sleep(POLL)
