import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from tinygen.training import program


def traced(compile_step):
    """As much of a traced step as is compiled aside."""
    return SimpleNamespace(lower=lambda: SimpleNamespace(compile=compile_step))


def test_an_error_of_the_compiler_is_raised_where_its_result_is_waited_for():
    def fail():
        raise MemoryError("too large a program")

    compiling = program.compiled_aside(traced(fail))
    with pytest.raises(MemoryError, match="too large a program"):
        compiling.result(60)


LEAVES = """
import time
from types import SimpleNamespace
from tinygen.training import program
compiling = lambda: time.sleep(1) or print("compiled")
program.compiled_aside(SimpleNamespace(lower=lambda: SimpleNamespace(compile=compiling)))
raise SystemExit(2)
"""


def test_a_process_that_ends_while_xla_compiles_says_what_it_waits_for():
    done = subprocess.run([sys.executable, "-c", LEAVES], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "compiled\n")
    assert [line.startswith("tinygen: leaving once XLA") for line in done.stderr.splitlines()] == [True]


def test_nothing_is_said_where_the_program_is_there_before_its_starter_leaves(monkeypatch):
    lines, before = [], set(threading.enumerate())
    monkeypatch.setattr(program, "say", lambda line, **options: lines.append(line))
    assert program.compiled_aside(traced(lambda: "a program")).result(60) == "a program"
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
    assert lines == []
