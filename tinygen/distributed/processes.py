"""Multi-process runs on JAX's distributed runtime: start together, agree on settings, and fail together.

Process 0 is the coordinator and the only one that writes logs, grids and reports. Without a cluster there is one process, and nothing
here has a cost. Strings are exchanged through the key-value store of JAX's coordination service, which works before devices are
initialized and while they hang; the loop's numbers are exchanged by a collective.
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
from tinygen.errors import UserError, duration
from tinygen.system import faults
from tinygen.system.terminal import say

PREFIX = "tinygen"
FAILED = f"{PREFIX}/failed"
ALIVE = f"{PREFIX}/alive"
RESUME = "Saved checkpoints are intact; the same command resumes from there."
POLL = 0.5  # seconds between checks for a failed process
DAY = 24 * 3600  # seconds
WAIT_MS = 1000  # timeout of one request for a value of process 0; repeated until it is there


def count() -> int:
    return jax.process_count()


def leads() -> bool:
    """Whether this is the coordinator process, the one that writes."""
    return jax.process_index() == 0


@contextlib.contextmanager
def joined(where: str, timeout: int, command: str) -> Iterator[None]:
    """Joins the cluster that `where` names ("": a single process), whose processes were all started by the same `command`.

    A process that raises inside the block notifies the others, which report it and exit within seconds. If a process is killed, the
    others exit after `timeout` seconds without a heartbeat, or as soon as a connection to it breaks.

    Raises UserError if no cluster is found, or if processes were started differently. If the others don't connect within `timeout`
    seconds, the process exits with a message and status 2.
    """
    place = cluster.parse(where)
    if place is None:
        yield
        return
    _connect(place, where, timeout)
    done = threading.Event()
    watching = threading.Thread(target=_watch, args=(done, timeout), daemon=True)
    watching.start()
    try:
        agree("the number of processes", str(place.processes or count()))
        agree("the command", command)
        yield
    except BaseException as error:
        done.set()
        _notify(error)
        if isinstance(error, UserError | KeyboardInterrupt) or faults.lost_peer(error):
            say(f"tinygen: {_reason(error)}", error=True)
        elif message := faults.environment_message(error):
            faults.show(error, message)
        else:
            traceback.print_exception(error)
        _exit(_status(error))  # at once: JAX's own shutdown waits for all processes, and those in a collective wait for this one
    done.set()
    watching.join()


def _connect(place: cluster.Cluster, where: str, timeout: int) -> None:
    """Connects to the coordination service."""

    def give_up() -> None:
        say(
            f"tinygen: distributed={where}: not all processes connected within {timeout} s (config.distributed_timeout).\n"
            "Is one missing, is HOST:PORT of process 0 unreachable, or do they differ in the number of processes?",
            error=True,
        )
        _exit(2)

    deadline = threading.Timer(timeout, give_up)
    deadline.daemon = True
    deadline.start()
    jax.config.update("jax_enable_preemption_service", False)  # it would swallow SIGTERM, which `Largest` shares
    try:
        jax.distributed.initialize(
            place.coordinator, place.processes, place.process,
            initialization_timeout=timeout + 60,  # JAX's timeout aborts with a C++ stack trace, so ours must come first
            heartbeat_timeout_seconds=2 * timeout,  # likewise: that of `_watch` must come first
            shutdown_timeout_seconds=DAY,  # while process 0 writes the last files; its death is noticed by the heartbeat
        )  # fmt: skip
    except (ValueError, RuntimeError) as error:
        if place.coordinator is None:
            raise UserError(
                "distributed=auto: JAX finds no cluster here (Slurm, Open MPI, Kubernetes, TPU). Start with srun or mpirun, or set "
                f"distributed={cluster.FORM} for each process."
            ) from error
        raise UserError(f"distributed={where}: {' '.join(str(error).split())[:200]}") from error
    finally:
        deadline.cancel()


def from_lead(name: str, compute: Callable[[], str]) -> str:
    """The result of `compute` on process 0, on every process. The others wait for it and do not call `compute`.

    name: the key of this value, used once per run
    """
    if leads():
        answer = compute()
        if count() > 1:
            _store().key_value_set(f"{PREFIX}/{name}", answer)
        return answer
    while True:
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # timed out; if process 0 is dead, JAX ends this process
            return _store().blocking_key_value_get(f"{PREFIX}/{name}", WAIT_MS)


@contextlib.contextmanager
def lead_first(name: str) -> Iterator[None]:
    """Runs the block on process 0 first, then on the others, which find what it prepared (a data set, an index)."""
    if not leads():
        from_lead(name, str)
    yield
    if leads():
        from_lead(name, lambda: "ready")


def wait_for_all(name: str) -> None:
    """A barrier. A process that fails before it ends the others."""
    if count() > 1:
        _store().wait_at_barrier(f"{PREFIX}/{name}", DAY * 1000)


def agree(what: str, value: str) -> None:
    """Raises UserError on a process whose `value` differs from process 0's."""
    theirs = from_lead(what.replace(" ", "_"), lambda: value)
    if value != theirs:
        raise UserError(
            f"the processes of this run were started differently: {what} is {theirs} on process 0, {value} on {jax.process_index()}"
        )


