"""The optimizer: AdamW with clipping and a schedule, as an Optax chain whose parts have names.

The names are the paths of the moments in a checkpoint: they must not change.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tinygen.errors import unknown
from tinygen.sharding import path_name

Schedule = Callable[[Any], Any]

FAR = 0.25  # of the way from final_lr up to lr: a last step above that has hardly decayed
MOST = 0.9  # share of the steps left that makes a tail at final_lr odd


def make_schedule(*, lr: float, schedule: str, warmup: int, decay_steps: int, final_lr: float) -> Schedule:
    """The learning rate of the update after `n` updates. Keywords: see `tinygen.keys.SCHEMA`.

    Updates are optimizer steps, however many micro-batches each has; a step whose update is skipped does not count.
    """
    if schedule == "constant":
        return optax.constant_schedule(lr)
    if schedule == "linear":
        return optax.linear_schedule(lr, final_lr, decay_steps)
    if schedule == "warmup_cosine":
        warmup = fitting_warmup(warmup, decay_steps)
        return optax.warmup_cosine_decay_schedule(lr / max(1, warmup), lr, warmup, max(decay_steps, 1), final_lr)
    raise unknown("config.optim.schedule", schedule, ("constant", "linear", "warmup_cosine"))


def fitting_warmup(warmup: int, decay_steps: int) -> int:
    """The updates of a warm-up that ends before the decay does: the last one is at final_lr."""
    return min(warmup, decay_steps - 1)


def outlook(start: int, steps: int, skipped: int, **keys: Any) -> str:
    """The learning rate of the next step, at its peak and at the last step.

    start, steps: the steps taken, and those of the whole run
    skipped: those of the former whose update was skipped
    keys: of `make_schedule`
    """
    if keys["schedule"] == "constant":
        return f"learning rate: {keys['lr']:.3g} at every step"
    schedule = make_schedule(**keys)

    def rate(step: int) -> str:
        return f"{float(schedule(np.int32(max(0, step - 1 - skipped)))):.3g}"

    ramp = fitting_warmup(keys["warmup"], keys["decay_steps"]) if keys["schedule"] == "warmup_cosine" else 0
    top = keys["decay_steps"] if keys["final_lr"] > keys["lr"] else ramp
    peak = min(top + 1 + skipped, steps)
    now = f"{rate(start + 1)} at step {start + 1:,}"
    highest = f"{rate(peak)} at its peak (step {peak:,}{', passed' if peak <= start else ''})" if peak != start + 1 else "its peak"
    return f"learning rate: {now}, {highest}, {rate(steps)} at the last step ({steps:,})"


def oddities(
    start: int, steps: int, skipped: int, *, lr: float, schedule: str, warmup: int, decay_steps: int, final_lr: float, fresh: bool = True
) -> list[str]:
    """What of a schedule can hardly be meant for the steps that a run has left, each with the override that mends it.

    fresh: whether this start, and none before it, chose the schedule and the steps; a long tail at final_lr is then odd
    """
    if schedule == "constant":
        return []
    done, end = start - skipped, steps - skipped  # in updates
    found = []
    if final_lr > lr:
        cure = f"--config.optim.final_lr={lr / 100:.3g} has it fall"
        found.append(f"the learning rate rises, from config.optim.lr={lr:g} to config.optim.final_lr={final_lr:g}: {cure}")
    ramp = fitting_warmup(warmup, decay_steps) if schedule == "warmup_cosine" else 0
    if ramp and done <= ramp and (warmup >= decay_steps or ramp >= end):
        what = f"the warm-up, config.optim.warmup={warmup}, takes all {min(decay_steps, end):,} steps, so the learning rate"
        ends = f"never reaches config.optim.lr={lr:g}" if ramp >= end else "has none left to decay in"
        warmup = min(decay_steps, end) // 10
        found.append(f"{what} {ends}: --config.optim.warmup={warmup} leaves some")
    rate = make_schedule(lr=lr, schedule=schedule, warmup=warmup, decay_steps=decay_steps, final_lr=final_lr)
    last = float(rate(np.int32(end - 1)))  # with the warm-up mended
    if decay_steps > steps and last - final_lr > FAR * (lr - final_lr) > 0:
        what = f"config.optim.decay_steps={decay_steps} is far beyond config.train.steps={steps}, so the learning rate ends high"
        found.append(f"{what}: --config.optim.decay_steps={steps} has it end at {final_lr:g}")
    tail, left = end - max(done, decay_steps), end - done
    if fresh and final_lr < lr and tail >= MOST * left:
        what = f"{'all' if tail == left else f'{tail:,} of the'} {left:,} steps that are left have the lowest learning rate, {final_lr:g}"
        cure = f"--config.optim.decay_steps={steps} stretches the schedule over the whole run"
        found.append(f"{what}, since config.optim.decay_steps={decay_steps}: {cure}")
    return found


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
