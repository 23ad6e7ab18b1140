"""How a process computes: one program after another."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from tinygen import cli, commands
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


@pytest.mark.parametrize(("how", "ended"), [("bare", "False"), ("train", "True")])
def test_a_commands_programs_have_ended_when_their_calls_return(how, ended):
    """JAX alone returns at once and computes meanwhile, with the memory of two programs."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == ended
