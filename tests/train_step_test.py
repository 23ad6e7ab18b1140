import dataclasses
import warnings
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from ml_collections import ConfigDict

from tinygen import build
from tinygen.nn.layers import Buffer, Linear
from tinygen.nn.names import path_name
from tinygen.train_step import TrainState, gradients, graph_of, init_state, make_train_step, merge, split

EMA_DECAY = 0.5


class Affine(nnx.Module):
    def __init__(self, number):
        self.kernel = nnx.Param(jnp.float32(1 + number))
        self.bias = nnx.Param(jnp.float32(number**2))

    def __call__(self, x):
        return x * self.kernel[...] + self.bias[...]


class TwelveLayers(nnx.Module):
    """More than ten, since "10" sorts before "2"; each with values of its own, since none may take another's place."""

    def __init__(self, scale=1.0):
        self.layers = nnx.List([Affine(scale * number) for number in range(12)])
        self.seen = Buffer(jnp.zeros(()))

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Line(Linear):
    """A linear model that counts, in a buffer, how often it was called."""

    def __init__(self, *, rngs):
        super().__init__(3, 2, precision="float32", rngs=rngs)
        self.calls = Buffer(jnp.zeros(()))

    def __call__(self, x):
        self.calls[...] += 1
        return super().__call__(x)


@dataclasses.dataclass(frozen=True)
class Poisonable:
    """Weighted mean squared error, plus √(poison · |kernel|²): poison 1 is well; 0 has a finite loss and no gradient; -1 has neither."""

    def loss(self, model, batch, key, *, train):
        error = jnp.mean(jnp.square(model(batch["x"]) - batch["y"]), -1)
        total = (jnp.sum(batch["weight"] * error), jnp.sum(batch["weight"]))
        poison = jnp.sqrt(batch["poison"][0] * jnp.sum(jnp.square(model.kernel[...])))
        value = total[0] / jnp.maximum(total[1], 1e-12) + poison
        return value, {"loss": (value * total[1], total[1])}


@pytest.fixture(scope="module")
def line():
    """A linear model with its compiled step: (state, batch) -> (state, metrics)."""
    keys = dict(lr=0.1, schedule="linear", warmup=0, decay_steps=30, final_lr=0.0, b1=0.9, b2=0.99, eps=1e-8, weight_decay=0.01, clip=1.0)
    config = ConfigDict({"optim": keys})
    tx, schedule = build.optimizer(config)

    def create(rngs):
        return Line(rngs=rngs)

    graphdef = graph_of(create)
    step = make_train_step(graphdef, Poisonable(), tx, schedule, seed=0, ema_decay=EMA_DECAY, accumulate=1)
    init = jax.jit(partial(init_state, create, tx, 0))
    return SimpleNamespace(graphdef=graphdef, step=jax.jit(step), init=init, schedule=schedule)


@pytest.fixture(scope="module")
def denoiser(tiny):
    """The tiny DiT as `train.run` compiles it: on eight devices, the state donated."""
    config = tiny()
    source = build.data_source(config)
    parts = build.parts(config, source.codec)
    tx, schedule = build.optimizer(config)
    init = partial(init_state, parts.create, tx, config.seed)
    shardings = parts.layout.shardings(jax.eval_shape(init))
    step = make_train_step(parts.graphdef, parts.objective, tx, schedule, seed=0, ema_decay=0.9, accumulate=1)
    with jax.set_mesh(parts.layout.mesh):
        yield SimpleNamespace(
            take_step=jax.jit(step, donate_argnums=0, out_shardings=(shardings, parts.layout.replicated)),
            init=jax.jit(init, out_shardings=shardings),
            batch=parts.layout.share(next(source.batches("train", config.batch_size, 0))),
            parts=parts,
        )


def points(seed=0, *, num=16, poison=1.0, weight=None):
    rng = np.random.default_rng(seed)
    batch = {"x": rng.normal(size=(num, 3)), "y": rng.normal(size=(num, 2)), "poison": np.full(num, poison)}
    batch["weight"] = np.ones(num) if weight is None else weight
    return {key: jnp.asarray(value, jnp.float32) for key, value in batch.items()}


