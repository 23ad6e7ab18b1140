"""Fault injection: kills at any instant, the loss of one of two processes, full disks, damaged files.

    python scripts/torture/torture.py kills [--num=50] [--in_saves=15] [--jobs=2] [--seed=0]
    python scripts/torture/torture.py two [--num=10] [--in_saves=3] [--jobs=1] [--seed=0]
    python scripts/torture/torture.py faults [--only "full disk" "flipped byte"] [--jobs=2]

`kills` trains a small run once without interruption. For each case it starts the run again, kills it with SIGKILL at a
random instant, after a random step, or during a random save, and restarts the same command. `two` does the same for
runs of two processes, one of which is killed. `faults` injects the other faults that docs/torture.md lists. Goal: every
finished run equals the uninterrupted one bit for bit: the arrays of all checkpoints, the metrics of all steps, the
pictures. All processes are real `tinygen train` commands in float32. Exits with status 1 if any case fails, and keeps
the workdirs of failed cases.
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
    """A subcommand.

    define: adds its flags to a parser
    measure: runs the cases in a folder and returns the result
    table: formats the result
    passed: whether all cases passed
    """

    summary: str
    define: Callable[[argparse.ArgumentParser], None]
    measure: Callable[[argparse.Namespace, Path], dict[str, Any]]
    table: Callable[[dict[str, Any]], str]
    passed: Callable[[dict[str, Any]], bool]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Kill runs and damage their files, and compare the finished runs with an uninterrupted one."
    )
    subparsers = parser.add_subparsers(dest="what", required=True)
    for name, command in COMMANDS.items():
        own = subparsers.add_parser(name, help=command.summary, description=command.summary)
        command.define(own)
        own.add_argument("--json", type=Path, metavar="FILE", help="also write all cases to this file")
    arguments = parser.parse_args(argv)
    command = COMMANDS[arguments.what]
    if arguments.what == "faults":
        mounts.enter()  # restarts this program
    os.environ["JAX_PLATFORMS"] = "cpu"  # for this process, which only reads checkpoints
    folder = Path(tempfile.mkdtemp(prefix="tinygen-torture-"))
    kept = False
    try:
        result = command.measure(arguments, folder)
        kept = not command.passed(result)
    except Broken as error:
        kept = True
        show(f"torture: {error}")
        return 1
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
    print(command.table(result))
    if kept:
        show(f"failed cases and the uninterrupted run are kept in {folder}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"what": arguments.what, **result}, indent=1) + "\n")
    return int(kept)


def define_kills(num: int, in_saves: int, jobs: int) -> Callable[[argparse.ArgumentParser], None]:
    def define(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--num", type=int, default=num, metavar="N", help="runs to kill (default: %(default)s)")
        parser.add_argument(
            "--in_saves",
            type=int,
            default=in_saves,
            metavar="N",
            help="how many of them are killed during a save (default: %(default)s)",
        )
        parser.add_argument("--jobs", type=int, default=jobs, metavar="N", help="parallel runs (default: %(default)s)")
        parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the random instants (default: %(default)s)")

    return define


def define_faults(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only",
        nargs="+",
        default=list(FAULTS),
        choices=FAULTS,
        metavar="NAME",
        help=f"faults to inject, default all: {', '.join(FAULTS)}",
    )
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="parallel cases (default: %(default)s)")


def measure_kills(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    setup = Setup(folder / "home", processes=2 if arguments.what == "two" else 1)
    return kills.measure(setup, arguments.num, arguments.in_saves, arguments.jobs, arguments.seed, folder / "runs")


def measure_faults(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    return cases.measure({name: FAULTS[name] for name in arguments.only}, Setup(folder / "home"), arguments.jobs, folder / "runs")


COMMANDS = {
    "kills": Command("Kill runs with SIGKILL at any instant", define_kills(50, 15, 2), measure_kills, kills.table, kills.passed),
    "two": Command("Kill one of two processes with SIGKILL", define_kills(10, 3, 1), measure_kills, kills.table, kills.passed),
    "faults": Command(
        "Inject full disks, damaged files, missing data and other faults",
        define_faults,
        measure_faults,
        cases.table,
        cases.passed,
    ),
}


if __name__ == "__main__":
    sys.exit(main())
