"""Which errors mean a lost process: JAX raises several kinds, depending on where the connection broke."""

import errno

import jax
import pytest

from tinygen.distributed import processes
from tinygen.errors import UserError
from tinygen.system import faults

XLA = jax.errors.JaxRuntimeError
PAIR = "[external/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:8706"


def caused(error, cause):
    error.__cause__ = cause
    return error


LOST = {
    "a collective, as it is read": ValueError(f"FAILED_PRECONDITION: Buffer Definition Event: Gloo all-reduce failed: {PAIR}"),
    "a collective, as it is dispatched": XLA(f"UNKNOWN: Gloo all-reduce failed: {PAIR}"),
    "a context": XLA(
        "UNKNOWN: Gloo context initialization failed: DEADLINE_EXCEEDED: GetKeyValue() timed out with key: cpu:gloo/0,1,2,3/4"
    ),
    "the store": XLA("UNAVAILABLE: failed to connect to all addresses; last error: ipv4:127.0.0.1:8706: Connection refused"),
    "a GPU's": XLA("INTERNAL: NCCL operation ncclAllReduce failed: remote process exited or there was a network error"),
    "a heartbeat": RuntimeError("UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats): /job:jax_worker/task:1"),
    "a cause": caused(RuntimeError("the batch cannot be placed"), ValueError(f"INTERNAL: Gloo all-gather failed: {PAIR}")),
    "a group": ExceptionGroup("saving", [XLA(f"UNKNOWN: Gloo all-reduce failed: {PAIR}")]),
}


@pytest.mark.parametrize("name", LOST)
def test_an_error_that_says_so_is_one_line_and_status_1(name):
    said = processes._reason(LOST[name])
    assert said.startswith("lost another process (")
    assert said.endswith("the same command resumes from there.")
    assert "\n" not in said
    assert processes._status(LOST[name]) == 1


def test_what_was_being_handled_counts_too():
    gone, later = LOST["a collective, as it is read"], RuntimeError("cleaning up failed")
    later.__context__ = gone  # as Python sets it where an `except` block raises
    assert faults.lost_peer(later) is gone


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (ValueError("shapes (3,) and (4,)"), 1, "ValueError: shapes (3,) and (4,)"),
        (XLA("INTERNAL: an instruction failed"), 1, "JaxRuntimeError: INTERNAL: an instruction failed"),
        (KeyError("Gloo"), 1, "KeyError: 'Gloo'"),  # no such kind comes from a collective
        (UserError("Gloo is a place on this disk that is full"), 2, "Gloo is a place on this disk that is full"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(errno.ENOSPC, "No space left on device", "run/a"), 2, "No space left on device (run/a): make room there"),
        (MemoryError(), 2, "Cannot allocate memory: free memory, or raise the limit of this process (ulimit -v, ulimit -u, a container's)"),
    ],
)
def test_any_other_error_is_not_taken_for_a_lost_process(error, status, said):
    assert not faults.lost_peer(error)
    assert (processes._status(error), processes._reason(error)) == (status, said)
