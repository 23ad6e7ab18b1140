"""The optimizer: AdamW with clipping and a schedule, as a named Optax chain.

The names are part of the moments' paths in a checkpoint and must not change.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tinygen.errors import unknown
from tinygen.nn.names import path_name

Schedule = Callable[[Any], Any]

FAR = 0.25  # of the way from final_lr up to lr: a last step above that is warned of
MOST = 0.9  # share of the remaining steps at final_lr from which on it is warned of


def make_schedule(*, lr: float, schedule: str, warmup: int, decay_steps: int, final_lr: float) -> Schedule:
    """The learning rate of the update after `n` updates. Keywords: see `tinygen.config.schema.SCHEMA`.

    Updates are optimizer steps, whatever the number of micro-batches; skipped updates do not count.
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
    """The number of warm-up updates, shortened to end before the decay does."""
    return min(warmup, decay_steps - 1)


def outlook(start: int, steps: int, skipped: int, **keys: Any) -> str:
    """A log line: the learning rate at the next step, at its peak and at the last step.

    start, steps: steps taken so far, and steps of the whole run
    skipped: skipped updates so far
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


class Oddity(NamedTuple):
    """A likely mistake in a schedule, and the override of config.optim that fixes it, with its effect."""

    what: str
    key: str
    value: int | float
    effect: str

    def __str__(self) -> str:
        value = self.value if isinstance(self.value, int) else f"{self.value:g}"
        return f"{self.what}: --config.optim.{self.key}={value} {self.effect}"


def oddities(start: int, steps: int, skipped: int, *, fresh: bool = True, **keys: Any) -> list[str]:
    """Warnings about a schedule that is likely a mistake for the remaining steps. All their overrides together fix it.

    fresh: whether the schedule and the steps were chosen at this start; only then a long tail at final_lr is warned of
    keys: of `make_schedule`
    """
    warnings: list[str] = []
    while found := list(_oddities(start, steps, skipped, fresh, **keys)):
        warnings += [f"with that, {each}" if warnings else str(each) for each in found]
        keys |= {each.key: each.value for each in found}
        if len(warnings) > len(keys):  # in case overrides make each other necessary
            break
    return warnings


def _oddities(
    start: int, steps: int, skipped: int, fresh: bool, *, lr: float, schedule: str, warmup: int, decay_steps: int, final_lr: float
) -> Iterator[Oddity]:
    if schedule == "constant":
        return
    done, end = start - skipped, steps - skipped  # in updates
    if final_lr > lr:
        what = f"the learning rate rises, from config.optim.lr={lr:g} to config.optim.final_lr={final_lr:g}"
        yield Oddity(what, "final_lr", float(f"{lr / 100:.3g}"), "makes it decay")
        return
    ramp = fitting_warmup(warmup, decay_steps) if schedule == "warmup_cosine" else 0
    if ramp and done <= ramp and (warmup >= decay_steps or ramp >= end):
        what = f"the warm-up, config.optim.warmup={warmup}, takes all {min(decay_steps, end):,} steps, so the learning rate"
        ends = f"never reaches config.optim.lr={lr:g}" if ramp >= end else "never decays"
        warmup = min(decay_steps, end) // 10
        yield Oddity(f"{what} {ends}", "warmup", warmup, "shortens it")
    rate = make_schedule(lr=lr, schedule=schedule, warmup=warmup, decay_steps=decay_steps, final_lr=final_lr)
    last = float(rate(np.int32(end - 1)))  # with the warm-up fixed
    if decay_steps > steps and last - final_lr > FAR * (lr - final_lr) > 0:
        what = f"config.optim.decay_steps={decay_steps} is far beyond config.train.steps={steps}, so the learning rate ends high"
        yield Oddity(what, "decay_steps", steps, f"makes it end near {final_lr:g}")
    tail, left = end - max(done, decay_steps), end - done
    if fresh and final_lr < lr and tail >= MOST * left > 0:
        some = f"all {left:,}" if tail == left else f"{tail:,} of the {left:,}"
        what = f"{some} remaining steps have the lowest learning rate, {final_lr:g}, since config.optim.decay_steps={decay_steps}"
        if left == 1:
            what = what.replace("all 1 remaining steps have", "the remaining step has")
        yield Oddity(what, "decay_steps", steps, "stretches the schedule over the whole run")


def make_optimizer(
    schedule: Schedule, *, b1: float, b2: float, eps: float, weight_decay: float, clip: float
) -> optax.GradientTransformationExtraArgs:
    """AdamW (Loshchilov & Hutter 2019): clipping by global norm, Adam, weight decay of kernels, learning rate."""
    return optax.named_chain(
        ("clip", clip_to(clip) if clip else optax.identity()),
        ("adam", optax.scale_by_adam(b1, b2, eps)),
        ("decay", optax.add_decayed_weights(weight_decay, mask=decayed)),
        ("rate", optax.scale_by_learning_rate(schedule)),
    )


def clip_to(max_norm: float) -> optax.GradientTransformationExtraArgs:
    """Clipping by the global norm (Pascanu et al. 2013), which `update` receives as `grad_norm`.

    optax.clip_by_global_norm would recompute it, a pass over all gradients that the compiler can't share inside the guard's `cond`.
    """

    def update(updates: Any, state: Any, params: Any = None, **given: Any) -> tuple[Any, Any]:
        grad_norm = given["grad_norm"]
        return jax.tree.map(lambda g: jnp.where(grad_norm < max_norm, g, g / grad_norm * max_norm), updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def decayed(params: Any) -> Any:
    """The weight decay mask: True for kernels, False for norm scales, biases, embeddings and tables."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path_name(path).rsplit("/", 1)[-1] in ("kernel", "router"), params)
