"""A peer: another implementation of the same work, in its own process, that takes a turn on request.

The protocol is that of `benchmarks.worker`.
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
LIMIT = 10  # times the patience: how long any answer may take, that of a first turn, which may compile, as well
GOODBYE = 5  # seconds that a worker may take to leave


class Peer:
    """A worker in one mode, just started.

    facts: what the worker says of itself, once it is ready
    first: seconds of its first turn, which may compile; None if that came to no end
    races: it is quick enough to take part in rounds
    once: seconds of the second turn of one that is not; None if that came to no end
    idle: seconds of processor time that it took between its turns, when others worked
    disturbed: seconds of processor time that this process took during its turns
    """

    def __init__(self, name: str, process: subprocess.Popen[str], log: TextIO, patience: float, needs: str):
        assert process.stdin is not None
        assert process.stdout is not None
        self.name, self.process, self.log, self.patience, self.needs = name, process, log, patience, needs
        self.requests, self.said = process.stdin, process.stdout
        self.facts: dict[str, Any] | None = None
        self.first: float | None = None
        self.once: float | None = None
        self.races = False
        self.idle = self.disturbed = self.rested_at = 0.0

    def end(self) -> None:
        """Ends the process, whatever it does."""
        with contextlib.suppress(OSError):
            self.requests.close()  # it then exits, and so do its children
        try:
            self.process.wait(GOODBYE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.said.close()

    def prepare(self) -> bool:
        """Waits until it is ready and lets it take a first and a second turn; whether it `races`."""
        self.facts = self._answer("ready")
        if self.facts is None:
            raise UserError(f"{self.name} was not ready within {LIMIT * self.patience:.0f} s (--peer_patience)")
        self.first = self._turn()
        seconds = None if self.first is None else self._turn()
        self.races = seconds is not None and seconds <= self.patience
        self.once = None if self.races else seconds
        return self.races

    def turn(self) -> float:
        """Seconds of one piece of work, as the worker measures them. Raises UserError if it comes to no end."""
        self.idle += self._processor_time() - self.rested_at
        ours = time.process_time()
        seconds = self._turn()
        self.disturbed += time.process_time() - ours
        if seconds is None:
            raise UserError(f"{self.name} gave no answer within {LIMIT * self.patience:.0f} s, though it had been quick enough before")
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
        """What the worker's next line says under `key`; None if none comes in time."""
        if not select.select([self.said], [], [], LIMIT * self.patience)[0]:
            return None
        line = self.said.readline()
        if not line:
            raise self._death()
        answer = json.loads(line)
        if "error" in answer:
            raise UserError(f"{self.name}: {answer['error']} (--peer needs an interpreter with {self.needs})")
        return answer[key]

    def _death(self) -> Exception:
        status = self.process.wait()
        self.log.seek(0)
        said = [line.strip() for line in self.log if line.strip()]
        return UserError(f"{self.name} died, status {status}: {said[-1] if said else 'it said nothing'}")

    def _processor_time(self) -> float:
        """Seconds that the worker's threads have computed so far; 0 where Linux does not count them."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def started(
    python: str, mode: str, options: Mapping[str, Any], patience: float, worker: Path | None = None, needs: str = "torch and diffusers"
) -> Iterator[Peer]:
    """A worker under the interpreter `python`, with the options of `bench_peer.py` or another `worker`; it ends with the context.

    patience: seconds that a turn of a peer that races may take
    needs: the packages that the worker imports, for a message
    """
    command = [python, str(worker or WORKER), f"--mode={mode}", *(f"--{name}={value}" for name, value in options.items())]
    with tempfile.TemporaryFile("w+") as log:  # a pipe that nobody reads would block the worker
        try:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1)
        except OSError as error:
            raise UserError(f"--peer={python}: {error.strerror}") from error
        peer = Peer(f"peer {mode}", process, log, patience, needs)
        try:
            yield peer
        finally:
            peer.end()
