"""The training step as a program: traced, lowered, compiled, from the shapes of its arguments alone."""

import threading
from concurrent.futures import Future
from typing import Any

import jax

from tinygen.distributed.mesh import Layout
from tinygen.profiling.footprint import placed
from tinygen.system.terminal import say
from tinygen.train_step import TrainState

LOOK = 0.2  # seconds between looks at whether a compilation has ended


def traced_step(take_step: Any, layout: Layout, abstract: TrainState, batch: Any) -> jax.stages.Traced:
    """The jitted step, traced for a state and a batch that stand as the layout says.

    batch: a tree of shapes; those that say where they stand do not stand as a batch
    """
    rows = jax.tree.map(lambda leaf: leaf if leaf.sharding else jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=layout.batch), batch)
    with jax.set_mesh(layout.mesh):
        return take_step.trace(placed(abstract, layout), rows)


def compiled_step(take_step: Any, layout: Layout, abstract: TrainState, batch: Any) -> jax.stages.Compiled:
    """`traced_step`, compiled: it can be read and it can be called."""
    return traced_step(take_step, layout, abstract, batch).lower().compile()


def compiled_aside(traced: jax.stages.Traced) -> Future[jax.stages.Compiled]:
    """The traced step being compiled by a thread, while the state is made or restored. A process that ends meanwhile waits for it, and
    says so: XLA cannot be interrupted.
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
