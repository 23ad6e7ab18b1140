"""What a device holds, does and sends, read from compiled programs: the model splits as its tables say."""

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tinygen import build
from tinygen import config as config_lib
from tinygen.checkpoints import store
from tinygen.data.codec import Codec, Field
from tinygen.data.labels import Labels
from tinygen.distributed.mesh import Layout, make_mesh
from tinygen.media import Image
from tinygen.nn.attention import Attention
from tinygen.nn.feed_forward import SwiGLU
from tinygen.nn.flops import flops, products
from tinygen.profiling import footprint, hlo
from tinygen.train_step import init_state, merge, split
from tinygen.training import program

ROOT = Path(__file__).parents[2]
FSDP, TENSOR, ALL = (1, 8, 1), (1, 1, 4), (2, 2, 2)


def mesh_of(data, fsdp, tensor):
    return make_mesh(dict(data=data, fsdp=fsdp, tensor=tensor), jax.devices()[: data * fsdp * tensor])


@pytest.fixture(scope="module")
def taken(tiny):
    """taken(mesh, precision): (footprint, operations of the whole step, bytes of the whole state) of a small DiT with four heads."""
    model = dict(patch=2, width=32, heads=4, adaln="shared", mlp_ratio=8.0, mlp_multiple=64)

    @functools.cache
    def take(sizes, precision="float32"):
        config = tiny(batch_size=16, precision=precision, model=model, sharding=dict(min_size=64))
        parts = build.parts(config, build.data_source(config).codec)
        abstract = jax.eval_shape(lambda: init_state(parts.create, build.optimizer(config)[0], 0))
        layout = Layout(mesh_of(*sizes), build.MODELS["microdit"].SHARDING, config.sharding.min_size)
        own = build.dataclasses.replace(parts, layout=layout)
        made = program.make_program(config, own)
        measured = footprint.measure(made.compiled(), layout, abstract)
        with jax.set_mesh(layout.mesh):
            return measured, flops(products(made.step, abstract, made.argument)), sum(4 * leaf.size for leaf in jax.tree.leaves(abstract))

    return take


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [FSDP, ALL], ids=str)
def test_eight_devices_do_an_eighth_of_the_work_each(taken, sizes):
    measured, operations, _ = taken(sizes)
    assert operations / 8 <= measured.program.flops <= 1.1 * operations / 8  # tensor does not split the condition's few products


@pytest.mark.slow
def test_four_devices_of_the_tensor_axis_do_a_quarter_of_the_work_each(taken):
    measured, operations, _ = taken(TENSOR)
    assert operations / 4 <= measured.program.flops <= 0.3 * operations


def test_fsdp_holds_an_eighth_of_the_state_and_gathers_each_parameter_once(taken):
    measured, _, total = taken(FSDP)
    assert sum(measured.held.values()) <= 1.2 * total / 8  # the rest is biases of fewer elements than min_size
    assert {"all-gather", "all-reduce"} <= measured.program.collectives.keys()
    assert measured.program.collectives["all-gather"].bytes <= 1.1 * total / 4  # state: parameters, EMA and two moments
    assert measured.step["argument"] >= sum(measured.held.values())
    assert measured.step["temporary"] > 0


def test_the_tensor_axis_sends_only_sums(taken):
    assert taken(TENSOR)[0].program.collectives.keys() == {"all-reduce"}


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(8, 1, 1), TENSOR], ids=str)
def test_rounded_products_send_what_exact_ones_do(taken, sizes):
    """A product whose operands are pinned in memory would be sent whole."""
    exact, rounded = (taken(sizes, precision)[0].program.collectives for precision in ("float32", "bfloat16"))
    assert rounded.keys() == exact.keys() == {"all-reduce"}
    assert rounded["all-reduce"].bytes <= exact["all-reduce"].bytes


@pytest.fixture(scope="module")
def two():
    """two(layer): its programs forward and with gradients of input and parameters, on two devices that split heads or hidden features."""
    layout = Layout(mesh_of(1, 1, 2), (*Attention.SHARDING, *SwiGLU.SHARDING))

    def compiled(create):
        graphdef, params, buffers = nnx.eval_shape(lambda: split(create(nnx.Rngs(0))))
        abstract = footprint.placed({"attention": params}, layout)["attention"]
        x = jax.ShapeDtypeStruct((4, 6, 16), jnp.float32, sharding=layout.batch)

        def forward(params, x):
            return merge(graphdef, params, buffers)(x)

        def backward(params, x):
            return jax.grad(lambda params, x: jnp.sum(jnp.sin(forward(params, x))), argnums=(0, 1))(params, x)

        places = jax.tree.map(lambda leaf: leaf.sharding, abstract)
        with jax.set_mesh(layout.mesh):
            return [
                hlo.read(jax.jit(function, out_shardings=out).lower(abstract, x).compile().as_text())
                for function, out in ((forward, layout.batch), (backward, (places, layout.batch)))
            ], flops(products(forward, abstract, x))

    return compiled


