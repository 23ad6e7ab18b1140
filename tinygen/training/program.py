"""A run's training step: shapes and shardings of its arguments and results, tracing and compilation."""

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

LOOK = 0.2  # seconds between polls of a compilation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """The training step before it is compiled, and the shapes and shardings of its arguments.

    init: (params, buffers) of a warm start, or None -> initial state; pure
    abstract: shapes of the state
    shardings: shardings of the state
    step: jitted (state, batch) -> (state, metrics), donating the state; (state, Call) for several steps per call
    argument: shapes and shardings of the second argument
    """

    layout: Layout
    init: Callable[..., TrainState]
    abstract: TrainState
    shardings: TrainState
    step: Any
    argument: Any

    def initialise(self, weights: Any = None) -> TrainState:
        """The initial state, each leaf created with its sharding."""
        return jax.jit(self.init, donate_argnums=0, out_shardings=self.shardings)(weights)

    def traced(self) -> jax.stages.Traced:
        with jax.set_mesh(self.layout.mesh):
            return self.step.trace(placed(self.abstract, self.layout), self.argument)

    def compiled(self) -> jax.stages.Compiled:
        """The compiled step."""
        return self.traced().lower().compile()


def make_program(config: Config, parts: build.Parts) -> Program:
    """The program of config.train.steps_per_call steps. Cheap: neither the model nor the step is traced."""
    layout, (tx, schedule) = parts.layout, build.optimizer(config)
    abstract = jax.eval_shape(lambda params, buffers: fresh_state(params, buffers, tx), *parts.weights)
    shardings = layout.shardings(abstract)
    function: Callable[..., Any] = make_train_step(
        parts.graphdef, parts.objective, tx, schedule, seed=config.seed, ema_decay=config.ema.decay, accumulate=config.optim.accumulate
    )
    if config.train.steps_per_call > 1:
        function = make_train_steps(function)
    return Program(
        layout=layout,
        init=functools.partial(init_state, parts.create, tx, config.seed),
        abstract=abstract,
        shardings=shardings,
        step=jax.jit(function, donate_argnums=0, out_shardings=(shardings, layout.replicated)),
        argument=argument_shapes(config, parts),
    )


def batch_shapes(parts: build.Parts, size: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of a training batch, split over the devices."""
    spec, split = parts.codec.spec.items(), parts.layout.batch
    return {key: jax.ShapeDtypeStruct((size, *field.shape), field.dtype, sharding=split) for key, field in spec}


def held_out_shapes(parts: build.Parts, size: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of a batch of `DataSource.epoch`."""
    return batch_shapes(parts, size) | {"weight": jax.ShapeDtypeStruct((size,), "float32", sharding=parts.layout.batch)}


def argument_shapes(config: Config, parts: build.Parts) -> Any:
    """Shapes of the step's second argument: a batch, or a `Call` whose batches are each split like a single one."""
    layout, most, batch = parts.layout, config.train.steps_per_call, batch_shapes(parts, config.batch_size)
    if most == 1:
        return batch
    split = NamedSharding(layout.mesh, PartitionSpec(None, *layout.batch.spec))
    batches = {key: jax.ShapeDtypeStruct((most, *leaf.shape), leaf.dtype, sharding=split) for key, leaf in batch.items()}
    return Call(jax.ShapeDtypeStruct((), "int32", sharding=layout.replicated), batches)


def compiled_aside(traced: jax.stages.Traced) -> Future[jax.stages.Compiled]:
    """Compiles the traced step in a thread while the state is made or restored. A process that exits meanwhile waits for it and says
    so: XLA cannot be interrupted. Not an executor: on exit it would join its thread while the main thread still counts as alive, and
    nothing would be said.
    """
    lowered, compiled, starter = traced.lower(), Future[jax.stages.Compiled](), threading.current_thread()

    def compile_step() -> None:
        try:
            compiled.set_result(lowered.compile())
        except BaseException as error:  # raised by result()
            compiled.set_exception(error)

    def say_what_is_waited_for() -> None:
        while starter.is_alive() and not compiled.done():
            starter.join(LOOK)
        if not compiled.done():
            say("tinygen: leaving once XLA, which cannot be interrupted, has compiled the training step", error=True)

    threading.Thread(target=compile_step).start()
    threading.Thread(target=say_what_is_waited_for, daemon=True).start()
    return compiled
