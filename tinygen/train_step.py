"""TrainState, and the training step, which runs on the device.

The state is a pure tree of arrays. Parameters are nested dicts keyed by strings, so that the names in a checkpoint depend only on
the model's attributes.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from tinygen.nn.layers import Buffer
from tinygen.optim import Schedule
from tinygen.rng import stream

Tree = dict[str, Any]
Optimizer = optax.GradientTransformationExtraArgs
Metrics = dict[str, Any]  # name -> scalar, or a (sum, weight) pair


class TrainState(NamedTuple):
    """step: int32, steps taken, skipped ones included
    params, buffers: the model's trained and other variables
    ema: the parameters' exponential moving average
    opt_state: Optax's
    guard: {"skipped": non-finite updates skipped, "attempt": the data order, incremented by a rollback}, int32
    """

    step: jax.Array
    params: Tree
    buffers: Tree
    ema: Tree
    opt_state: Any
    guard: dict[str, jax.Array]


def split(model: nnx.Module) -> tuple[nnx.GraphDef, Tree, Tree]:
    """(graphdef, params, buffers) of a model."""
    graphdef, params, buffers = nnx.split(model, nnx.Param, Buffer)
    return graphdef, _named(nnx.to_pure_dict(params)), _named(nnx.to_pure_dict(buffers))


def merge(graphdef: nnx.GraphDef, params: Tree, buffers: Tree) -> Any:
    """The inverse of `split`. The copy lets a differentiated function change the buffers."""
    return nnx.merge(graphdef, nnx.restore_int_paths(params), nnx.restore_int_paths(buffers), copy=True)


def init_state(
    create: Callable[[nnx.Rngs], nnx.Module], tx: optax.GradientTransformation, seed: int, given: tuple[Tree, Tree] | None = None
) -> TrainState:
    """The state before the first step. Jit it with output shardings, so that it is created sharded.

    given: (params, buffers), or any of their leaves, to use in place of those of `create`
    """
    _, params, buffers = split(create(nnx.Rngs(stream(seed, "init"))))
    if given is not None:
        params, buffers = overlaid(params, given[0]), overlaid(buffers, given[1])
    return fresh_state(params, buffers, tx)


def fresh_state(params: Tree, buffers: Tree, tx: optax.GradientTransformation) -> TrainState:
    """The state of a model that has taken no step."""
    zero = jnp.zeros((), jnp.int32)
    return TrainState(zero, params, buffers, jax.tree.map(jnp.copy, params), tx.init(params), {"skipped": zero, "attempt": jnp.copy(zero)})


def overlaid(tree: Any, given: Any) -> Any:
    """`tree` with its leaves replaced by those of `given`, a subset."""
    if not isinstance(tree, Mapping):
        return given
    return {key: overlaid(value, given[key]) if key in given else value for key, value in tree.items()}


def graph_of(create: Callable[[nnx.Rngs], nnx.Module]) -> nnx.GraphDef:
    """The model's graphdef, without creating arrays."""
    return nnx.split(nnx.eval_shape(lambda: create(nnx.Rngs(0))), ...)[0]


def make_train_step(
    graphdef: nnx.GraphDef, objective: Any, tx: Optimizer, schedule: Schedule, *, seed: int, ema_decay: float, accumulate: int
) -> Callable[[TrainState, Mapping[str, jax.Array]], tuple[TrainState, Metrics]]:
    """A pure function (state, batch) -> (state, metrics).

    Noise depends on (seed, attempt, step); no key is in the state. A non-finite update is skipped: parameters, average and moments stay
    as they were, and `guard` counts it.
    """

    def loss(params: Tree, buffers: Tree, batch: Mapping[str, jax.Array], key: jax.Array) -> tuple[jax.Array, tuple[Metrics, Tree]]:
        model = merge(graphdef, params, buffers)
        value, metrics = objective.loss(model, batch, key, train=True)
        return value, (metrics, split(model)[2])

    def train_step(state: TrainState, batch: Mapping[str, jax.Array]) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(jax.random.fold_in(stream(seed, "train"), state.guard["attempt"]), state.step)
        grads, metrics, buffers = gradients(loss, state, batch, key, accumulate)
        count = state.step - state.guard["skipped"]  # updates so far, which the schedule and the average depend on
        grad_norm, param_norm = optax.tree.norm(grads), optax.tree.norm(state.params)
        sizes = [grad_norm, param_norm, metrics["loss"][0], *(jnp.sum(leaf) for leaf in jax.tree.leaves(buffers))]
        finite = jnp.isfinite(jnp.stack([jnp.asarray(size, jnp.float32) for size in sizes])).all()

        def update() -> tuple[Any, ...]:
            updates, opt_state = tx.update(grads, state.opt_state, state.params, grad_norm=grad_norm)
            params = optax.apply_updates(state.params, updates)
            ema = update_ema(state.ema, params, count, ema_decay)
            return params, buffers, ema, opt_state, optax.tree.norm(updates) / param_norm

        def skip() -> tuple[Any, ...]:
            return state.params, state.buffers, state.ema, state.opt_state, jnp.zeros(())

        params, buffers, ema, opt_state, update_ratio = jax.lax.cond(finite, update, skip)
        guard = {"skipped": state.guard["skipped"] + jnp.where(finite, 0, 1), "attempt": state.guard["attempt"]}
        metrics |= {"lr": schedule(count), "grad_norm": grad_norm, "param_norm": param_norm, "update_ratio": update_ratio}
        return TrainState(state.step + 1, params, buffers, ema, opt_state, guard), metrics | {"skipped": guard["skipped"]}

    return train_step


