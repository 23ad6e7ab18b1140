"""Whose an exception is, and what the terminal shows of those that are nobody's bug: one line, and a file with the traceback."""

import errno
import os
import re
import resource
import stat
import subprocess
import sys
from pathlib import Path
from urllib.error import URLError

import jax
import numpy as np
import pytest

from tinygen.cli import commands
from tinygen.cli import main as cli
from tinygen.system import faults

ROOT = Path(__file__).parents[2]
RECIPE = str(ROOT / "configs" / "dit_digits8.py")
LIMIT = 240  # seconds, after which a test counts a process as hanging
PROGRAM = "import sys; from tinygen.cli.main import main; sys.exit(main(sys.argv[1:]))"
NAMED = re.compile(r"The traceback is in (\S+)")


def raised(error, cause=None, context=None):
    """The error as it is once raised: from its cause, or while its context was dealt with."""
    error.__context__ = context
    if cause:
        error.__cause__ = cause
    try:
        raise error
    except BaseException as caught:
        return caught


def nested(depth):
    return nested(depth + 1)


def deep():
    import json

    try:
        json.loads("[" * 200_000)
    except RecursionError as error:
        return error


def python_deep():
    try:
        nested(0)
    except RecursionError as error:
        return error


XLA = jax.errors.JaxRuntimeError
MACHINES = {
    "a path": (FileNotFoundError(errno.ENOENT, "No such file or directory", "data/x.png"), "data/x.png: No such file"),
    "no path": (OSError(errno.EIO, "Input/output error"), "input/output: Input/output error"),
    "files": (OSError(errno.EMFILE, "Too many open files", "x.py"), "Too many open files (x.py): allow this process more"),
    "ctypes": (OSError("libx.so: cannot open shared object file: Too many open files"), "Too many open files"),
    "memory": (MemoryError(), "Cannot allocate memory: free memory"),
    "numpy": (np._core._exceptions._ArrayMemoryError((10**6, 10**6), np.dtype("f8")), "Unable to allocate 7.28 TiB"),
    "threads": (RuntimeError("can't start new thread"), "can't start new thread"),
    "mapping": (ImportError("libtensorflow_cc.so.2: failed to map segment from shared object"), "libtensorflow_cc.so.2"),
    "disk": (OSError(errno.ENOSPC, "No space left on device", "run/a"), "No space left on device (run/a): make room"),
    "library": (ImportError("libcudart.so.12: cannot open shared object file"), "cannot be imported (libcudart.so.12"),
    "version": (ImportError("cannot import name 'x' from 'flax'", name="flax"), "cannot import name 'x' from 'flax'"),
    "device": (XLA("RESOURCE_EXHAUSTED: Out of memory allocating 2 bytes"), "out of device memory"),
    "backend": (RuntimeError("Unable to initialize backend 'cuda': none"), "JAX finds no such device"),
    "network": (URLError("timed out"), "a network request failed"),
    "json": (deep(), "nested too deeply"),
    "python": (python_deep(), "nested too deeply"),
    "wrapped": (raised(ValueError("loading failed"), OSError(errno.EMFILE, "Too many open files", "x")), "Too many open files (x)"),
    "handled": (raised(AttributeError("no _ssock"), context=OSError(errno.EMFILE, "Too many open files")), "Too many open files"),
    "group": (ExceptionGroup("tasks", [ValueError("a"), MemoryError()]), "Cannot allocate memory"),
    "tensorflow": (
        ImportError("Traceback (most recent call last):\n  File x\nImportError: a.so: Cannot allocate memory\n\nFailed to load"),
        "a.so: Cannot allocate memory",
    ),
}


@pytest.mark.parametrize("name", MACHINES)
def test_what_is_nobodys_bug_is_one_line(name):
    error, said = MACHINES[name]
    assert said in (message := faults.environment_message(error))
    assert "\n" not in message
    assert len(message) < 500


