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


def test_whoever_leaves_while_xla_compiles_is_told_what_is_waited_for(monkeypatch):
    ended, told, lines = threading.Event(), threading.Event(), []

    def say(line, **options):
        lines.append((line, options))
        told.set()

    def compile_step():
        assert ended.wait(60)
        return "a program"

    monkeypatch.setattr(program, "say", say)
    found = []
    starter = threading.Thread(target=lambda: found.append(program.compiled_aside(traced(compile_step))))
    starter.start()
    starter.join(60)  # it has left, as a run that is refused does
    assert told.wait(60)
    ended.set()
    assert found[0].result(60) == "a program"
    assert [line.startswith("tinygen: leaving once XLA") for line, _ in lines] == [True]


def test_nothing_is_said_where_the_program_is_there_before_its_starter_leaves(monkeypatch):
    lines, before = [], set(threading.enumerate())
    monkeypatch.setattr(program, "say", lambda line, **options: lines.append(line))
    assert program.compiled_aside(traced(lambda: "a program")).result(60) == "a program"
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
    assert lines == []
