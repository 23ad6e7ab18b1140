"""The loss of a language model: against its formula, in pieces, on padding and packed documents; bits per byte."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small_minigpt import abstract, logits, made

from tinygen.distributed.mesh import Layout, make_mesh
from tinygen.errors import UserError
from tinygen.models.minigpt import MiniGPT
from tinygen.nn.flops import flops, products
from tinygen.objectives.autoregressive import Autoregressive
from tinygen.objectives.cross_entropy import cross_entropy, pieces_for
from tinygen.profiling import hlo

OBJECTIVE = Autoregressive(
    vocabulary=11, token_bytes=(*range(1, 11), 0), label_smoothing=0.0, z_loss=0.0, logits_mib=64.0, length=8, end=10, temperature=1.0,
    top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, new_tokens=4,
)  # fmt: skip
RNG = np.random.default_rng(0)
BATCH = dict(
    tokens=RNG.integers(0, 11, (3, 8)).astype(np.int32),
    target=RNG.integers(0, 11, (3, 8)).astype(np.int32),
    segment=np.array([[1, 1, 1, 2, 2, 2, 2, 2], [1] * 8, [1, 1, 2, 3, 3, 0, 0, 0]], np.int32),
)


def lost(objective=OBJECTIVE, batch=BATCH, train=False, **model):
    """(loss, metrics, gradient)"""
    graphdef, state = nnx.split(made(**model))

    def loss(state):
        return objective.loss(nnx.merge(graphdef, state), batch, jax.random.key(1), train=train)

    (value, metrics), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(state)
    return float(value), {name: (float(a), float(b)) for name, (a, b) in metrics.items()}, gradient


def test_loss_and_bits_per_byte_are_what_their_formulas_give():
    objective = dataclasses.replace(OBJECTIVE, label_smoothing=0.2, z_loss=0.03)
    value, metrics, _ = lost(objective, train=True)
    found = np.asarray(logits(made(), BATCH["tokens"], segment=BATCH["segment"]), np.float64)[..., :11]
    valid, target = BATCH["segment"] > 0, BATCH["target"]
    normaliser = np.log(np.exp(found).sum(-1))
    log_p = found - normaliser[..., None]
    nll = -np.take_along_axis(log_p, target[..., None], -1)[..., 0]
    wanted = 0.8 * nll - 0.2 * log_p.mean(-1) + 0.03 * normaliser**2
    assert value == pytest.approx(wanted[valid].mean(), rel=1e-5)
    assert metrics["raw_loss"] == pytest.approx((nll[valid].sum(), 21), rel=1e-5)
    length = np.array(OBJECTIVE.token_bytes)[target]
    assert metrics["bits_per_byte"] == pytest.approx((nll[valid].sum() / math.log(2), length[valid].sum()), rel=1e-5)
    plain, _, _ = lost(objective, train=False)
    assert plain == pytest.approx(nll[valid].mean(), rel=1e-5)
    assert OBJECTIVE.derived({"raw_loss": 2.0}) == {"perplexity": pytest.approx(math.exp(2))}


def test_padding_changes_neither_loss_nor_gradient():
    value, _, gradient = lost()
    hidden = BATCH["segment"] == 0
    other = BATCH | {key: np.where(hidden, (BATCH[key] + 1) % 11, BATCH[key]).astype(np.int32) for key in ("tokens", "target")}
    same, _, again = lost(batch=other)
    assert value == same
    jax.tree.map(np.testing.assert_array_equal, gradient, again)


def test_nothing_is_dropped_nor_smoothed_in_evaluation():
    objective = dataclasses.replace(OBJECTIVE, label_smoothing=0.3, z_loss=0.1)
    plain = lost()[0]
    assert lost(objective, train=False, dropout=0.5)[0] == pytest.approx(plain, rel=1e-6)
    assert lost(train=True, dropout=0.5)[0] != pytest.approx(plain, rel=1e-2)
    assert lost(objective, train=True)[0] != pytest.approx(plain, rel=1e-2)


def test_an_example_of_no_weight_counts_for_nothing():
    value, metrics, _ = lost(batch=BATCH | {"weight": np.array([1, 0, 1], np.float32)})
    rest = {key: array[[0, 2]] for key, array in BATCH.items()}
    assert value == pytest.approx(lost(batch=rest)[0], rel=1e-6)
    assert metrics["loss"][1] == 13


SMOOTHED = dataclasses.replace(OBJECTIVE, label_smoothing=0.1, z_loss=0.01)


@functools.cache
def lost_whole(**model):
    return lost(SMOOTHED, train=True, **model)


@pytest.mark.parametrize("model", [dict(), dict(tied=False), dict(dropout=0.3)], ids=str)
@pytest.mark.parametrize("pieces", [2, pytest.param(3, marks=pytest.mark.slow), 8])
def test_in_pieces_loss_and_gradient_are_the_same(pieces, model):
    small = dataclasses.replace(SMOOTHED, logits_mib=3 * 8 * 11 * 4 / 2**20 / (pieces - 0.5))
    assert pieces_for(24, 11, small.logits_mib) == pieces
    value, metrics, gradient = lost_whole(**model)
    other, more, again = lost(small, train=True, **model)
    assert other == pytest.approx(value, rel=1e-6)
    assert [more[name] for name in metrics] == [pytest.approx(pair, rel=1e-6) for pair in metrics.values()]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), gradient, again)


MANY = {key: np.tile(array, (6, 1))[:16] for key, array in BATCH.items()}


def spread(data, tensor, objective=OBJECTIVE, **model):
    """(loss and gradient, FLOPs of a device, bytes that it sends) on a mesh."""
    layout = Layout(make_mesh(dict(data=data, fsdp=1, tensor=tensor), jax.devices()[: data * tensor]), MiniGPT.SHARDING, 0)
    graphdef, state = nnx.split(made(**model))
    leaves = nnx.to_pure_dict(state)
    places = layout.shardings(leaves)

    def loss(leaves, batch):
        state = jax.tree.unflatten(jax.tree.structure(abstract(**model)[1]), jax.tree.leaves(leaves))
        return objective.loss(nnx.merge(graphdef, state), batch, jax.random.key(1), train=True)[0]

    placed, batch = jax.device_put(leaves, places), layout.share(MANY)
    with jax.set_mesh(layout.mesh):
        program = jax.jit(jax.value_and_grad(loss), out_shardings=(None, places)).lower(placed, batch).compile()
    does = hlo.read(program.as_text())
    return program(placed, batch), does.flops, sum(each.bytes for each in does.collectives.values())


@pytest.mark.parametrize(
    ("model", "pieces"),
    [
        (dict(width=32), 1),
        (dict(width=32, tied=False, kv_heads=2), 4),
        pytest.param(dict(width=32), 4, marks=pytest.mark.slow),
        pytest.param(dict(width=32, tied=False, kv_heads=2), 1, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_on_four_by_two_devices_loss_and_gradient_are_those_of_one_and_each_does_an_eighth(pieces, model):
    objective = dataclasses.replace(OBJECTIVE, logits_mib=16 * 8 * 11 * 4 / 2**20 / (pieces - 0.5))
    (loss, gradient), flops, _ = spread(1, 1, objective, **model)
    for mesh in ((4, 2), (8, 1)):
        (value, again), share, _ = spread(*mesh, objective, **model)
        assert float(value) == pytest.approx(float(loss), rel=1e-5)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), gradient, again)
        assert share == flops / 8


@pytest.mark.slow
def test_a_loss_in_pieces_sends_no_more_than_a_whole_one():
    pieces = dataclasses.replace(OBJECTIVE, logits_mib=16 * 11 * 4 / 2**20)
    whole = spread(8, 1)[2]
    assert whole > 0
    assert spread(8, 1, pieces)[2] <= 1.01 * whole


def test_pieces_that_do_not_divide_the_length_compute_no_more_than_those_that_do():
    def work(pieces):
        h, target, table = jnp.zeros((2, 16, 4)), jnp.zeros((2, 16), jnp.int32), jnp.zeros((8, 4))

        def loss(h):
            return cross_entropy(lambda rows, table: rows @ table.T, table, h, target, vocabulary=8, pieces=pieces).nll

        return flops(products(loss, h))

    assert work(1) == work(4) == work(9) == work(11)


@pytest.mark.slow
def test_a_vocabulary_of_50257_takes_two_fifths_of_the_memory_at_most():
    h, target = jnp.zeros((4, 64, 16)), jnp.zeros((4, 64), jnp.int32)
    table = jax.ShapeDtypeStruct((50_304, 16), jnp.float32)

    def taken(pieces):
        def loss(table, h):
            return jnp.sum(cross_entropy(lambda rows, table: rows @ table.T, table, h, target, vocabulary=50_257, pieces=pieces).nll)

        compiled = jax.jit(jax.grad(loss, (0, 1))).lower(table, h).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert taken(8) <= 0.4 * taken(1)


@pytest.mark.parametrize(
    ("change", "said"),
    [(dict(label_smoothing=1.0), "label_smoothing=1.0"), (dict(z_loss=-1.0), "z_loss=-1.0"), (dict(logits_mib=0.0), "logits_mib=0.0")],
    ids=str,
)
def test_keys_that_cannot_be_are_refused(change, said):
    with pytest.raises(UserError, match=said):
        dataclasses.replace(OBJECTIVE, **change)
