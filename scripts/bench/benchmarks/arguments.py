"""Types and flags that the benchmarks' command lines share."""

import argparse
from collections.abc import Callable
from typing import Any, TypeVar

from benchmarks.peer import MODES

T = TypeVar("T")


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive integer")
    return int(text)


def non_negative(text: str) -> int:
    return 0 if text == "0" else positive(text)


def seconds(text: str) -> float:
    if not 0 <= float(text) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return float(text)


def mode(text: str) -> str:
    if text not in MODES:
        raise argparse.ArgumentTypeError(f"unknown mode {text!r}: choose from {', '.join(MODES)}")
    return text


def comma_separated(one: Callable[[str], T]) -> Callable[[str], list[T]]:
    """A type for several values of the type `one`, separated by commas."""

    def parse(text: str) -> list[T]:
        return [one(each) for each in text.split(",")]

    return parse


def add(parser: argparse.ArgumentParser, name: str, kind: Callable[[str], Any], default: Any, metavar: str, text: str) -> None:
    """Adds a flag whose help shows its default."""
    parser.add_argument(name, type=kind, default=default, metavar=metavar, help=f"{text} (default: %(default)s)")


def add_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="config override, such as precision=bfloat16; repeatable",
    )


def add_rounds(parser: argparse.ArgumentParser, default: int, what: str) -> None:
    add(parser, "--rounds", positive, default, "N", what)


def add_peer(parser: argparse.ArgumentParser, modes: str, patience: int) -> None:
    parser.add_argument("--peer", default="", metavar="PYTHON", help="compare with a peer: a Python interpreter with its packages")
    add(parser, "--peer_modes", comma_separated(mode), modes, "MODE,...", "modes of the peer")
    add(
        parser,
        "--peer_patience",
        seconds,
        patience,
        "S",
        "longest turn, in seconds, of a peer that takes part in the rounds",
    )
