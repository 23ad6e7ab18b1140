import re

import jax
import numpy as np
import pytest
from flax import nnx
from rich.console import Console

from tinygen import build
from tinygen import config as config_lib
from tinygen.errors import UserError
from tinygen.nn.flops import Product, Products
from tinygen.profiling import footprint
from tinygen.train_step import init_state, split
from tinygen.training import describe


@pytest.fixture(scope="module")
def described(tiny):
    """What is printed of the tiny run, and the state that it would have."""
    config = tiny()
    parts = build.parts(config, build.data_source(config).codec)
    return config, parts, jax.eval_shape(lambda: init_state(parts.create, build.optimizer(config)[0], 0))


def test_a_description_names_the_data_the_parameters_the_work_and_the_memory(described, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config, _, abstract = described
    assert describe.main(config) == 0
    said = capsys.readouterr().out
    total = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(abstract.params))
    assert f"{total:,} parameters" in said
    assert "9,000 examples to train on, 1,000 held out; 6 labels: black, brown, " in said
    assert "x float32[64, 16, 16, 3], label int32[64]" in said
    assert re.search(r"FLOPs per step, .* per example", said)
    assert re.search(r"memory per device: parameters .*, EMA .*, optimizer ", said)
    assert re.search(r"during a step .*: .* in total, .* \(arguments .*, results ", said)
    assert "mesh: data 8 x fsdp 1 x tensor 1" in said
    assert re.search(r"work per device: .*FLOPs per step, \d+ all-reduce of ", said)
    assert re.search(r"replicated on every device: \S+ .*B, ", said)
    assert re.search(r"^blocks/\*/attention/query/kernel +1 +8 x 8 +whole +256 B$", said, re.M)
    assert list(tmp_path.iterdir()) == []  # nothing is written


def test_the_modules_of_equal_blocks_are_added_up(tiny):
    config = tiny(model=dict(depth=3))
    parts = build.parts(config, build.data_source(config).codec)
    params = nnx.eval_shape(lambda: split(parts.create(nnx.Rngs(0)))[1])
    console = Console(width=120)
    with console.capture() as captured:
        console.print(describe.parameters(params))
    said = captured.get()
    rows = dict(re.findall(r"^(\S+) +\d+ +([\d,]+) ", said, re.M))
    attention, width = int(rows["blocks/*/attention"].replace(",", "")), 8
    assert attention == 3 * (4 * (width * width + width) + 2 * width // 2)  # four products, and two norms of a head's size
    assert sum(int(number.replace(",", "")) for number in rows.values()) == int(re.search(r"([\d,]+) parameters", said)[1].replace(",", ""))


def test_a_recipe_that_cannot_run_is_refused_as_training_refuses_it(tiny):
    with pytest.raises(UserError, match="heads"):
        describe.main(tiny(model=dict(heads=3)))
    with pytest.raises(UserError, match="batch_size=12"):
        describe.main(tiny(batch_size=12))


def test_a_device_holds_its_share_of_what_is_split(described):
    config, parts, abstract = described
    sharded = build.parts(config_lib.change(config, dict(mesh=dict(data=1, fsdp=8), sharding=dict(min_size=1))), parts.codec).layout
    whole, share = (
        footprint.bytes_held(jax.tree.map(lambda leaf, at: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at), tree, places))
        for tree, places in (
            (abstract.params, parts.layout.shardings(abstract.params)),
            (abstract.params, sharded.shardings(abstract.params)),
        )
    )
    assert whole == sum(4 * int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(abstract.params))
    assert whole / 8 <= share < whole / 4  # a few leaves do not divide by eight


def test_a_size_that_a_tile_does_not_divide_is_warned_of_with_its_share(described):
    config, _, abstract = described
    counted = Products({Product(1, 128, 72, 128): 1, Product(1, 128, 128, 128): 1})
    work = [2 * 128 * 72 * 128, 2 * 128**3]
    assert describe.uneven(counted, 8) == []
    assert describe.uneven(counted, 128) == [(72, work[0] / sum(work))]
    said = list(describe.advice(config, 8, abstract.params, counted))
    assert said[0] == "in tiles of 8 (GPU, CPU), the products are 0.0% more work"
    assert said[1] == f"in tiles of 128 (TPU), the products are {2 * work[1] / sum(work) - 1:.1%} more work"
    assert said[2] == "  warning: 72 (tokens) counts as 128, in 36% of the work"
    assert len(said) == 3


def test_sizes_that_cost_next_to_nothing_are_not_warned_of():
    assert describe.uneven(Products({Product(1, 128, 4, 128): 1, Product(512, 128, 128, 128): 1}), 128) == []  # a small share of the work
    assert describe.uneven(Products({Product(1, 12801, 128, 128): 1}), 128) == []  # all of it, but hardly larger when padded


def test_sizes_are_named_by_where_they_come_from(tiny, described):
    _, _, abstract = described
    config = tiny(model=dict(width=36, heads=3))
    named = {size: describe.origin(size, config, abstract.params) for size in (36, 12, 192, 64 * 7, 7)}
    assert named == {
        36: " (config.model.width)",
        12: " (config.model.width / heads)",
        192: " (embed)",  # patches of 8 x 8 x 3
        64 * 7: " (batch x 7)",
        7: " (tokens)",
    }


def test_a_batch_that_leaves_a_device_few_examples_is_warned_of(tiny, described):
    _, _, abstract = described
    assert "  warning: 4 examples at once on a device (config.batch_size=64): better a multiple of 8" in describe.advice(
        tiny(), 16, abstract.params, Products({Product(1, 64, 64, 64): 1})
    )


def test_what_padding_multiplies_is_told_as_a_factor_and_only_the_worst_sizes_are_named(described):
    config, _, abstract = described
    counted = Products({Product(1, size, size, 128): 1 for size in (3, 5, 7, 9, 11)})
    said = list(describe.advice(config, 8, abstract.params, counted))
    assert re.fullmatch(r"in tiles of 128 \(TPU\), the products are \d+ times the work", said[4])
    assert len(said) == 2 + 2 * describe.WARNINGS


def test_quantities_are_written_with_three_digits_and_a_prefix():
    assert [footprint.si(value) for value in (0, 999, 1.25e12, 3e20)] == ["0 ", "999 ", "1.25 T", "300 E"]
    assert [footprint.si(value, 1024) for value in (512, 2**20, 1.5 * 2**30)] == ["512 ", "1 Mi", "1.5 Gi"]


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("blocks/3/attention/query/kernel", "blocks/*/attention"),
        ("blocks/3/modulation_table", "blocks/*"),
        ("embed/kernel", "embed"),
        ("null", "null"),
    ],
)
def test_a_module_is_named_by_its_first_names(path, module):
    assert describe.module_of(path) == module
