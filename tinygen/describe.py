"""What a recipe would run, before it runs: its data, parameters by module, operations, memory, and shapes that cost time."""

import collections
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from tinygen import build, checkpoint
from tinygen.config import Config
from tinygen.flops import Products, flops, products
from tinygen.sharding import Layout, path_name
from tinygen.state import TrainState, graph_of, init_state
from tinygen.train import jitted_step, optimizer

TILES = {8: "GPU, CPU", 128: "TPU"}  # what a product's sizes are padded to: tensor cores and vector registers; the MXU


def main(config: Config) -> int:
    """Prints the description. Nothing is trained or written; the training step is compiled to learn what memory it takes."""
    source = build.data_source(config)
    parts = build.parts(config, source.codec)
    build.check_batch_size(config, parts.layout)
    abstract = jax.eval_shape(lambda: init_state(parts.create, optimizer(config)[0], config.seed))
    batch = build.abstract_batch(source.codec, config.batch_size)
    console = Console(width=None if Console().is_terminal else 120)
    for line in (f"data {config.data.name}", *(f"  {line}" for line in source.about()), f"  a batch: {shapes_of(batch)}"):
        console.print(line, markup=False, highlight=False)
    console.print(parameters(abstract.params))
    step = jitted_step(config, parts, graph_of(parts.create), parts.layout.shardings(abstract))
    with jax.set_mesh(parts.layout.mesh):
        counted = products(step, abstract, batch)
    shapes = advice(config, parts.layout.batch_multiple, abstract.params, counted)
    for line in (work(config.batch_size, counted), *memory(step, parts.layout, abstract, batch), *shapes):
        console.print(line, markup=False, highlight=False)
    return 0


def shapes_of(batch: Mapping[str, jax.ShapeDtypeStruct]) -> str:
    return ", ".join(f"{key} {leaf.dtype}{list(leaf.shape)}" for key, leaf in batch.items())


def parameters(params: Any) -> Table:
    """A row a module, those of equal blocks together."""
    rows: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = module_of(path_name(path))
        rows[name][0] += 1
        rows[name][1] += math.prod(leaf.shape)
    total = checkpoint.count(params)
    table = Table(title=f"{total:,} parameters", title_justify="left", box=None, pad_edge=False)
    table.add_column("module")
    for heading in ("arrays", "parameters", "share"):
        table.add_column(heading, justify="right")
    for name, (leaves, elements) in rows.items():
        table.add_row(name, f"{leaves}", f"{elements:,}", f"{elements / total:.1%}")
    return table


def module_of(path: str) -> str:
    """ "blocks/*/attention" for "blocks/3/attention/query/kernel": two names deep, numbers taken together."""
    names = ["*" if name.isdigit() else name for name in path.split("/")]
    depth = 3 if "*" in names[:2] else 1
    return "/".join(names[: min(depth, max(1, len(names) - 1))])


def work(batch_size: int, counted: Products) -> str:
    operations = flops(counted)
    return f"{si(operations)}FLOPs a step, {si(operations / batch_size)}FLOPs an example: the matrix products, forward and backward"


def memory(step: Any, layout: Layout, abstract: TrainState, batch: Mapping[str, jax.ShapeDtypeStruct]) -> Iterator[str]:
    """The memory of one device: the state exactly, the step's temporaries as XLA plans them."""
    shardings = layout.shardings(abstract)
    placed = jax.tree.map(lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), abstract, shardings)
    rows = {key: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=layout.batch) for key, leaf in batch.items()}
    with jax.set_mesh(layout.mesh):
        plan = step.lower(placed, rows).compile().memory_analysis()
    held = {
        "parameters": bytes_held(placed.params),
        "EMA": bytes_held(placed.ema),
        "optimizer": bytes_held(placed.opt_state),
        "buffers": bytes_held(placed.buffers),
    }
    yield "memory a device: " + ", ".join(f"{name} {si(size, 1024)}B" for name, size in held.items() if size)
    if plan is not None:
        temporary = plan.temp_size_in_bytes
        total = sum(held.values()) + temporary
        yield f"  while it steps {si(temporary, 1024)}B more: {si(total, 1024)}B in all, without previews and evaluation"


def bytes_held(placed: Any) -> int:
    """Bytes of a tree of placed leaves on one device."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(placed))


def si(value: float, base: int = 1000) -> str:
    """ "1.25 T" for 1.25e12, and with base 1024 "1.25 Ti"."""
    prefixes = ("", "k", "M", "G", "T", "P", "E")
    power = max(0, min(int(math.log(max(value, 1), base)), len(prefixes) - 1))
    return f"{value / base**power:.3g} {prefixes[power]}{'i' if base == 1024 and power else ''}"


def advice(config: Config, ways: int, params: Any, counted: Products) -> Iterator[str]:
    """What padding to an accelerator's tiles adds to the products, and a line for each size that has a share in it.

    ways: devices that split the batch
    """
    for tile, machines in TILES.items():
        extra = flops(counted, tile) / flops(counted) - 1
        yield f"padded to multiples of {tile} ({machines}), the products are {extra:.1%} more work"
        for size, share in uneven(counted, tile):
            padded = -(-size // tile) * tile
            yield f"  warning: {size}{where(size, config, params)} is no multiple: it counts as {padded} in {share:.0%} of the work"
    rows = config.batch_size // config.optim.accumulate // ways
    if rows % 8:
        yield f"  warning: a batch of {rows} examples on a device is no multiple of 8"


def uneven(counted: Products, tile: int) -> list[tuple[int, float]]:
    """(size, share of all operations) of the sizes that `tile` does not divide, where padding them adds a hundredth or more."""
    shares: collections.Counter[int] = collections.Counter()
    for product, times in counted.items():
        for size in {size for size in product[1:] if size % tile}:
            shares[size] += times * product.flops()
    return [(size, share / flops(counted)) for size, share in shares.most_common() if share * (-size % tile) / size >= flops(counted) / 100]


def where(size: int, config: Config, params: Any) -> str:
    """Where a size comes from, as far as that can be told: the model's width, or the first parameter that has it."""
    if size == config.model.get("width"):
        return " (config.model.width)"
    leaves = [path_name(path) for path, leaf in jax.tree_util.tree_leaves_with_path(params) if size in leaf.shape]
    return f" ({leaves[0]})" if leaves else ""
