"""Whether a run is the same on every layout of devices: its losses, its batches, its checkpoints.

    python scripts/bench/scale.py [--recipes dit_pixel_faces:smoke fsdp_sine] [--steps=50] [--folder=DIR]

Every recipe is trained for 50 steps in float32 on each layout below, as `tinygen train` in processes of its own on fake CPU devices
(XLA's --xla_force_host_platform_device_count), and its losses are compared with those on one device. Then each of the
checkpoints that this leaves is restored on each of the layouts: every array must come back bit for bit, the batch that follows
must be the same rows, and the loss of the next step as on one device. Goals: relative differences of at most 1e-5.

Takes about twelve minutes a recipe on two cores. Ends with status 1 if a goal is missed. --folder keeps the runs, and goes on from those
that are already there.
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
TINYGEN = [sys.executable, "-c", "import sys; from tinygen.cli.main import main; sys.exit(main())"]


class Place(NamedTuple):
    """A mesh, over so many processes."""

    data: int
    fsdp: int
    tensor: int
    processes: int = 1

    @property
    def flags(self) -> list[str]:
        return [f"--config.mesh.{axis}={getattr(self, axis)}" for axis in ("data", "fsdp", "tensor")]


PLACES = {
    "one device": Place(1, 1, 1),
    "data 2": Place(2, 1, 1),
    "data 4": Place(4, 1, 1),
    "data 8": Place(8, 1, 1),
    "fsdp 2": Place(1, 2, 1),
    "fsdp 8": Place(1, 8, 1),
    "tensor 2": Place(1, 1, 2),
    "tensor 4": Place(1, 1, 4),
    "2 x 2 x 2": Place(2, 2, 2),
    "fsdp 8, 2 processes": Place(1, 8, 1, processes=2),
    "2 x 2 x 2, 2 processes": Place(2, 2, 2, processes=2),
    "tensor 4, 2 processes": Place(1, 1, 4, processes=2),  # every process reads the whole batch
    "fsdp 2, tensor 4, 4 processes": Place(1, 2, 4, processes=4),  # two and two read the same half
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compares a run on many layouts of devices.")
    default = [str(REPOSITORY / "configs" / name) for name in ("dit_pixel_faces.py:smoke", "fsdp_sine.py")]
    parser.add_argument("--recipes", nargs="+", default=default, metavar="PATH[:VARIANT]")
    parser.add_argument("--steps", type=int, default=50, metavar="N")
    parser.add_argument(
        "--places",
        nargs="+",
        default=list(PLACES),
        choices=PLACES,
        metavar="NAME",
        help="some of the layouts; the others are compared with the first",
    )
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where the runs are kept")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every number here")
    parser.add_argument("--worker", nargs=3, metavar=("FOLDER", "PLACE", "DISTRIBUTED"), help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.worker:
        return restore_all(Path(arguments.worker[0]), PLACES[arguments.worker[1]], arguments.worker[2])
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)).resolve()
        results = {recipe: measure(recipe, arguments.places, arguments.steps, folder / Path(recipe).name) for recipe in arguments.recipes}
    print("\n\n".join(table(recipe, result) for recipe, result in results.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if all(good(result) for result in results.values()) else 1


def measure(recipe: str, places: list[str], steps: int, folder: Path) -> dict[str, Any]:
    """{"losses": {place: largest relative difference}, "restored": {place: {saved on: what came back}}}"""
    settings = dict(steps=steps, log_every=1, preview_every=0, eval_every=0, checkpoint_every=0)
    losses = {}
    for name in places:
        workdir = folder / name
        show(f"{recipe} on {name}")
        if not (workdir / "checkpoints" / str(steps)).exists():
            train = ["train", f"--config={recipe}", f"--workdir={workdir}", "--config.precision=float32", *PLACES[name].flags]
            together(
                [*TINYGEN, *train, *(f"--config.train.{key}={value}" for key, value in settings.items())],
                PLACES[name],
                "--config.distributed=",
            )
        losses[name] = [json.loads(line)["loss"] for line in (workdir / "metrics.jsonl").read_text().splitlines()]
        assert len(losses[name]) == steps, name
    restored = {}
    for name in places:
        show(f"{recipe}: every checkpoint on {name}")
        together([sys.executable, __file__, "--worker", str(folder), name], PLACES[name], "")
        restored[name] = json.loads((folder / f"{name}.json").read_text())
    alone = places[0]
    for saved in restored.values():
        for source, result in saved.items():
            result["difference"] = abs(result["loss"] / restored[alone][source]["loss"] - 1)
    return {
        "steps": steps,
        "losses": {name: max(abs(a / b - 1) for a, b in zip(own, losses[alone], strict=True)) for name, own in losses.items()},
        "restored": restored,
    }


def together(command: list[str], place: Place, flag: str) -> None:
    """Runs a command in as many processes as the place has, the word that joins them appended; exits with what they say if one fails."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    devices = place.data * place.fsdp * place.tensor // place.processes
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    environment["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    words = [f"{address},{place.processes},{index}" if place.processes > 1 else "" for index in range(place.processes)]
    with contextlib.ExitStack() as stack:  # files and not pipes: one that nobody reads meanwhile would block its process
        logs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in words]
        running = [
            subprocess.Popen([*command, flag + word], env=environment, stdout=log, stderr=subprocess.STDOUT)
            for word, log in zip(words, logs, strict=True)
        ]
        statuses = [process.wait() for process in running]
        if any(statuses):
            for log in logs:
                log.seek(0)
            sys.exit("\n".join(log.read() for log in logs))


def restore_all(folder: Path, place: Place, distributed: str) -> int:
    """Restores each run's checkpoint under `folder` on this place, in one of its processes, and takes one step from it."""
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
    with processes.joined(distributed, 120, str(place)), contextlib.closing(ocp.PyTreeCheckpointHandler()) as reader:
        # The runs differ in their mesh alone, and here all have this one: one step serves them all.
        saved = store.find(workdirs[0])
        config = config_lib.change(saved.config, dict(mesh=dict(zip(("data", "fsdp", "tensor"), place, strict=False))))
        source, parts = build.data_source(config), build.parts(config, saved.codec)
        config = config_lib.change(config, dict(train=dict(steps_per_call=1)))
        made = make_program(config, parts)
        abstract, shardings, take_step = made.abstract, made.shardings, made.step
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
            name = next(name for name, each in PLACES.items() if each == place)
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
    """What a person reads: a row a layout, in Markdown."""
    lines = [
        f"{Path(recipe).name}, {result['steps']} steps",
        "",
        "| layout | losses: largest relative difference | every layout's checkpoint restored here, bit for bit "
        "| the next batch's rows | its loss: largest difference |",
        "|---|---|---|---|---|",
    ]
    for name, difference in result["losses"].items():
        here = result["restored"][name].values()
        equal = sum(each["equal"] == each["leaves"] for each in here)
        rows = "the same" if all(each["same_rows"] for each in here) else "OTHERS"
        lines.append(f"| {name} | {difference:.1e} | {equal} of {len(here)} | {rows} | {max(each['difference'] for each in here):.1e} |")
    return "\n".join(lines)


def show(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