class Largest:
    """The maximum over processes of the numbers of the previous call, the same on all of them at the same step.

    A collective whose result is read only after the next one has been dispatched, so that nothing waits for it. A single process gets
    its own number back immediately.
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
    """Heartbeats in the key-value store: each process increments a counter.

    timeout: seconds without a heartbeat after which a process counts as lost
    """

    def __init__(self, timeout: float):
        self.timeout = timeout
        self.number = 0
        self.seen: dict[str, tuple[str, float]] = {}  # the last count of each process, and when it was first seen

    def beat(self) -> None:
        self.number += 1
        _store().key_value_set(f"{ALIVE}/{jax.process_index()}", str(self.number), allow_overwrite=True)

    def lost(self, now: float) -> list[str]:
        """The indices of the processes without a heartbeat for `timeout` seconds, except those that have stopped normally."""
        numbers = {key.rpartition("/")[2]: number for key, number in _store().key_value_dir_get(ALIVE)}
        before, self.seen = self.seen, {}
        for process, number in numbers.items():
            known = before.get(process)
            self.seen[process] = known if known and known[0] == number else (number, now)
        return sorted(process for process, (_, since) in self.seen.items() if now - since > self.timeout)

    def stop(self) -> None:
        """Ends the heartbeat of this process, which is then not counted as lost."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            _store().key_value_delete(f"{ALIVE}/{jax.process_index()}")


def _watch(done: threading.Event, timeout: float) -> None:
    """Ends this process when another one has failed or is lost. Runs in a thread, since the main one may hang in a collective."""
    heartbeats, unanswered = Heartbeats(timeout), 0
    while not done.wait(POLL):
        try:
            heartbeats.beat()
            lost, unanswered = heartbeats.lost(time.monotonic()), 0
        except jax.errors.JaxRuntimeError:  # the store is on process 0
            unanswered += 1
            lost = ["0"] if unanswered * POLL > timeout else []
        if lost and not done.is_set():
            say(f"tinygen: lost process {', '.join(lost)}: no heartbeat for {duration(timeout)}. {RESUME}", error=True)
            _exit(1)
        try:
            status, _, message = _store().key_value_try_get(FAILED).partition("\n")
        except jax.errors.JaxRuntimeError:  # nobody has failed
            continue
        if done.wait(POLL):  # this process failed too, and reports it itself
            return
        say(f"tinygen: {message}", error=True)
        _linger()
        _exit(int(status))
    heartbeats.stop()


def _notify(error: BaseException) -> None:
    reason = _reason(error)
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # another process was faster
        _store().key_value_set(FAILED, f"{_status(error)}\nprocess {jax.process_index()} of {count()} failed: {reason}")
    _linger()


def _linger() -> None:
    """Keeps process 0, which hosts the store, alive until the others have read it."""
    if leads():
        time.sleep(4 * POLL)


def _status(error: BaseException) -> int:
    """The exit status: 2 for a user's mistake or an environment error, 1 for a lost process or a bug."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    if isinstance(error, UserError):
        return 2
    return 2 if not faults.lost_peer(error) and faults.environment_message(error) else 1


def _reason(error: BaseException) -> str:
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if lost := faults.lost_peer(error):
        text = f"{type(lost).__name__}: {' '.join(str(lost).split())}"
        return f"lost another process ({text[:160]}). {RESUME}"
    return faults.environment_message(error) or f"{type(error).__name__}: {' '.join(str(error).split())}"


def _exit(status: int) -> None:
    """Ends the process at once."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
