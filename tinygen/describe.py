"""What a recipe would run, before it runs: its data, parameters by module, operations, memory, and shapes that cost time."""

import collections
import functools
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

WARNINGS = 3  # sizes that are named, a tile


def main(config: Config) -> int:
    """Prints the description. Nothing is trained; data that have to be prepared are, and the step is compiled to plan its memory."""
    source = build.data_source(config)
    parts = build.parts(config, source.codec)
    build.check_batch_size(config, parts.layout)
    abstract = jax.eval_shape(lambda: init_state(parts.create, optimizer(config)[0], config.seed))
    batch = build.abstract_batch(source.codec, config.batch_size)
    console = Console(width=None if Console().is_terminal else 120)
    show = functools.partial(console.print, markup=False, highlight=False, soft_wrap=True)
    show("\n  ".join([f"data {config.data.name}", *source.about(), f"a batch: {shapes_of(batch)}"]))
    console.print(parameters(abstract.params))
    step = jitted_step(config, parts, graph_of(parts.create), parts.layout.shardings(abstract))
    with jax.set_mesh(parts.layout.mesh):
        counted = products(step, abstract, batch)
    show(work(config.batch_size, counted))
    with Console(stderr=True).status("compiling the training step"):
        planned = list(memory(step, parts.layout, abstract, batch))
    show("\n".join([*planned, *advice(config, parts.layout.batch_multiple, abstract.params, counted)]))
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
    """What padding to an accelerator's tiles adds to the products, and a line for each of the sizes that add most.

    The sizes are the whole model's, before mesh.tensor splits any.

    ways: devices that split the batch
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
    """(size, share of all operations) of the sizes that `tile` does not divide, those first whose padding adds most.

    Left out are those that add less than a hundredth.
    """
    shares: collections.Counter[int] = collections.Counter()
    for product, times in counted.items():
        for size in {size for size in product[1:] if size % tile}:
            shares[size] += times * product.flops()
    added = {size: share * (-size % tile) / size for size, share in shares.items()}
    large = sorted((size for size in added if added[size] >= flops(counted) / 100), key=lambda size: -added[size])
    return [(size, shares[size] / flops(counted)) for size in large]


def origin(size: int, config: Config, params: Any) -> str:
    """Where a size comes from, as far as that can be told."""
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
