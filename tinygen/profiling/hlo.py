"""Analysis of a compiled program's HLO text: FLOPs of its matrix products, and its collectives, per device.

XLA's cost analysis includes element-wise work and counts a loop once; here a loop counts with its known trip count.
"""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "ragged-all-to-all",
    "collective-broadcast",
)

INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?(?P<name>[\w.-]+) = (?P<type>\(.*?\)|\S+) (?P<opcode>[\w-]+)\((?P<operands>[^)]*)\)(?P<rest>.*)")
COMMENT = re.compile(r"/\*.*?\*/")
SHAPE = re.compile(r"\b[a-z]+(\d*)\w*\[([\d,]*)\]")  # the bits of an element, which "pred" does not state, and the sizes: "bf16[8,4]"
CALLED = re.compile(r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.-]+)")
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
COUNTED = re.compile(r" (?:dot|convolution|custom-call)\(|" + CALLED.pattern + "|branch_computations=|" + "|".join(COLLECTIVES))
NAME = re.compile(r"\s+(?:ROOT )?%?([\w.-]+) = ")
TURNS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


class Traffic(NamedTuple):
    """Collectives of one kind: the number per run of the program, and the bytes of their results on one device."""

    count: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Program:
    """The work of one device in a run of the program.

    flops: of its matrix products and convolutions, a multiply-add as two
    collectives: {"all-reduce": ...}
    """

    flops: int
    collectives: Mapping[str, Traffic]


def read(text: str) -> Program:
    """Analyses `compiled.as_text()`. A conditional counts as its most expensive branch, a loop of unknown length as one iteration."""
    computations, entry = _computations(text)

    @functools.cache
    def counted(name: str) -> collections.Counter[str]:
        total: collections.Counter[str] = collections.Counter()
        instructions = computations[name]
        for line in filter(COUNTED.search, instructions.values()):
            each = INSTRUCTION.match(COMMENT.sub("", line))
            if each is None:
                continue
            kind = each["opcode"].removesuffix("-done")
            if kind in COLLECTIVES:
                size = sum(element * math.prod(shape) for element, shape in _shapes(each["type"]))
                total += collections.Counter({kind: 1, f"{kind} bytes": size})
                continue
            total["flops"] += _flops(each, instructions)
            branches = BRANCHES.search(each["rest"])
            if branches:
                total += max(
                    (counted(branch.strip(" %")) for branch in branches[1].split(",")), key=lambda branch: (branch["flops"], branch.total())
                )
            turns = int(known[1]) if each["opcode"] == "while" and (known := TURNS.search(each["rest"])) else 1
            for called in CALLED.findall(each["rest"]):
                total += collections.Counter({what: turns * count for what, count in counted(called).items()})
        return total

    total = counted(entry)
    return Program(total["flops"], {kind: Traffic(total[kind], total[f"{kind} bytes"]) for kind in COLLECTIVES if total[kind]})


def _computations(text: str) -> tuple[dict[str, dict[str, str]], str]:
    """({computation: {name: line of the instruction}}, the name of the entry computation)."""
    found: dict[str, dict[str, str]] = {}
    entry, current = "", ""
    for line in text.splitlines():
        if line.endswith("{") and not line.startswith((" ", "HloModule")):
            current = line.removeprefix("ENTRY ").split()[0].lstrip("%")
            entry = current if line.startswith("ENTRY") else entry
            found[current] = {}
        elif current and (match := NAME.match(line)):
            found[current][match[1]] = line
    return found, entry


def _shapes(type_: str) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(bytes per element, shape) of each array of a type."""
    for bits, sizes in SHAPE.findall(type_):
        yield max(1, int(bits or 8) // 8), tuple(int(size) for size in sizes.split(",") if size)


def _shape(line: str) -> tuple[int, ...]:
    """The shape of an instruction's result."""
    return next(_shapes(NAME.sub("", line, count=1)))[1]


def _flops(each: re.Match[str], beside: Mapping[str, str]) -> int:
    """FLOPs of one product: twice the elements of its result times the length of the contraction."""
    opcode, rest = each["opcode"], each["rest"]
    gemm = opcode == "custom-call" and "gemm" in rest and "dot_dimension_numbers" in rest  # cuBLAS
    if opcode not in ("dot", "convolution") and not gemm:
        return 0
    result = math.prod(next(_shapes(each["type"]))[1])
    operands = re.findall(r"%([\w.-]+)", each["operands"])
    if opcode == "convolution":
        kernel = _shape(beside[operands[1]])
        labels = re.search(r"dim_labels=\w+_(\w+)->", rest)
        assert labels
        return 2 * result * math.prod(kernel) // kernel[labels[1].index("o")]
    contracted = re.search(r'lhs_contracting_dim(?:s=\{|ensions":\[)([\d,"]*)', rest)
    left = _shape(beside[operands[0]])
    return 2 * result * math.prod(left[int(axis)] for axis in re.findall(r"\d+", contracted[1] if contracted else ""))
