"""Checks that a run is the same on every layout of devices: losses, batches, checkpoints.

    python scripts/bench/scale.py [--recipes dit_pixel_faces:smoke fsdp_sine] [--steps=50] [--folder=DIR]

Each recipe is trained for 50 steps in float32 on each layout below, with `tinygen train` in separate processes on fake
CPU devices (XLA's --xla_force_host_platform_device_count), and its losses are compared with those on one device. Then
each of the resulting checkpoints is restored on each layout: all arrays must be equal bit for bit, the next batch must
have the same rows, and the loss of the next step must be as on one device. Goal: relative differences of at most 1e-5.

Takes about twelve minutes per recipe on two cores. Exits with status 1 if a goal is missed. --folder keeps the runs and
reuses finished ones.
"""

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

GOAL = 1e-5
REPOSITORY = Path(__file__).resolve().parents[2]
TINYGEN = [sys.executable, "-m", "tinygen"]


class Layout(NamedTuple):
    """A mesh, and the number of processes that share it."""

    data: int
    fsdp: int
    tensor: int
    processes: int = 1

    @property
    def flags(self) -> list[str]:
        return [f"--config.mesh.{axis}={getattr(self, axis)}" for axis in ("data", "fsdp", "tensor")]


LAYOUTS = {
    "one device": Layout(1, 1, 1),
    "data 2": Layout(2, 1, 1),
    "data 4": Layout(4, 1, 1),
    "data 8": Layout(8, 1, 1),
    "fsdp 2": Layout(1, 2, 1),
    "fsdp 8": Layout(1, 8, 1),
    "tensor 2": Layout(1, 1, 2),
    "tensor 4": Layout(1, 1, 4),
    "2 x 2 x 2": Layout(2, 2, 2),
    "fsdp 8, 2 processes": Layout(1, 8, 1, processes=2),
    "2 x 2 x 2, 2 processes": Layout(2, 2, 2, processes=2),
    "tensor 4, 2 processes": Layout(1, 1, 4, processes=2),  # each process reads the whole batch
    "fsdp 2, tensor 4, 4 processes": Layout(1, 2, 4, processes=4),  # two processes each read the same half
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare a run on many layouts of devices.")
    default = ["dit_pixel_faces:smoke", "fsdp_sine"]
    parser.add_argument(
        "--recipes",
        nargs="+",
        default=default,
        metavar="RECIPE[:VARIANT]",
        help=f"recipes to train (default: {' '.join(default)})",
    )
    parser.add_argument("--steps", type=int, default=50, metavar="N", help="training steps (default: %(default)s)")
    parser.add_argument(
        "--layouts",
        nargs="+",
        default=list(LAYOUTS),
        choices=LAYOUTS,
        metavar="NAME",
        help=f"layouts to compare with the first of them, default all: {'; '.join(LAYOUTS)}",
    )
    parser.add_argument("--folder", type=Path, metavar="DIR", help="keep the runs in this folder, and reuse finished ones")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all numbers to this file")
    parser.add_argument("--worker", nargs=3, metavar=("FOLDER", "LAYOUT", "DISTRIBUTED"), help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.worker:
        return restore_all(Path(arguments.worker[0]), LAYOUTS[arguments.worker[1]], arguments.worker[2])
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)).resolve()
        results = {recipe: measure(recipe, arguments.layouts, arguments.steps, folder / Path(recipe).name) for recipe in arguments.recipes}
    print("\n\n".join(table(recipe, result) for recipe, result in results.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if all(good(result) for result in results.values()) else 1


def measure(recipe: str, layouts: list[str], steps: int, folder: Path) -> dict[str, Any]:
    """{"losses": {layout: largest relative difference}, "restored": {layout: {layout it was saved on: comparison}}}"""
    settings = dict(steps=steps, log_every=1, preview_every=0, eval_every=0, checkpoint_every=0)
    losses = {}
    for name in layouts:
        workdir = folder / name
        show(f"{recipe} on {name}")
        if not (workdir / "checkpoints" / str(steps)).exists():
            train = [
                "train",
                f"--config={recipe}",
                f"--workdir={workdir}",
                "--config.precision=float32",
                *LAYOUTS[name].flags,
            ]
            run_processes(
                [*TINYGEN, *train, *(f"--config.train.{key}={value}" for key, value in settings.items())],
                LAYOUTS[name],
                "--config.distributed=",
            )
        losses[name] = [json.loads(line)["loss"] for line in (workdir / "metrics.jsonl").read_text().splitlines()]
        assert len(losses[name]) == steps, name
    restored = {}
    for name in layouts:
        show(f"{recipe}: restoring all checkpoints on {name}")
        run_processes([sys.executable, __file__, "--worker", str(folder), name], LAYOUTS[name], "")
        restored[name] = json.loads((folder / f"{name}.json").read_text())
    first = layouts[0]
    for saved in restored.values():
        for source, result in saved.items():
            result["difference"] = abs(result["loss"] / restored[first][source]["loss"] - 1)
    return {
        "steps": steps,
        "losses": {name: max(abs(a / b - 1) for a, b in zip(own, losses[first], strict=True)) for name, own in losses.items()},
        "restored": restored,
    }


def run_processes(command: list[str], layout: Layout, flag: str) -> None:
    """Runs a command in as many processes as the layout has, with `flag` and a process's address as the last argument.

    Exits with their output if one fails.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    devices = layout.data * layout.fsdp * layout.tensor // layout.processes
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    environment["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    addresses = [f"{address},{layout.processes},{index}" if layout.processes > 1 else "" for index in range(layout.processes)]
    with contextlib.ExitStack() as stack:  # files, since an unread pipe would block its process
        logs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in addresses]
        running = [
            subprocess.Popen([*command, flag + address], env=environment, stdout=log, stderr=subprocess.STDOUT)
            for address, log in zip(addresses, logs, strict=True)
        ]
        statuses = [process.wait() for process in running]
        if any(statuses):
            for log in logs:
                log.seek(0)
            sys.exit("\n".join(log.read() for log in logs))


def restore_all(folder: Path, layout: Layout, distributed: str) -> int:
    """Runs in each process of a layout: restores the checkpoint of each run in `folder` and takes one step from it."""
    import jax
    import numpy as np
    import orbax.checkpoint as ocp

    from tinygen import build
    from tinygen import config as config_lib
    from tinygen.checkpoints import store
    from tinygen.distributed import processes
    from tinygen.nn.names import path_name
    from tinygen.training import batches as feed
    from tinygen.training.program import make_program

    def same(leaf: jax.Array, stored: np.ndarray) -> bool:
        return all(np.array_equal(shard.data, stored[shard.index]) for shard in leaf.addressable_shards)

    workdirs, results = sorted(path for path in folder.iterdir() if path.is_dir()), {}
    with processes.joined(distributed, 120, str(layout)), contextlib.closing(ocp.PyTreeCheckpointHandler()) as reader:
        # The runs differ only in their meshes, which are replaced by this one: one compiled step serves all.
        saved = store.find(workdirs[0])
        config = config_lib.change(saved.config, dict(mesh=dict(zip(("data", "fsdp", "tensor"), layout, strict=False))))
        source, parts = build.data_source(config), build.parts(config, saved.codec)
        program = make_program(config_lib.change(config, dict(train=dict(steps_per_call=1))), parts)
        abstract, shardings, take_step = program.abstract, program.shardings, program.step
        with feed.device_calls(config, source, parts, 0, saved.step) as batches:
            batch = next(batches)
        whole = next(source.batches("train", config.batch_size, config.seed, 0, saved.step, ahead=False))
        with jax.set_mesh(parts.layout.mesh):
            everywhere = jax.jit(lambda batch: batch, out_shardings=parts.layout.replicated)(batch)
        same_rows = all(np.array_equal(everywhere[key], whole[key]) for key in whole)
        for saved in map(store.find, workdirs):
            with store.make_manager(saved.workdir, keep=9, keep_every=0) as manager:
                state = store.restore(manager, saved.step, abstract, shardings)
            plain = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), reader.metadata(saved.state).tree)
            stored = reader.restore(saved.state, args=ocp.args.PyTreeRestore(restore_args=plain))
            raw = {path_name(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(stored)}
            leaves = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}
            equal = sum(same(leaf, raw[name]) for name, leaf in leaves.items())
            with jax.set_mesh(parts.layout.mesh):
                total, weight = jax.device_get(take_step(state, batch)[1]["loss"])
            loss = float(total) / float(weight)
            results[saved.workdir.name] = {"leaves": len(leaves), "equal": equal, "same_rows": same_rows, "loss": loss}
        if processes.leads():
            name = next(name for name, each in LAYOUTS.items() if each == layout)
            (folder / f"{name}.json").write_text(json.dumps(results))
    return 0


def good(result: dict[str, Any]) -> bool:
    restored = [each for saved in result["restored"].values() for each in saved.values()]
    return (
        max(result["losses"].values()) <= GOAL
        and max(each["difference"] for each in restored) <= GOAL
        and all(each["equal"] == each["leaves"] and each["same_rows"] for each in restored)
    )


def table(recipe: str, result: dict[str, Any]) -> str:
    """A Markdown table with a row per layout."""
    lines = [
        f"{Path(recipe).name}, {result['steps']} steps",
        "",
        "| layout | losses: largest relative difference | checkpoints of all layouts restored here bit for bit "
        "| rows of the next batch | its loss: largest relative difference |",
        "|---|---|---|---|---|",
    ]
    for name, difference in result["losses"].items():
        here = result["restored"][name].values()
        equal = sum(each["equal"] == each["leaves"] for each in here)
        rows = "equal" if all(each["same_rows"] for each in here) else "DIFFERENT"
        lines.append(f"| {name} | {difference:.1e} | {equal} of {len(here)} | {rows} | {max(each['difference'] for each in here):.1e} |")
    return "\n".join(lines)


def show(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
