"""Checks that runs survive kills at any moment, the loss of one of two processes, full disks and damaged files.

    python scripts/torture/torture.py kills [--num=50] [--in_saves=15] [--jobs=2] [--seed=0]
    python scripts/torture/torture.py two [--num=10] [--in_saves=3] [--jobs=1] [--seed=0]
    python scripts/torture/torture.py faults [--only "full disk" "flipped byte"] [--jobs=2]

`kills` first trains a small run without interruption. Each case then trains it again, kills it with SIGKILL at a random moment, after a
random step, or during the save of a random checkpoint, and repeats the command. `two` does the same with two processes that train
together, one of which is killed. `faults` injects other failures, which docs/torture.md lists.
Goal: every finished run equals the uninterrupted one bit for bit, in the arrays of every checkpoint, the numbers of every step and the
pictures. All processes are real `tinygen train` commands in float32. Exits with status 1 if a case fails, and keeps its workdir.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tortures import cases, damage, kills, mounts, show, surroundings
from tortures.runs import Broken, Setup

FAULTS = surroundings.FAULTS | damage.FAULTS


class Command(NamedTuple):
    """define: gives the parser its arguments; measure: makes the result, in a folder

    table, good: its text, and whether all is as promised
    """

    summary: str
    define: Callable[[argparse.ArgumentParser], None]
    measure: Callable[[argparse.Namespace, Path], dict[str, Any]]
    table: Callable[[dict[str, Any]], str]
    good: Callable[[dict[str, Any]], bool]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Kills runs and damages what they leave, and compares how they end.")
    what = parser.add_subparsers(dest="what", required=True)
    for name, command in COMMANDS.items():
        own = what.add_parser(name, help=command.summary, description=command.summary)
        command.define(own)
        own.add_argument("--json", type=Path, metavar="FILE", help="also write all cases to this file")
    arguments = parser.parse_args(argv)
    command = COMMANDS[arguments.what]
    if arguments.what == "faults":
        mounts.enter()  # restarts this program
    os.environ["JAX_PLATFORMS"] = "cpu"  # of this process, which only reads checkpoints
    folder = Path(tempfile.mkdtemp(prefix="tinygen-torture-"))
    kept = False
    try:
        result = command.measure(arguments, folder)
        kept = not command.good(result)
    except Broken as error:
        kept = True
        show(f"torture: {error}")
        return 1
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
    print(command.table(result))
    if kept:
        show(f"what is not as promised, and the uninterrupted run: {folder}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"what": arguments.what, **result}, indent=1) + "\n")
    return int(kept)


def define_kills(num: int, in_saves: int, jobs: int) -> Callable[[argparse.ArgumentParser], None]:
    def define(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--num", type=int, default=num, metavar="N", help=f"runs to kill ({num})")
        parser.add_argument("--in_saves", type=int, default=in_saves, metavar="N", help=f"of these, during a save ({in_saves})")
        parser.add_argument("--jobs", type=int, default=jobs, metavar="N", help=f"parallel runs ({jobs})")
        parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the random moments (0)")

    return define


def define_faults(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only", nargs="+", default=list(FAULTS), choices=FAULTS, metavar="NAME", help=f"faults to inject: {', '.join(FAULTS)}"
    )
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="parallel faults (2)")


def measure_kills(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    setup = Setup(folder / "home", processes=2 if arguments.what == "two" else 1)
    return kills.measure(setup, arguments.num, arguments.in_saves, arguments.jobs, arguments.seed, folder / "runs")


def measure_faults(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    return cases.measure({name: FAULTS[name] for name in arguments.only}, Setup(folder / "home"), arguments.jobs, folder / "runs")


COMMANDS = {
    "kills": Command("SIGKILL at any instant", define_kills(50, 15, 2), measure_kills, kills.table, kills.good),
    "two": Command("SIGKILL to one of two processes", define_kills(10, 3, 1), measure_kills, kills.table, kills.good),
    "faults": Command("disks that fill, files that are damaged, data that vanish", define_faults, measure_faults, cases.table, cases.good),
}


if __name__ == "__main__":
    sys.exit(main())
