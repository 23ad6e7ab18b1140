"""How a process computes, one program after another, and how signals end it."""

import logging
import signal
import subprocess
import sys

import pytest

from tinygen.system import runtime

PROGRAM = """
import sys
from tinygen.cli import commands, main as cli
words = {"train": ["train", "--config=configs/dit_digits8.py:smoke"], "bare": []}[sys.argv[1]]
if words:
    commands._command = lambda module: lambda *args: 0
    assert cli.main(words) == 0
import jax, jax.numpy as jnp
work = jax.jit(lambda x: jax.lax.fori_loop(0, 500, lambda i, y: jnp.tanh(y @ x), x))
x = jnp.ones((256, 256))
jax.block_until_ready(work(x))
print(work(x).is_ready())
"""


@pytest.mark.slow
@pytest.mark.parametrize(("how", "ended"), [("bare", "False"), ("train", "True")])
def test_a_commands_programs_have_ended_when_their_calls_return(how, ended):
    """JAX alone returns at once and computes meanwhile, with the memory of two programs."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == ended


ASKED = """
import sys
from tinygen.cli import commands, main as cli
def compiles(*args):
    import jax
    jax.jit(lambda x: x.sum())(jax.numpy.ones(3))  # reads XLA_FLAGS
    return 0
commands._command = lambda module: compiles
assert cli.main(["train", "--config=configs/dit_digits8.py:smoke", *sys.argv[1:]]) == 0
import os
print(os.environ.get("XLA_FLAGS"))
"""


@pytest.mark.parametrize(("words", "asked"), [([], False), (["--config.deterministic"], True)])
def test_deterministic_asks_xla_for_it_in_words_that_it_knows(words, asked):
    """XLA ends a process whose XLA_FLAGS hold a word that it doesn't know."""
    done = subprocess.run([sys.executable, "-c", ASKED, *words], capture_output=True, text=True, check=True)
    assert ("--xla_gpu_deterministic_ops=true" in done.stdout.split()) == asked


# A call into C that takes minutes, as a compilation may.
COMPILING = """
import hashlib, sys
from tinygen.system.runtime import stop_on_signals
with stop_on_signals() as stop:
    stop.idle = True
    print("compiling", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_while_there_is_nothing_to_save_a_signal_ends_even_a_compilation_at_once(number):
    process = subprocess.Popen([sys.executable, "-c", COMPILING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "compiling\n"
    process.send_signal(number)
    assert process.wait(timeout=30) == 128 + number
    assert f"{number.name}: nothing new to save; stopping." in process.communicate()[1]


@pytest.mark.parametrize(
    ("path", "level", "shown"),
    [
        (runtime.__file__, logging.INFO, True),
        ("/home/me/tinygen/.venv/lib/site-packages/orbax/checkpoint/manager.py", logging.INFO, False),
        ("/home/me/tinygen/.venv/lib/site-packages/orbax/checkpoint/manager.py", logging.WARNING, True),
    ],
)
def test_of_other_packages_only_warnings_are_shown_though_they_lie_below_a_folder_of_our_name(path, level, shown):
    assert runtime.is_shown(logging.LogRecord("absl", level, path, 1, "a line", (), None)) == shown
