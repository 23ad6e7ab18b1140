"""`train --describe`: a recipe's data, parameters, FLOPs, memory and communication per device, and shapes that waste compute."""

import collections
import functools
import math
from collections.abc import Iterator
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from tinygen import build, optim
from tinygen import config as config_lib
from tinygen.checkpoints import store
from tinygen.config import Config
from tinygen.data.codec import Field
from tinygen.distributed import processes
from tinygen.nn.flops import Products, flops, products_of
from tinygen.nn.layers import patches_of
from tinygen.nn.names import path_name
from tinygen.profiling import footprint
from tinygen.profiling.footprint import Footprint, si
from tinygen.system import runtime
from tinygen.training.preflight import check_batch_size, check_programs
from tinygen.training.program import make_program
from tinygen.training.setup import codec_so_far

TILES = {8: "GPU, CPU", 128: "TPU"}  # matrix sizes are padded to multiples of these: tensor cores and vector registers; the MXU

WARNINGS = 3  # sizes named per tile


def main(config: Config) -> int:
    """Prints the description without training. Prepares missing data, and compiles the step for its memory plan."""
    runtime.listen(quiet=not processes.leads())
    source = build.data_source(config, codec_so_far(config, None))
    parts = build.parts(config, source.codec)
    check_batch_size(config, parts.layout)
    program = make_program(config_lib.change(config, dict(train=dict(steps_per_call=1))), parts)
    check_programs(config, parts, program.abstract)
    console = Console(width=None if Console().is_terminal else 120)
    show = functools.partial(console.print, markup=False, highlight=False, soft_wrap=True)
    shapes = ", ".join(f"{key} {leaf.dtype}{list(leaf.shape)}" for key, leaf in program.argument.items())
    show("\n  ".join([f"data {config.data.name}", *source.about(), f"a batch: {shapes}"]))
    console.print(parameters(program.abstract.params))
    traced = program.traced()
    counted = products_of(traced.jaxpr)
    operations = [f"{si(flops(counted) / num)}FLOPs per {what}" for what, num in {"step": 1, "example": config.batch_size}.items()]
    said = f"{', '.join(operations)}: matrix products, forward and backward"
    show("\n".join([said, *filling(config.model.get("patch", 1), source.codec.spec.get("x"))]))
    with Console(stderr=True).status("compiling the training step"):
        taken = footprint.measure(traced.lower().compile(), parts.layout, program.abstract)
    console.print(partition(taken))
    steps, keys = config.train.steps, build.schedule_keys(config)
    rates = [optim.outlook(0, steps, 0, **keys), *(f"  warning: {line}" for line in optim.oddities(0, steps, 0, **keys))]
    show("\n".join([*rates, *taken.lines(), *advice(config, parts.layout.batch_multiple, program.abstract.params, counted)]))
    return 0


def parameters(params: Any) -> Table:
    """One row per module; equal blocks share a row."""
    rows: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = module_of(path_name(path))
        rows[name][0] += 1
        rows[name][1] += math.prod(leaf.shape)
    total = store.count(params)
    table = headed(f"{total:,} parameters", "module", "arrays", "parameters", "share")
    for name, (leaves, elements) in rows.items():
        table.add_row(name, f"{leaves}", f"{elements:,}", f"{elements / total:.1%}")
    return table


def headed(title: str, first: str, *others: str) -> Table:
    """An empty table. first, others: headings of columns; the others are aligned to the right"""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column(first, overflow="fold")
    for heading in others:
        table.add_column(heading, justify="right")
    return table


def module_of(path: str) -> str:
    """ "blocks/*/attention" for "blocks/3/attention/query/kernel": two names deep, with numbers as "*"."""
    names = ["*" if name.isdigit() else name for name in path.split("/")]
    depth = 3 if "*" in names[:2] else 1
    return "/".join(names[: min(depth, max(1, len(names) - 1))])


def filling(patch: int, x: Field | None) -> list[str]:
    """A warning if patches do not divide the sides of examples; else nothing."""
    sides = x.shape[:-1] if x else ()
    filled = [patch * count for count in patches_of(sides, patch)]
    if list(sides) == filled:
        return []
    before, after = ("x".join(map(str, each)) for each in (sides, filled))
    more = math.prod(filled) / math.prod(sides) - 1
    return [f"  warning: patches of {patch} do not divide {before}: padded with zeros to {after}, which is {more:.1%} more work"]


def partition(taken: Footprint) -> Table:
    """The sharding of each leaf, one row for equal blocks; EMA and moments are sharded like their parameters."""
    title = "sharding of the leaves; EMA and moments like their parameters"
    table = headed(title, "leaf", "leaves", "shape", "split by", "per device")
    for group in taken.groups:
        axes = taken.axes(group)
        spec = ", ".join(axis or "-" for axis in axes) if any(axes) else "whole"
        shape = " x ".join(map(str, group.shape)) or "number"
        table.add_row(group.path.removeprefix("params/"), f"{group.leaves}", shape, spec, f"{si(group.bytes, 1024)}B")
    return table


def advice(config: Config, ways: int, params: Any, counted: Products) -> Iterator[str]:
    """The work that padding to an accelerator's tiles adds, and the sizes that add most.

    Sizes are those of the whole model, before mesh.tensor splits them.

    ways: number of devices that split the batch
    """
    for tile, machines in TILES.items():
        padded = flops(counted, tile) / flops(counted)
        yield f"in tiles of {tile} ({machines}), the products are " + (
            f"{padded - 1:.1%} more work" if padded < 3 else f"{padded:.0f} times the work"
        )
        for size, share in uneven(counted, tile)[:WARNINGS]:
            yield f"  warning: {size}{origin(size, config, params)} counts as {-(-size // tile) * tile}, in {share:.0%} of the work"
    rows = config.batch_size // config.optim.accumulate // ways
    if rows % 8:
        yield f"  warning: {rows} examples at once on a device (config.batch_size={config.batch_size}): better a multiple of 8"


def uneven(counted: Products, tile: int) -> list[tuple[int, float]]:
    """(size, share of all FLOPs) of the sizes that `tile` does not divide, costliest padding first; below 1 % is omitted."""
    shares: collections.Counter[int] = collections.Counter()
    for product, times in counted.items():
        for size in {size for size in product[1:] if size % tile}:
            shares[size] += times * product.flops()
    added = {size: share * (-size % tile) / size for size, share in shares.items()}
    large = sorted((size for size in added if added[size] >= flops(counted) / 100), key=lambda size: -added[size])
    return [(size, shares[size] / flops(counted)) for size in large]


def origin(size: int, config: Config, params: Any) -> str:
    """Where a size comes from, as a guess."""
    model = config.model
    if size == model.get("width"):
        return " (config.model.width)"
    if "heads" in model and size == model.get("width") // model.heads:
        return " (config.model.width / heads)"
    leaves = jax.tree_util.tree_leaves_with_path(params)
    kernels = [module_of(path_name(path)) for path, leaf in leaves if len(leaf.shape) > 1 and size in leaf.shape]
    if kernels:
        return f" ({kernels[0]})"
    return f" (batch x {size // config.batch_size})" if size % config.batch_size == 0 else " (tokens)"
