"""Peak memory of restoring a checkpoint, relative to the size of the state.

    python scripts/bench/restore_memory.py [--config=dit_faces_80m] [--saved=1] [--restored=8]

One process saves the recipe's state, filled with noise (zeros would not be stored), from an fsdp mesh of `saved` CPU
devices; a new process restores it onto `restored` devices. The peak is the kernel's VmHWM, reset through
/proc/self/clear_refs, minus what was resident before: the program and its libraries. No data set is needed. Goal: at
most 1.3 times the bytes of parameters, averages and moments. Linux only.
"""

import argparse
import functools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tinygen.data.labels import Labels
from tinygen.media import Image

GOAL = 1.3


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure the peak memory of restoring a checkpoint.")
    parser.add_argument("--config", default="dit_faces_80m", metavar="RECIPE[:VARIANT]", help="recipe (default: %(default)s)")
    parser.add_argument("--saved", type=int, default=1, metavar="N", help="devices to save from (default: %(default)s)")
    parser.add_argument("--restored", type=int, default=1, metavar="M", help="devices to restore onto (default: %(default)s)")
    parser.add_argument("--shape", default="64,64,3", metavar="H,W,C", help="shape of an example (default: %(default)s)")
    parser.add_argument("--phase", choices=("save", "restore"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.phase:
        shape = tuple(map(int, arguments.shape.split(",")))
        {"save": save, "restore": restore}[arguments.phase](arguments.config, shape, arguments.folder, arguments)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        for phase, devices in (("save", arguments.saved), ("restore", arguments.restored)):
            command = [sys.executable, __file__, *(argv if argv is not None else sys.argv[1:]), f"--phase={phase}", f"--folder={folder}"]
            flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
            subprocess.run(command, check=True, env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags})
    return 0


def prepare(recipe: str, shape: tuple[int, ...]) -> tuple[Any, Any, Any, Any]:
    """(config, codec, abstract state, shardings), with fsdp over all devices."""
    from tinygen.system import malloc

    malloc.retain_freed_memory()  # as the command line does; before any threads start
    import jax

    from tinygen import build
    from tinygen import config as config_lib
    from tinygen.data.codec import Codec, Field
    from tinygen.train_step import init_state

    config = config_lib.change(config_lib.load(recipe), dict(mesh=dict(data=1, fsdp=-1, tensor=1)))
    spec = {"x": Field(shape=shape, dtype="float32", low=-1, high=1), "label": Field(shape=(), dtype="int32", low=0, high=9)}
    codec = Codec(medium=Image(), spec=spec, conditions=(Labels(tuple("0123456789")),))
    parts = build.parts(config, codec)
    init = functools.partial(init_state, parts.create, build.optimizer(config)[0], config.seed)
    abstract = jax.eval_shape(init)
    return config, codec, abstract, parts.layout.shardings(abstract)


def save(recipe: str, shape: tuple[int, ...], folder: str, arguments: argparse.Namespace) -> None:
    """Saves a state whose leaves are noise and prints the peak memory."""
    config, codec, abstract, shardings = prepare(recipe, shape)
    import jax
    import numpy as np
    from etils import epath

    from tinygen.checkpoints import store

    numbers = np.random.default_rng(0)

    def noise(leaf: Any, sharding: Any) -> Any:
        return jax.device_put(numbers.standard_normal(leaf.shape, np.float32).astype(leaf.dtype), sharding)

    state = jax.tree.map(noise, abstract, shardings)
    with store.make_manager(epath.Path(folder), keep=1, keep_every=0) as manager:
        before = memory("VmRSS", reset_peak=True)
        store.save(manager, 1, state, config, codec, {})
        manager.wait_until_finished()
    peak = (memory("VmHWM") - before) / size_of(state)
    print(f"saved from {arguments.saved} devices: peak memory {peak:.2f} x the state, in addition to the state itself")


def restore(recipe: str, shape: tuple[int, ...], folder: str, arguments: argparse.Namespace) -> None:
    """Restores the state and prints the peak memory."""
    _, _, abstract, shardings = prepare(recipe, shape)
    import jax
    from etils import epath

    from tinygen.checkpoints import store

    jax.block_until_ready(jax.device_put(0.0))  # the backend's own memory
    with store.make_manager(epath.Path(folder), keep=1, keep_every=0) as manager:
        before, began = memory("VmRSS", reset_peak=True), time.perf_counter()
        state = jax.block_until_ready(store.restore(manager, 1, abstract, shardings))
    seconds, peak = time.perf_counter() - began, memory("VmHWM") - before
    size, load = size_of(state), os.getloadavg()[0]
    print(
        f"restored onto {arguments.restored} devices: {size / 1e9:.3f} GB of state, peak {peak / 1e9:.3f} GB = {peak / size:.2f} x "
        f"(goal: {GOAL} x), {seconds:.1f} s; load {load:.1f}"
    )


def size_of(state: Any) -> int:
    import jax

    return sum(leaf.nbytes for leaf in jax.tree.leaves(state))


def memory(field: str, reset_peak: bool = False) -> int:
    """A field of /proc/self/status in bytes; `reset_peak` first resets the peak to the memory in use."""
    if reset_peak:
        Path("/proc/self/clear_refs").write_text("5")
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(lines[field].split()[0])


if __name__ == "__main__":
    sys.exit(main())
