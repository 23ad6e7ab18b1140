"""The optimizer: AdamW with clipping and a schedule, as an Optax chain whose parts have names.

The names are the paths of the moments in a checkpoint: they must not change.
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

FAR = 0.25  # of the way from final_lr up to lr: a last step above that has hardly decayed
MOST = 0.9  # share of the steps left that makes a tail at final_lr odd


def make_schedule(*, lr: float, schedule: str, warmup: int, decay_steps: int, final_lr: float) -> Schedule:
    """The learning rate of the update after `n` updates. Keywords: see `tinygen.config.schema.SCHEMA`.

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
    """The updates of a warm-up that ends before the decay does."""
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


class Oddity(NamedTuple):
    """What of a schedule can hardly be meant, and the override of config.optim that mends it, with its effect."""

    what: str
    key: str
    value: int | float
    effect: str

    def __str__(self) -> str:
        value = self.value if isinstance(self.value, int) else f"{self.value:g}"
        return f"{self.what}: --config.optim.{self.key}={value} {self.effect}"


def oddities(start: int, steps: int, skipped: int, *, fresh: bool = True, **keys: Any) -> list[str]:
    """What of a schedule can hardly be meant for the steps that a run has left. All the overrides together mend all of it.

    fresh: whether this start, and none before it, chose the schedule and the steps; a long tail at final_lr is then odd
    keys: of `make_schedule`
    """
    said: list[str] = []
    while found := [each for each in _odd(start, steps, skipped, fresh, **keys) if each.key in keys]:
        said += [f"with that, {each}" if said else str(each) for each in found]
        keys |= {each.key: each.value for each in found}
        if len(said) > len(keys):  # no override of ours may make another one necessary for ever
            break
    return said


def _odd(
    start: int, steps: int, skipped: int, fresh: bool, *, lr: float, schedule: str, warmup: int, decay_steps: int, final_lr: float
) -> Iterator[Oddity]:
    if schedule == "constant":
        return
    done, end = start - skipped, steps - skipped  # in updates
    if final_lr > lr:
        what = f"the learning rate rises, from config.optim.lr={lr:g} to config.optim.final_lr={final_lr:g}"
        yield Oddity(what, "final_lr", float(f"{lr / 100:.3g}"), "has it fall")
        return
    ramp = fitting_warmup(warmup, decay_steps) if schedule == "warmup_cosine" else 0
    if ramp and done <= ramp and (warmup >= decay_steps or ramp >= end):
        what = f"the warm-up, config.optim.warmup={warmup}, takes all {min(decay_steps, end):,} steps, so the learning rate"
        ends = f"never reaches config.optim.lr={lr:g}" if ramp >= end else "has none left to decay in"
        warmup = min(decay_steps, end) // 10
        yield Oddity(f"{what} {ends}", "warmup", warmup, "leaves some")
    rate = make_schedule(lr=lr, schedule=schedule, warmup=warmup, decay_steps=decay_steps, final_lr=final_lr)
    last = float(rate(np.int32(end - 1)))  # with the warm-up mended
    if decay_steps > steps and last - final_lr > FAR * (lr - final_lr) > 0:
        what = f"config.optim.decay_steps={decay_steps} is far beyond config.train.steps={steps}, so the learning rate ends high"
        yield Oddity(what, "decay_steps", steps, f"has it end near {final_lr:g}")
    tail, left = end - max(done, decay_steps), end - done
    if fresh and final_lr < lr and tail >= MOST * left > 0:
        some = f"all {left:,}" if tail == left else f"{tail:,} of the {left:,}"
        what = f"{some} steps that are left have the lowest learning rate, {final_lr:g}, since config.optim.decay_steps={decay_steps}"
        if left == 1:
            what = what.replace("all 1 steps that are left have", "the step that is left has")
        yield Oddity(what, "decay_steps", steps, "stretches the schedule over the whole run")


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
