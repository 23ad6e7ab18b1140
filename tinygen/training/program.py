"""A run's training step: what it takes and gives, where that lives, and how it is traced and compiled."""

import dataclasses
import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from tinygen import build
from tinygen.config import Config
from tinygen.distributed.mesh import Layout
from tinygen.profiling.footprint import placed
from tinygen.system.terminal import say
from tinygen.train_step import Call, TrainState, fresh_state, init_state, make_train_step, make_train_steps

LOOK = 0.2  # seconds between looks at whether a compilation has ended


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """The training step before it is compiled, and the shapes and shardings of its arguments.

    init: (params, buffers) of a warm start, or None -> the state before the first step; pure
    abstract: the shapes of the state
    shardings: of each of its leaves
    step: jitted (state, batch) -> (state, metrics), which donates the state; (state, Call) for several steps a call
    argument: the shapes of the second argument, with their shardings
    """

    layout: Layout
    init: Callable[..., TrainState]
    abstract: TrainState
    shardings: TrainState
    step: Any
    argument: Any

    def initialise(self, weights: Any = None) -> TrainState:
        """The state before the first step, each leaf created where it belongs."""
        return jax.jit(self.init, donate_argnums=0, out_shardings=self.shardings)(weights)

    def traced(self) -> jax.stages.Traced:
        with jax.set_mesh(self.layout.mesh):
            return self.step.trace(placed(self.abstract, self.layout), self.argument)

    def compiled(self) -> jax.stages.Compiled:
        """The step compiled: it can be read and it can be called."""
        return self.traced().lower().compile()


def make_program(config: Config, parts: build.Parts) -> Program:
    """The program of config.train.steps_per_call steps. Cheap: no model is made, and the step is not traced."""
    layout, (tx, schedule) = parts.layout, build.optimizer(config)
    abstract = jax.eval_shape(lambda params, buffers: fresh_state(params, buffers, tx), *parts.weights)
    shardings = layout.shardings(abstract)
    function: Callable[..., Any] = make_train_step(
        parts.graphdef, parts.objective, tx, schedule, seed=config.seed, ema_decay=config.ema.decay, accumulate=config.optim.accumulate
    )
    several = config.train.steps_per_call > 1
    return Program(
        layout=layout,
        init=functools.partial(init_state, parts.create, tx, config.seed),
        abstract=abstract,
        shardings=shardings,
        step=jax.jit(make_train_steps(function) if several else function, donate_argnums=0, out_shardings=(shardings, layout.replicated)),
        argument=call_shapes(config, parts) if several else batch_shapes(parts, config.batch_size),
    )


def batch_shapes(parts: build.Parts, size: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Of a training batch, split over the devices."""
    spec, split = parts.codec.spec.items(), parts.layout.batch
    return {key: jax.ShapeDtypeStruct((size, *field.shape), field.dtype, sharding=split) for key, field in spec}


def held_out_shapes(parts: build.Parts, size: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Of a batch of `DataSource.epoch`."""
    return batch_shapes(parts, size) | {"weight": jax.ShapeDtypeStruct((size,), "float32", sharding=parts.layout.batch)}


def call_shapes(config: Config, parts: build.Parts) -> Call:
    """Of the batches of one call, each split as a single batch is."""
    layout = parts.layout
    split = NamedSharding(layout.mesh, PartitionSpec(None, *layout.batch.spec))
    batches = {
        key: jax.ShapeDtypeStruct((config.train.steps_per_call, *leaf.shape), leaf.dtype, sharding=split)
        for key, leaf in batch_shapes(parts, config.batch_size).items()
    }
    return Call(jax.ShapeDtypeStruct((), "int32", sharding=layout.replicated), batches)


def compiled_aside(traced: jax.stages.Traced) -> Future[jax.stages.Compiled]:
    """The traced step, being compiled by a thread while the state is made or restored. A process that ends meanwhile waits for it and
    says so: XLA cannot be interrupted.

    Not an executor: on exit it would wait for its thread while the starter still counts as alive, and nothing would be said.
    """
    lowered, compiled, starter = traced.lower(), Future[jax.stages.Compiled](), threading.current_thread()

    def compile_step() -> None:
        try:
            compiled.set_result(lowered.compile())
        except BaseException as error:  # raised where the result is waited for
            compiled.set_exception(error)

    def say_what_is_waited_for() -> None:
        while starter.is_alive() and not compiled.done():
            starter.join(LOOK)
        if not compiled.done():
            say("tinygen: leaving once XLA, which cannot be interrupted, has compiled the training step", error=True)

    threading.Thread(target=compile_step).start()
    threading.Thread(target=say_what_is_waited_for, daemon=True).start()
    return compiled
