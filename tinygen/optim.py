"""The optimizer: AdamW with clipping and a schedule, as an Optax chain whose parts have names.

The names are the paths of the moments in a checkpoint: they must not change.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from tinygen.errors import unknown
from tinygen.sharding import path_name

Schedule = Callable[[Any], Any]


def make_schedule(*, lr: float, schedule: str, warmup: int, decay_steps: int, final_lr: float) -> Schedule:
    """The learning rate of the update after `n` updates. Keywords: see `tinygen.keys.SCHEMA`."""
    if schedule == "constant":
        return optax.constant_schedule(lr)
    if schedule == "linear":
        return optax.linear_schedule(lr, final_lr, decay_steps)
    if schedule == "warmup_cosine":
        warmup = min(warmup, decay_steps - 1)
        return optax.warmup_cosine_decay_schedule(lr / max(1, warmup), lr, warmup, max(decay_steps, 1), final_lr)
    raise unknown("config.optim.schedule", schedule, ("constant", "linear", "warmup_cosine"))


def make_optimizer(
    schedule: Schedule, *, b1: float, b2: float, eps: float, weight_decay: float, clip: float
) -> optax.GradientTransformationExtraArgs:
    """AdamW (Loshchilov & Hutter 2019): clip by global norm, Adam, decay of kernels, learning rate."""
    return optax.named_chain(
        ("clip", clip_to(clip) if clip else optax.identity()),
        ("adam", optax.scale_by_adam(b1, b2, eps)),
        ("decay", optax.add_decayed_weights(weight_decay, mask=decayed)),
        ("rate", optax.scale_by_learning_rate(schedule)),
    )


def clip_to(max_norm: float) -> optax.GradientTransformationExtraArgs:
    """Clipping by the global norm (Pascanu et al. 2013), which `update` is given as `grad_norm`.

    optax.clip_by_global_norm would take it anew: under the guard's condition the compiler can't share it, a pass over all gradients.
    """

    def update(updates: Any, state: Any, params: Any = None, **given: Any) -> tuple[Any, Any]:
        grad_norm = given["grad_norm"]
        return jax.tree.map(lambda g: jnp.where(grad_norm < max_norm, g, g / grad_norm * max_norm), updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def decayed(params: Any) -> Any:
    """True for the leaves that weight decay acts on: kernels. Norms' scales, biases, embeddings and tables keep their size."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path_name(path).rsplit("/", 1)[-1] in ("kernel", "router"), params)
