"""Peers: other implementations of the same work, each in its own process, which take turns on request.

`benchmarks.worker` describes the protocol.
"""

import contextlib
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from tinygen.errors import UserError

WORKER = Path(__file__).resolve().parents[1] / "bench_peer.py"
MODES = ("eager", "bf16", "compile", "compile_bf16")
LIMIT = 10  # timeout of any answer, as a multiple of the patience; a first turn may include compilation
GOODBYE = 5  # seconds that a worker may take to exit


class Peer:
    """A worker process in one mode.

    facts: what the worker reports about itself once it is ready
    first: seconds of its first turn, which may include compilation; None if it timed out
    races: whether it is fast enough to take part in rounds
    once: seconds of its second turn if it does not race; None if it timed out
    idle: seconds of CPU time that the worker used between its turns
    disturbed: seconds of CPU time that this process used during the worker's turns
    """

    def __init__(self, name: str, process: subprocess.Popen[str], log: TextIO, patience: float, needs: str):
        assert process.stdin is not None
        assert process.stdout is not None
        self.name, self.process, self.log, self.patience, self.needs = name, process, log, patience, needs
        self.requests, self.answers = process.stdin, process.stdout
        self.facts: dict[str, Any] | None = None
        self.first: float | None = None
        self.once: float | None = None
        self.races = False
        self.idle = self.disturbed = self.rested_at = 0.0

    def end(self) -> None:
        """Ends the process, by force if necessary."""
        with contextlib.suppress(OSError):
            self.requests.close()  # lets it exit by itself, with any children
        try:
            self.process.wait(GOODBYE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.answers.close()

    def prepare(self) -> bool:
        """Waits until the worker is ready and takes two turns. Returns `races`."""
        self.facts = self._answer("ready")
        if self.facts is None:
            raise UserError(f"{self.name} was not ready within {LIMIT * self.patience:.0f} s (--peer_patience)")
        self.first = self._turn()
        seconds = None if self.first is None else self._turn()
        self.races = seconds is not None and seconds <= self.patience
        self.once = None if self.races else seconds
        return self.races

    def turn(self) -> float:
        """Seconds of one turn, as measured by the worker. Raises UserError if it times out."""
        self.idle += self._processor_time() - self.rested_at
        ours = time.process_time()
        seconds = self._turn()
        self.disturbed += time.process_time() - ours
        if seconds is None:
            raise UserError(f"{self.name} timed out after {LIMIT * self.patience:.0f} s, although it was fast enough before")
        return seconds

    def _turn(self) -> float | None:
        try:
            self.requests.write("turn\n")
        except OSError as error:
            raise self._death() from error
        seconds = self._answer("seconds")
        self.rested_at = self._processor_time()
        return seconds

    def _answer(self, key: str) -> Any:
        """The value of `key` in the worker's next line; None if it times out."""
        if not select.select([self.answers], [], [], LIMIT * self.patience)[0]:
            return None
        line = self.answers.readline()
        if not line:
            raise self._death()
        answer = json.loads(line)
        if "error" in answer:
            raise UserError(f"{self.name}: {answer['error']} (--peer needs an interpreter with {self.needs})")
        return answer[key]

    def _death(self) -> Exception:
        status = self.process.wait()
        self.log.seek(0)
        lines = [line.strip() for line in self.log if line.strip()]
        return UserError(f"{self.name} died with status {status}: {lines[-1] if lines else 'no output'}")

    def _processor_time(self) -> float:
        """Seconds of CPU time used by the worker so far; 0 without /proc."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def started(
    python: str, mode: str, options: Mapping[str, Any], patience: float, worker: Path | None = None, needs: str = "torch and diffusers"
) -> Iterator[Peer]:
    """Runs a worker under the interpreter `python` until the context exits.

    options: flags of the script `worker`, by default `bench_peer.py`
    patience: longest turn, in seconds, of a peer that races
    needs: the packages that the worker imports, for error messages
    """
    command = [python, str(worker or WORKER), f"--mode={mode}", *(f"--{name}={value}" for name, value in options.items())]
    with tempfile.TemporaryFile("w+") as log:  # an unread pipe would block the worker
        try:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1)
        except OSError as error:
            raise UserError(f"--peer={python}: {error.strerror}") from error
        peer = Peer(f"peer {mode}", process, log, patience, needs)
        try:
            yield peer
        finally:
            peer.end()