@pytest.mark.parametrize(
    "fault",
    [
        ValueError("ours"),
        KeyError("ours"),
        OSError("no number, no name"),
        RuntimeError("ours"),
        ImportError("cannot import name 'x' from 'tinygen.train_step'", name="tinygen.train_step"),
        XLA("INTERNAL: ours"),
        raised(KeyError("ours"), context=FileNotFoundError(errno.ENOENT, "No such file", "x")),  # while a missing file was dealt with
    ],
)
def test_a_fault_of_ours_keeps_its_traceback(monkeypatch, fault):
    def fail(*_):
        raise fault

    monkeypatch.setattr(commands, "_command", lambda _: fail)
    with pytest.raises(type(fault)) as caught:
        cli.main(["train", f"--config={RECIPE}"])
    assert caught.value is fault


def test_a_recursion_of_ours_is_ours():
    code = compile("def again(n):\n    return again(n + 1)\n", os.path.join(faults.PACKAGE, "train_step.py"), "exec")
    exec(code, space := {})
    with pytest.raises(RecursionError) as caught:
        space["again"](0)
    assert faults.environment_message(caught.value) is None


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(faults.tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_traceback_is_kept_in_a_private_new_file_that_the_second_line_names(monkeypatch, temporary, capsys):
    monkeypatch.setattr(commands, "_command", lambda _: lambda *_: Path("missing/file.txt").read_text())
    status = cli.main(["train", f"--config={RECIPE}"])
    lines = capsys.readouterr().err.splitlines()
    assert status == 2
    assert lines[0] == "tinygen: missing/file.txt: No such file or directory"
    assert len(lines) == 2
    path = Path(NAMED.match(lines[1])[1])
    assert path.parent == temporary
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "Traceback (most recent call last)" in path.read_text()
    assert "FileNotFoundError" in path.read_text()


def test_where_no_file_can_be_written_the_traceback_is_printed(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(faults.tempfile, "tempdir", str(tmp_path / "nowhere"))
    faults.show(raised(OSError(errno.EIO, "Input/output error")), "input/output: Input/output error")
    said = capsys.readouterr().err
    assert said.startswith("tinygen: input/output: Input/output error\nTraceback")
    assert said.endswith("OSError: [Errno 5] Input/output error\n")


def test_objects_that_an_error_left_half_made_print_nothing_as_they_go(temporary, capsys):
    class Half:
        def __del__(self):
            raise AttributeError("no such attribute: it was never made")

    def fail():
        half = Half()
        raise OSError(errno.EMFILE, "Too many open files", str(half))

    with pytest.raises(OSError, match="Too many") as caught:
        fail()
    faults.show(caught.value, "Too many open files")
    assert "never made" not in capsys.readouterr().err


# Real processes


def limited(*arguments, **limits):
    """(exit status, stderr's lines) of a process with these limits."""

    def limit():
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, name), (value, value))

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},  # OpenBLAS greets a thread that it cannot have
        preexec_fn=limit, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("limits", [dict(RLIMIT_NOFILE=5), dict(RLIMIT_AS=300 * 2**20)], ids=str)
def test_too_few_files_or_too_little_memory_for_the_imports_are_two_lines(limits, tmp_path):
    """300 MiB of address space are too few for JAX's library. With a little more, native threads abort by themselves."""
    status, said = limited("train", f"--config={RECIPE}:smoke", f"--workdir={tmp_path / 'run'}", **limits)
    said = said[next(index for index, line in enumerate(said) if line.startswith("tinygen: ")) :]  # after the log
    assert status == 2, said
    assert len(said) == 2, said
    assert said[0].startswith(f"tinygen: {faults.FILES if 'RLIMIT_NOFILE' in limits else faults.MEMORY}")
    path = Path(NAMED.match(said[1])[1])
    assert "Traceback" in path.read_text()
    path.unlink()


def test_output_that_nobody_reads_any_more_ends_a_command_in_silence():
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "help"],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no such device")
def test_output_that_finds_no_room_is_two_lines():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, "help"],
            env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=full, stderr=subprocess.PIPE, text=True, timeout=LIMIT, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 2
    assert "No space left on device (" in done.stderr
    os.unlink(NAMED.search(done.stderr)[1])
