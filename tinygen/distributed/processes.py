"""Several processes that run one program together, by JAX's own runtime: they meet, they agree, and they fail together.

Process 0 leads: it alone writes logs, grids and reports. Without a cluster there is one process, which leads, and nothing
here costs anything. Words go through the key-value store of JAX's coordination service, which is there before any device
is and when devices hang; numbers of the loop go through a collective of the mesh.
"""

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax._src import distributed  # the key-value store has no public name; Orbax uses it as we do
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tinygen.config import cluster
from tinygen.errors import UserError
from tinygen.system import faults
from tinygen.system.terminal import say

PREFIX = "tinygen"
FAILED = f"{PREFIX}/failed"
ALIVE = f"{PREFIX}/alive"
ONWARD = "What is saved is good; the same command resumes from there."
LOOKS = 0.5  # seconds between two looks at whether another process has failed
DAY = 24 * 3600  # seconds
PATIENCE_MS = 1000  # of one wait for a word of process 0; repeated until it comes


def count() -> int:
    return jax.process_count()


def leads() -> bool:
    """Whether this process is the one that writes."""
    return jax.process_index() == 0


@contextlib.contextmanager
def joined(where: str, timeout: int, command: str) -> Iterator[None]:
    """One of the processes that `where` names ("": the only one), all started by the same `command`, while inside.

    If one of them raises, it tells the others, which say so and leave within seconds. One that is killed tells nobody: the
    others leave when it has given no sign of life for `timeout` seconds, or as soon as a connection to it breaks.

    Raises UserError where no cluster is found, and where processes were started differently. If the others don't come
    within `timeout` seconds, the process ends with a message and status 2.
    """
    meeting = cluster.parse(where)
    if meeting is None:
        yield
        return
    _meet(meeting, where, timeout)
    done = threading.Event()
    watching = threading.Thread(target=_watch, args=(done, timeout), daemon=True)
    watching.start()
    try:
        agree("the number of processes", str(meeting.processes or count()))
        agree("the command", command)
        yield
    except BaseException as error:
        done.set()
        _tell_others(error)
        if isinstance(error, UserError | KeyboardInterrupt) or faults.lost(error):
            say(f"tinygen: {_reason(error)}", error=True)
        elif message := faults.machines(error):
            faults.show(error, message)
        else:
            traceback.print_exception(error)
        _leave(_status(error))  # at once: JAX's own way out waits for all processes, and those in a collective wait for us
    done.set()
    watching.join()


def _meet(meeting: cluster.Cluster, where: str, timeout: int) -> None:
    """Connects to the coordination service."""

    def give_up() -> None:
        say(
            f"tinygen: distributed={where}: not all processes came together within {timeout} s (config.distributed_timeout).\n"
            "Is one missing, is the first one's HOST:PORT unreachable, or were they given different numbers of processes?",
            error=True,
        )
        _leave(2)

    deadline = threading.Timer(timeout, give_up)
    deadline.daemon = True
    deadline.start()
    jax.config.update("jax_enable_preemption_service", False)  # it would swallow SIGTERM; `Largest` does its work
    try:
        jax.distributed.initialize(
            meeting.coordinator, meeting.processes, meeting.process,
            initialization_timeout=timeout + 60,  # JAX's own aborts the process with a C++ stack trace: ours comes first
            heartbeat_timeout_seconds=2 * timeout,  # JAX's own aborts the process too: that of `_watch` comes first
            shutdown_timeout_seconds=DAY,  # while process 0 writes the last files; were it dead, its heartbeat would be missed
        )  # fmt: skip
    except (ValueError, RuntimeError) as error:
        if meeting.coordinator is None:
            raise UserError(
                "distributed=auto: JAX finds no cluster here (Slurm, Open MPI, Kubernetes, TPU). Start through srun or mpirun, or give "
                f"distributed={cluster.FORM} to each process."
            ) from error
        raise UserError(f"distributed={where}: {' '.join(str(error).split())[:200]}") from error
    finally:
        deadline.cancel()


def from_lead(name: str, compute: Callable[[], str]) -> str:
    """What `compute` gives on process 0, on every process; the others wait for it and do not call it.

    name: of the question; each is asked once a run
    """
    if leads():
        answer = compute()
        if count() > 1:
            _store().key_value_set(f"{PREFIX}/{name}", answer)
        return answer
    while True:
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # the wait was too short; should process 0 be gone, JAX ends us
            return _store().blocking_key_value_get(f"{PREFIX}/{name}", PATIENCE_MS)


@contextlib.contextmanager
def lead_first(name: str) -> Iterator[None]:
    """Process 0 goes through the block before the others enter it: what it prepares there (a data set, an index) they find."""
    if not leads():
        from_lead(name, str)
    yield
    if leads():
        from_lead(name, lambda: "ready")