@pytest.mark.parametrize(
    ("create", "inputs"),
    [
        (lambda rngs: Attention(16, 4, 4, qk_norm=False, precision="float32", attention="auto", needs_jvp=False, rngs=rngs), 3),
        (lambda rngs: SwiGLU(16, 32, precision="float32", rngs=rngs), 2),
    ],
    ids=["attention", "feed-forward"],
)
def test_a_pair_of_products_needs_one_sum_forward_and_one_back(two, create, inputs):
    """Columns, then rows; backwards the sum is of as many arrays as the input has products."""
    (forward, backward), operations = two(create)
    size = 4 * 6 * 16 * 4
    assert forward == hlo.Program(operations // 2, {"all-reduce": hlo.Traffic(1, size)})
    assert backward.flops == 3 * operations // 2
    assert backward.collectives == {"all-reduce": hlo.Traffic(2, size * (1 + inputs))}


def test_the_table_has_a_row_for_the_leaves_of_equal_blocks_and_none_for_what_follows_them(tiny):
    config = tiny(model=dict(depth=3, width=16))
    parts = build.parts(config, build.data_source(config).codec)
    abstract = jax.eval_shape(lambda: init_state(parts.create, build.optimizer(config)[0], 0))
    rules = ((r"blocks/1/modulation/kernel", None), *build.MODELS["microdit"].SHARDING)
    layout = Layout(mesh_of(*ALL), rules, min_size=64)
    rows = {group.path: group for group in footprint.groups(footprint.placed(abstract, layout))}
    assert rows["params/blocks/*/attention/query/kernel"] == footprint.Group(
        "params/blocks/*/attention/query/kernel", 3, (16, 16), ("fsdp", "tensor"), 16 * 16 * 4 // 4
    )
    assert rows["params/blocks/1/modulation/kernel"].spec == (None, None)  # one block stands otherwise: each is named
    assert rows["params/blocks/0/modulation/kernel"].spec == (None, "fsdp")
    others = {path for path in rows if not path.startswith("params/")}
    assert others == {"opt_state/adam/count", "opt_state/rate/count", "guard/attempt", "guard/skipped", "step"}
    assert sum(row.leaves for row in rows.values()) == len(jax.tree.leaves(abstract.params)) + len(others)


def test_what_is_whole_everywhere_is_named_with_its_size_the_largest_first(taken):
    measured, *_ = taken(ALL)
    sizes = [group.bytes * group.leaves for group in measured.replicated]
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) == footprint.LARGEST
    assert not any(any(measured.axes(group)) for group in measured.replicated)


def test_the_manifest_is_told_everything_as_json(taken):
    measured, *_ = taken(FSDP)
    facts = json.loads(json.dumps(measured.facts()))
    assert facts["mesh"] == dict(data=1, fsdp=8, tensor=1)
    assert facts["memory_per_device"].keys() == {"params", "ema", "opt_state", "buffers", "argument", "output", "temporary"}
    assert facts["flops_per_device"] == measured.program.flops
    assert facts["collectives"]["all-gather"] == measured.program.collectives["all-gather"]._asdict()
    assert facts["shardings"]["params/blocks/*/feed_forward/down/kernel"] == [None, "fsdp"]
    assert list(facts["replicated"].values()) == [group.bytes * group.leaves for group in measured.replicated]


def test_a_run_records_what_it_takes_up(finished):
    manifest = json.loads((finished.workdir / "manifest.json").read_text())
    assert manifest["mesh"] == dict(data=8, fsdp=1, tensor=1)
    assert manifest["memory_per_device"]["params"] == 4 * manifest["parameters"]
    assert manifest["flops_per_device"] == manifest["flops_per_step"] // 8
    assert manifest["collectives"].keys() == {"all-reduce"}  # splitting the batch alone sends gradients and nothing else
    assert manifest["collectives"]["all-reduce"]["bytes"] <= 1.1 * manifest["memory_per_device"]["params"]
    assert store.find(finished.workdir).manifest == manifest


def test_no_device_makes_a_whole_leaf_when_the_state_is_created(tiny):
    config = config_lib.change(tiny(), dict(model=dict(patch=2, width=64, depth=1, mlp_multiple=1024)))
    parts = build.parts(config, build.data_source(config).codec)
    init = functools.partial(init_state, parts.create, build.optimizer(config)[0], 0)
    layout = Layout(mesh_of(*FSDP), (), min_size=64)
    plan = jax.jit(init, out_shardings=layout.shardings(jax.eval_shape(init))).lower().compile().memory_analysis()
    largest = max(4 * int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(jax.eval_shape(init)))
    assert plan.temp_size_in_bytes < largest


def test_of_the_80m_faces_each_of_eight_devices_holds_hardly_more_than_an_eighth():
    config = config_lib.change(config_lib.load(str(ROOT / "configs" / "dit_faces_80m.py")), dict(mesh=dict(data=1, fsdp=8)))
    spec = {"x": Field(shape=(64, 64, 3), dtype="float32", low=-1, high=1), "label": Field(shape=(), dtype="int32", low=0, high=5)}
    parts = build.parts(config, Codec(medium=Image(), spec=spec, conditions=(Labels(tuple("abcdef")),)))
    abstract = jax.eval_shape(lambda: init_state(parts.create, build.optimizer(config)[0], 0))
    total = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(abstract))
    assert total > 16 * 80e6  # parameters, average and two moments, four bytes each
    assert total / 8 <= footprint.bytes_held(footprint.placed(abstract, parts.layout)) <= 1.10 * total / 8


def test_no_device_makes_a_whole_leaf_to_begin_with():
    model = dict(hidden=512)
    config = config_lib.change(config_lib.load(str(ROOT / "configs" / "fsdp_sine.py:smoke")), dict(model=model, mesh=dict(data=1, fsdp=8)))
    parts = build.parts(config, build.data_source(config).codec)
    init = functools.partial(init_state, parts.create, build.optimizer(config)[0], 0)
    plan = jax.jit(init, out_shardings=parts.layout.shardings(jax.eval_shape(init))).lower().compile().memory_analysis()
    kernel = 4 * 512 * 512
    assert 4 * kernel / 8 < plan.output_size_in_bytes < kernel  # four of them, an eighth of each
    assert plan.temp_size_in_bytes < kernel / 2
