"""Memory of the loss of a large vocabulary, with all logits at once and in chunks."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import gpt_step, ours
from tinygen import config as config_lib
from tinygen.errors import UserError
from tinygen.objectives.cross_entropy import cross_entropy, pieces_for

WHOLE = float(2**20)  # MiB of logits at once: more than any model has


def measure(recipe: str, settings: Sequence[str], vocabulary: int, batch_size: int) -> str:
    """A table of temporary memory, as planned by XLA: of the loss with its gradient, and of the whole training step."""
    changes = dict(batch_size=batch_size, mesh=dict(data=-1, fsdp=1, tensor=1))
    config = config_lib.change(gpt_step.load_recipe(recipe, settings), changes)
    length, width, own = config.data.length, config.model.width, config.objective.logits_mib
    codec = gpt_step.codec_of(vocabulary, length)

    def alone(mib: float) -> int:
        pieces = min(pieces_for(batch_size * length, vocabulary, mib), length)

        def loss(h: jax.Array, table: jax.Array, target: jax.Array) -> jax.Array:
            return jnp.mean(cross_entropy(lambda rows, table: rows @ table.T, table, h, target, vocabulary=vocabulary, pieces=pieces).nll)

        shapes: list[Any] = [(batch_size, length, width), (vocabulary, width), (batch_size, length)]
        arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in zip(shapes, ("float32", "float32", "int32"), strict=True)]
        return temporary(jax.jit(jax.value_and_grad(loss, argnums=(0, 1))), *arguments)

    def step(mib: float) -> int:
        made = ours.step_of(config_lib.change(config, dict(objective=dict(logits_mib=mib))), codec)
        with jax.set_mesh(made.parts.layout.mesh):
            return temporary(made.jitted, made.abstract, made.batch)

    lines = [
        f"{batch_size} windows of {length} tokens, vocabulary {vocabulary:,}: temporary memory per device, MiB",
        f"{'':<14}  at once  {own:g} MiB chunks",
    ]
    for name, taken in {"the loss alone": alone, "a whole step": step}.items():
        whole, pieces = taken(WHOLE) / 2**20, taken(own) / 2**20
        lines.append(f"{name:<14} {whole:8,.0f} {pieces:10,.0f}  {pieces / whole:.0%}")
    return "\n".join(lines)


def temporary(jitted: Any, *arguments: Any) -> int:
    """Bytes. Raises UserError if the compiler does not report them."""
    plan = jitted.lower(*arguments).compile().memory_analysis()
    if plan is None:
        raise UserError(f"the compiler for {jax.default_backend()} does not report the memory of a program")
    return plan.temp_size_in_bytes