class Call(NamedTuple):
    """The input of several steps in one call.

    count: int32, the number of steps
    batches: [K, B, ...], K >= count; those beyond `count` are ignored
    """

    count: Any
    batches: Mapping[str, Any]


def make_train_steps(
    train_step: Callable[[TrainState, Mapping[str, jax.Array]], tuple[TrainState, Metrics]],
) -> Callable[[TrainState, Call], tuple[TrainState, Metrics]]:
    """A pure function (state, call) -> (state, metrics) that runs training steps in a loop, one program for any number of steps.

    Every metric is [K], one value per step, and zero beyond the last step.
    """

    def train_steps(state: TrainState, call: Call) -> tuple[TrainState, Metrics]:
        def batch(index: Any) -> dict[str, jax.Array]:
            return {key: jax.lax.dynamic_index_in_dim(rows, index, keepdims=False) for key, rows in call.batches.items()}

        def step(index: Any, carry: tuple[TrainState, Metrics]) -> tuple[TrainState, Metrics]:
            state, metrics = train_step(carry[0], batch(index))
            return state, jax.tree.map(lambda values, value: values.at[index].set(value), carry[1], metrics)

        most = len(next(iter(call.batches.values())))
        one = jax.eval_shape(train_step, state, batch(0))[1]
        return jax.lax.fori_loop(0, call.count, step, (state, jax.tree.map(lambda value: jnp.zeros(most, value.dtype), one)))

    return train_steps


def gradients(
    loss: Callable[..., Any], state: TrainState, batch: Mapping[str, jax.Array], key: jax.Array, accumulate: int
) -> tuple[Tree, Metrics, Tree]:
    """(gradient, metrics, buffers) of a batch in `accumulate` micro-batches: the gradient of Σloss / Σweight over all of them.

    metrics["loss"] is (sum, weight), and an objective's loss is their ratio, so gradients of micro-batches are averaged by weight.
    """
    gradient = jax.grad(loss, has_aux=True)
    if accumulate == 1:
        grads, (metrics, buffers) = gradient(state.params, state.buffers, batch, key)
        return grads, metrics, buffers
    # Micro-batch i holds rows i, i + accumulate, ..., so that rows stay on their device.
    parts = jax.tree.map(lambda x: jnp.moveaxis(x.reshape(-1, accumulate, *x.shape[1:]), 1, 0), dict(batch))

    def add(carry: tuple[Tree, Tree], part: tuple[jax.Array, Any]) -> tuple[tuple[Tree, Tree], Metrics]:
        buffers, total = carry
        index, micro = part
        grads, (metrics, buffers) = gradient(state.params, buffers, micro, jax.random.fold_in(key, index))
        weight = metrics["loss"][1]
        return (buffers, jax.tree.map(lambda sum_, g: sum_ + weight * g, total, grads)), metrics

    zeros = jax.tree.map(jnp.zeros_like, state.params)
    (buffers, total), stacked = jax.lax.scan(add, (state.buffers, zeros), (jnp.arange(accumulate), parts))
    metrics = {name: jax.tree.map(jnp.sum if isinstance(value, tuple) else jnp.mean, value) for name, value in stacked.items()}
    weight = jnp.maximum(metrics["loss"][1], 1e-12)
    return jax.tree.map(lambda g: g / weight, total), metrics, buffers


def update_ema(ema: Any, params: Any, count: jax.Array, decay: float) -> Any:
    """ema + (1 - d)(params - ema), d = min(decay, (1 + n) / (10 + n)) after n updates, so that the average follows closely at first."""
    n = count.astype(jnp.float32)
    rate = 1.0 - jnp.minimum(decay, (1.0 + n) / (10.0 + n))
    return jax.tree.map(lambda average, value: average + rate * (value - average), ema, params)


def _named(tree: Any) -> Any:
    """The tree with integer keys (indices of a list) as strings, as JSON and Orbax store them."""
    return {str(key): _named(value) for key, value in tree.items()} if isinstance(tree, Mapping) else tree