def named(tree):
    return {path_name(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def assert_bit_equal(a, b):
    a, b = named(a), named(b)
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name, strict=True)


@pytest.mark.parametrize(
    "weight",
    [np.ones(16), np.array([1.0] * 11 + [0.0] * 5), np.array([0.0, 1.0, 1.0, 1.0] * 4), np.linspace(0, 3, 16)],
    ids=["all", "padded", "one micro-batch of padding alone", "uneven"],
)
def test_four_micro_batches_give_the_gradient_and_loss_of_one_batch(line, weight):
    state, batch, key = line.init(), points(weight=weight), jax.random.key(0)

    def loss(params, buffers, batch, key):
        model = merge(line.graphdef, params, buffers)
        value, metrics = Poisonable().loss(model, batch, key, train=True)
        return value, (metrics, split(model)[2])

    whole, whole_metrics, _ = gradients(loss, state, batch, key, 1)
    parts, parts_metrics, _ = gradients(loss, state, batch, key, 4)
    # float32 sums of 16 terms in another order: an ulp is 6e-8
    for name, expected in named(whole).items():
        assert np.linalg.norm(named(parts)[name] - expected) <= 1e-6 * np.linalg.norm(expected), name
    np.testing.assert_allclose(parts_metrics["loss"], whole_metrics["loss"], rtol=1e-6)


def test_micro_batches_draw_different_noise_and_chain_their_buffers(line):
    def loss(params, buffers, batch, key):
        metrics = {"loss": (jnp.sum(batch["weight"]), jnp.sum(batch["weight"])), "noise": jax.random.normal(key)}
        return 0.0 * jnp.sum(params["kernel"]), (metrics, {"count": buffers["count"] + 1})

    state = line.init()._replace(buffers={"count": jnp.zeros(())})
    draws = {seed: gradients(loss, state, points(num=4), jax.random.key(seed), 2) for seed in (0, 1)}
    noises = [float(jax.random.normal(jax.random.fold_in(jax.random.key(0), index))) for index in range(2)]
    assert noises[0] != noises[1]
    np.testing.assert_allclose(draws[0][1]["noise"], np.mean(noises), rtol=1e-6)  # a metric without a weight is averaged
    assert draws[0][1]["noise"] != draws[1][1]["noise"]
    assert draws[0][2]["count"] == 2


def test_the_average_starts_as_the_parameters(line):
    state = line.init()
    assert_bit_equal(state.ema, state.params)


def test_the_average_follows_its_recurrence_before_and_after_the_warm_up(line):
    state, expected = line.init(), None
    for n in range(12):  # (1+n)/(10+n) reaches the decay of 0.5 at n = 8
        expected = named(state.ema) if expected is None else expected
        state, _ = line.step(state, points(n))
        decay = min(EMA_DECAY, (1 + n) / (10 + n))
        expected = {name: decay * expected[name] + (1 - decay) * value for name, value in named(state.params).items()}
        for name, value in named(state.ema).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-7)  # n roundings of float32


@pytest.mark.parametrize(("poison", "finite_loss"), [(0.0, True), (-1.0, False)], ids=["gradient", "loss"])
def test_an_update_that_is_not_finite_changes_nothing_but_the_counters(line, poison, finite_loss):
    before, _ = line.step(line.init(), points(0))
    after, metrics = line.step(before, points(1, poison=poison))
    assert np.isfinite(metrics["loss"][0]) == finite_loss
    assert not np.isfinite(metrics["grad_norm"])
    for branch in ("params", "ema", "buffers", "opt_state"):
        assert_bit_equal(getattr(after, branch), getattr(before, branch))
    assert before.buffers["calls"] == 1
    assert (int(after.step), int(after.guard["skipped"]), int(metrics["skipped"])) == (2, 1, 1)

    later, metrics = line.step(after, points(2))
    assert int(later.guard["skipped"]) == 1
    counts = {name: int(value) for name, value in named(later.opt_state).items() if name.endswith("count")}
    assert counts
    assert set(counts.values()) == {2}
    assert metrics["lr"] == line.schedule(1)  # the third step is the second update: the schedule has not run on
    assert any(np.any(value != named(after.params)[name]) for name, value in named(later.params).items())


def test_a_model_comes_back_whole_from_its_split():
    model = TwelveLayers()
    model.seen[...] = jnp.float32(7)
    graphdef, params, buffers = split(model)
    again = merge(graphdef, params, buffers)
    assert again.seen[...] == 7
    np.testing.assert_array_equal(again(jnp.float32(0.5)), model(jnp.float32(0.5)))
    assert_bit_equal(split(again)[1:], (params, buffers))


def test_names_of_leaves_are_strings_and_come_from_attributes_alone():
    one, other = (split(TwelveLayers(scale))[1:] for scale in (1.0, 2.0))
    expected = {f"0/layers/{n}/{name}" for n in range(12) for name in ("kernel", "bias")} | {"1/seen"}
    assert set(named(one)) == set(named(other)) == expected
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(one[0])[0]]
    assert all(isinstance(key.key, str) for path in paths for key in path)


def test_noise_is_another_every_step_and_the_same_for_the_same_step(denoiser):
    def loss_at(**changes):
        state = denoiser.init()
        state = state._replace(
            step=jnp.full_like(state.step, changes.get("step", 0)),
            guard={**state.guard, "attempt": jnp.full_like(state.step, changes.get("attempt", 0))},
        )
        return float(denoiser.take_step(state, denoiser.batch)[1]["loss"][0])

    losses = {step: loss_at(step=step) for step in range(4)}
    assert len(set(losses.values())) == 4
    assert loss_at(step=2) == losses[2]
    assert loss_at(step=2, attempt=1) not in losses.values()


def test_steps_reuse_the_states_memory_and_are_compiled_once(denoiser):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # JAX warns of a donated buffer that it could not use
        state = denoiser.init()
        compiled = denoiser.take_step._cache_size()
        for _ in range(3):
            before = state
            state, _ = denoiser.take_step(state, denoiser.batch)
            assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))
    assert int(state.step) == 3
    assert denoiser.take_step._cache_size() <= compiled + 1


def test_the_state_is_one_pure_tree_of_arrays(denoiser):
    abstract = jax.eval_shape(denoiser.init)
    assert isinstance(abstract, TrainState)
    assert TrainState._fields == ("step", "params", "buffers", "ema", "opt_state", "guard")
    assert abstract.guard.keys() == {"skipped", "attempt"}
    dtypes = {str(leaf.dtype) for leaf in jax.tree.leaves((abstract.params, abstract.ema, abstract.opt_state))}
    assert dtypes == {"float32", "int32"}  # int32: the optimizer's counts