def wait_for_all(name: str) -> None:
    """Waits until every process has come here. One that fails before ends the others."""
    if count() > 1:
        _store().wait_at_barrier(f"{PREFIX}/{name}", DAY * 1000)


def agree(what: str, value: str) -> None:
    """Raises UserError on a process whose `value` is not process 0's."""
    theirs = from_lead(what.replace(" ", "_"), lambda: value)
    if value != theirs:
        raise UserError(
            f"the processes of this run were started differently: {what} is {theirs} on process 0, {value} on {jax.process_index()}"
        )


class Largest:
    """The largest of the numbers that the processes gave one call ago: what all of them know at the same step.

    A collective of its own, whose answer is read only when the next one is under way: nobody waits for it. A process alone
    gets its own number back at once.
    """

    def __init__(self, mesh: Mesh):
        self.everywhere = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        self.largest = jax.jit(jax.numpy.max, out_shardings=NamedSharding(mesh, PartitionSpec()))
        self.answer: Any = 0

    def __call__(self, number: int) -> int:
        if count() == 1:
            return number
        size = self.everywhere.mesh.size
        numbers = jax.make_array_from_callback((size,), self.everywhere, lambda index: np.full(size, number, np.int32)[index])
        before, self.answer = self.answer, self.largest(numbers)
        return int(before)


def _store() -> Any:
    return distributed.global_state.client


class Heartbeats:
    """Signs of life of the processes, in the key-value store: each counts up a number of its own.

    timeout: seconds without a new number after which a process counts as gone
    """

    def __init__(self, timeout: float):
        self.timeout = timeout
        self.number = 0
        self.seen: dict[str, tuple[str, float]] = {}  # the last number of each process, and when it was new here

    def beat(self) -> None:
        self.number += 1
        _store().key_value_set(f"{ALIVE}/{jax.process_index()}", str(self.number), allow_overwrite=True)

    def gone(self, now: float) -> list[str]:
        """The numbers of the processes that have given no sign of life for too long. One that has left in peace is not among them."""
        numbers = {key.rpartition("/")[2]: number for key, number in _store().key_value_dir_get(ALIVE)}
        before, self.seen = self.seen, {}
        for process, number in numbers.items():
            known = before.get(process)
            self.seen[process] = known if known and known[0] == number else (number, now)
        return sorted(process for process, (_, since) in self.seen.items() if now - since > self.timeout)

    def stop(self) -> None:
        """Leaves in peace."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            _store().key_value_delete(f"{ALIVE}/{jax.process_index()}")


def _watch(done: threading.Event, timeout: float) -> None:
    """Ends this process when another one has failed or has gone. In a thread: the main one may wait in a collective for ever."""
    heartbeats, unanswered = Heartbeats(timeout), 0
    while not done.wait(LOOKS):
        try:
            heartbeats.beat()
            gone, unanswered = heartbeats.gone(time.monotonic()), 0
        except jax.errors.JaxRuntimeError:  # the store is process 0
            unanswered += 1
            gone = ["0"] if unanswered * LOOKS > timeout else []
        if gone and not done.is_set():
            say(f"tinygen: process {', '.join(gone)} has gone: no sign of life for {timeout:g} s. {ONWARD}", error=True)
            _leave(1)
        try:
            status, _, message = _store().key_value_try_get(FAILED).partition("\n")
        except jax.errors.JaxRuntimeError:  # nobody has failed
            continue
        if done.wait(LOOKS):  # this one failed too, and says so itself
            return
        say(f"tinygen: {message}", error=True)
        _linger()
        _leave(int(status))
    heartbeats.stop()


def _tell_others(error: BaseException) -> None:
    reason = _reason(error)
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # another one was faster
        _store().key_value_set(FAILED, f"{_status(error)}\nprocess {jax.process_index()} of {count()} failed: {reason}")
    _linger()


def _linger() -> None:
    """Process 0 is the store: it stays until the others have looked."""
    if leads():
        time.sleep(4 * LOOKS)


def _status(error: BaseException) -> int:
    """2 where something outside this program has to be put right, 1 where another process has gone or the fault is ours."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    if isinstance(error, UserError):
        return 2
    return 2 if not faults.lost(error) and faults.machines(error) else 1


def _reason(error: BaseException) -> str:
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if gone := faults.lost(error):
        said = f"{type(gone).__name__}: {' '.join(str(gone).split())}"
        return f"another process has gone ({said[:160]}). {ONWARD}"
    return faults.machines(error) or f"{type(error).__name__}: {' '.join(str(error).split())}"


def _leave(status: int) -> None:
    """Ends the process at once."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
