"""Several processes on this machine, joined by JAX's own runtime. Each test starts real ones; they meet on a free port."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from tinygen import build, cluster, processes
from tinygen.errors import UserError
from tinygen.sharding import Layout, make_mesh

LIMIT = 240  # seconds, after which a test counts processes as hanging
PROGRAM = "import sys; from tinygen import cli; {before}; sys.exit(cli.main(sys.argv[1:]))"


@pytest.fixture
def start(tmp_path):
    """start(index, flag, *arguments, devices=4, before=""): process `index` of two; `before` is run in it before the command."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    started = []

    def begin(index, *arguments, flag="--config.distributed", devices=4, before="pass", of=2):
        flags = f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"
        log = (tmp_path / f"{len(started)}.log").open("w+")
        command = [sys.executable, "-c", PROGRAM.format(before=before), *arguments, f"{flag}={address},{of},{index}"]
        child = subprocess.Popen(command, env={**os.environ, "XLA_FLAGS": flags}, stdout=log, stderr=subprocess.STDOUT, cwd=tmp_path)
        started.append(child)

        def wait():
            status = child.wait(LIMIT)
            log.seek(0)
            return SimpleNamespace(status=status, said=log.read())

        return SimpleNamespace(wait=wait, kill=lambda number: child.send_signal(number), running=lambda: child.poll() is None)

    yield begin
    for child in started:
        child.kill()


def quick(workdir, recipe="dit_pixel_faces", **settings):
    settings = dict(eval_every=0, preview_every=0, checkpoint_every=0, log_every=1) | settings
    return [f"--config=configs/{recipe}.py:smoke", f"--workdir={workdir}", *(f"--config.train.{key}={value}" for key, value in settings.items())]
