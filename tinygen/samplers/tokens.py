"""Sampling of tokens in several steps, all places of an example at a time: what the samplers of both discrete processes share."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tinygen import rng
from tinygen.errors import UserError, check_share, unknown
from tinygen.media.base import FREE
from tinygen.media.preview import Preview
from tinygen.nn.conditioning import CONDITIONS
from tinygen.samplers import guidance
from tinygen.samplers import logits as filters
from tinygen.samplers.cpu_groups import in_groups
from tinygen.samplers.unmasking import SCHEDULES, Unmasking
from tinygen.samplers.unrolling import Unrolling

SAMPLERS = {"confidence": "mask", "halton": "mask", "ancestral": "mask", "unrolled": "uniform"}  # the process of each

Cond = Mapping[str, jax.Array]
Step = Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]


class Walk(NamedTuple):
    """tokens: int32 [B, L]
    done: bool [B], whether further steps would change nothing
    evaluations: int32 [B], of the network
    frames: the tokens before and after each step, int32 [steps + 1, B, L]; [0, B, L] if they are not kept
    """

    tokens: jax.Array
    done: jax.Array
    evaluations: jax.Array
    frames: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrawingTokens:
    """An objective that draws tokens by denoising.

    places: the shape of an example's tokens
    vocabulary: V, the number of tokens; the mask is token V
    The other fields are described in `tinygen.config.schema.OBJECTIVES`.
    """

    generates: ClassVar[bool] = True
    infills: ClassVar[bool] = True

    places: tuple[int, ...]
    vocabulary: int
    process: str
    cond_drop: float
    sampler: str
    nfe: int
    guidance: float
    temperature: float
    temperature_decay: float
    top_k: int
    top_p: float
    schedule: str
    choice_temperature: float
    remask: float
    proportion: float
    proportion_decay: float
    min_steps: int

    def __post_init__(self) -> None:
        guidance.check_guidance(self.cond_drop, self.nfe, self.guidance)
        filters.check(self.temperature, self.top_k, self.top_p)
        check_share("objective", remask=self.remask)
        known = ("auto", *SAMPLERS)
        if self.sampler not in known:
            raise unknown("sampler", self.sampler, known)
        if self.sampler != "auto" and SAMPLERS[self.sampler] != self.process:
            fit = " or ".join(name for name, process in SAMPLERS.items() if process == self.process)
            raise UserError(f"sampler {self.sampler} is not for process {self.process!r}: use sampler {fit}")
        if self.nfe < (least := 2 if self._guided(True) else 1):
            guided = f" with guidance {self.guidance}" if least > 1 else ""
            raise UserError(f"nfe={self.nfe} is too few: one step{guided} takes {least} network evaluation{'s' * (least > 1)}")
        if self.schedule not in SCHEDULES:
            raise unknown("config.objective.schedule", self.schedule, SCHEDULES)
        for name in ("temperature_decay", "proportion_decay"):
            if not 0 <= (decay := getattr(self, name)) <= 1:
                raise UserError(f"{name} {decay} must lie in [0, 1]: the share that is lost by the last step")
        if not 0 <= self.choice_temperature < math.inf:
            raise UserError(f"choice_temperature {self.choice_temperature} must be 0 (the surest places first) or positive")
        if self.remask and self.sampler != "ancestral":
            raise UserError(f"remask {self.remask} needs --sampler=ancestral; 0 is off")
        if not 0 < self.proportion <= 1:
            raise UserError(f"proportion {self.proportion} must lie in (0, 1]: the share of the tokens that a step redraws")
        if self.min_steps < 0:
            raise UserError(f"min_steps {self.min_steps} must not be negative")

    @property
    def mask(self) -> int:
        """The token that stands for a masked one."""
        return self.vocabulary

    def draw(self, model: Any, keys: jax.Array, cond: Cond | None = None, negative: Cond | None = None) -> tuple[jax.Array, jax.Array]:
        """(tokens int32 [B, *places], one example per key; the network evaluations of each, int32 [B]).

        cond: the model's conditions; `given` int32 [B, *places], tokens that are kept, FREE elsewhere; or `prompt` and `prompt_mask`
            [B, P], the first tokens of a text
        Raises UserError for a prompt that leaves no place free.
        """

        def sample(keys: jax.Array, cond: Cond | None, negative: Cond | None) -> tuple[jax.Array, jax.Array]:
            walk = self._walk(model, keys, cond, negative, keep=False)
            return walk.tokens.reshape(-1, *self.places), walk.evaluations

        return in_groups(sample, keys, cond, negative)

    def history(self, model: Any, keys: jax.Array, cond: Cond | None = None, negative: Cond | None = None) -> jax.Array:
        """The tokens before the first step and after each, int32 [steps + 1, B, *places]; the mask is V. Arguments as for `draw`."""
        frames = self._walk(model, keys, cond, negative, keep=True).frames
        return frames.reshape(-1, len(keys), *self.places)

    def evaluations(self, *, conditional: bool) -> int:
        """Maximum network evaluations per sample, at most `nfe`."""
        return self._steps(conditional) * (2 if self._guided(conditional) else 1)

    def preview(self, raw: Any, averaged: Any, batch: Cond, keys: jax.Array) -> dict[str, Preview]:
        """`samples` with the batch's conditions, and `infilled`: the batch's tokens with the second half redrawn."""
        cond = {name: batch[name] for name in CONDITIONS if name in batch}
        second = np.arange(math.prod(self.places)).reshape(self.places) >= math.prod(self.places) // 2
        given = jnp.where(second, FREE, batch["tokens"])
        one, two = rng.halved(keys)
        return {
            "samples": Preview(self.draw(averaged, one, cond)[0]),
            "infilled": Preview(self.draw(averaged, two, {**cond, "given": given})[0]),
        }

    def _walk(self, model: Any, keys: jax.Array, cond: Cond | None, negative: Cond | None, *, keep: bool) -> Walk:
        """keep: the frames"""
        given = self._given(cond or {}, len(keys))
        cond = {name: rows for name, rows in (cond or {}).items() if name not in ("given", "prompt", "prompt_mask")}
        guided, steps = self._guided(bool(cond)), self._steps(bool(cond))
        predict = guidance.guided(model, len(keys), cond, negative, self.guidance, (0.0, math.inf) if guided else None)

        def logits(tokens: jax.Array, t: jax.Array) -> jax.Array:
            return predict(tokens.reshape(-1, *self.places), t, t).reshape(*tokens.shape, -1).astype(jnp.float32)

        draw = functools.partial(self._values, steps=steps)
        if self.process == "mask":
            sampler = "confidence" if self.sampler == "auto" else self.sampler
            start, step = Unmasking(
                logits=logits, draw=draw, given=given, keys=keys, steps=steps, places=self.places, mask=self.mask, sampler=sampler,
                schedule=self.schedule, choice_temperature=self.choice_temperature, remask=self.remask,
            ).loop()  # fmt: skip
        else:
            start, step = Unrolling(
                logits=logits, draw=draw, given=given, keys=keys, steps=steps, vocabulary=self.vocabulary, min_steps=self.min_steps,
                proportion=self.proportion, proportion_decay=self.proportion_decay,
            ).loop()  # fmt: skip
        return walked(step, start, steps, 2 if guided else 1, keep)

    def _values(self, logits: jax.Array, keys: jax.Array, index: jax.Array, *, steps: int) -> jax.Array:
        """A token for each place, int32 [B, L], drawn from logits [B, L, V] at the temperature of step `index`."""
        if self.temperature == 0:
            return jnp.argmax(logits, -1).astype(jnp.int32)
        share = 1.0 - self.temperature_decay * index / max(1, steps - 1)
        rows = (logits / jnp.maximum(self.temperature * share, 1e-4)).reshape(-1, logits.shape[-1])
        kept = filters.filtered(rows, None, temperature=1.0, top_k=self.top_k, top_p=self.top_p, min_p=0.0, repetition_penalty=1.0)
        return rng.categorical(keys, kept.reshape(logits.shape))

    def _given(self, cond: Cond, batch: int) -> jax.Array:
        """int32 [B, L]: the given tokens, FREE elsewhere."""
        size = math.prod(self.places)
        if "given" in cond:
            return cond["given"].reshape(batch, size)
        free = jnp.full((batch, size), FREE, jnp.int32)
        if "prompt" not in cond:
            return free
        prompt = jnp.where(cond["prompt_mask"], cond["prompt"], FREE)
        if prompt.shape[1] >= size:
            raise UserError(f"a prompt of {prompt.shape[1]} tokens leaves none to write: this model writes {size} in all. Shorten it")
        return jax.lax.dynamic_update_slice(free, prompt, (0, 0))

    def _guided(self, conditional: bool) -> bool:
        return conditional and self.guidance != 1

    def _steps(self, conditional: bool) -> int:
        """As many steps as `nfe` allows, and no more than there are places if every step reveals one."""
        steps = self.nfe // (2 if self._guided(conditional) else 1)
        return min(steps, math.prod(self.places)) if self.process == "mask" and self.sampler != "ancestral" else steps


def walked(step: Step, tokens: jax.Array, steps: int, cost: int, keep: bool) -> Walk:
    """Runs `step(index, tokens) -> (tokens, done [B])` until all examples are done, at most `steps` times. Done examples stay as they are.

    cost: network evaluations of a step
    keep: whether to return the frames
    """

    def body(carry: tuple[jax.Array, Walk]) -> tuple[jax.Array, Walk]:
        index, walk = carry
        moved, done = step(index, walk.tokens)
        tokens = jnp.where(walk.done[:, None], walk.tokens, moved)
        later = (jnp.arange(len(walk.frames)) > index)[:, None, None]  # so that frames after the last step repeat it
        frames = jnp.where(later, tokens, walk.frames)
        return index + 1, Walk(tokens, walk.done | done, walk.evaluations + jnp.where(walk.done, 0, cost), frames)

    frames = jnp.broadcast_to(tokens, (steps + 1 if keep else 0, *tokens.shape))
    start = Walk(tokens, jnp.zeros(len(tokens), bool), jnp.zeros(len(tokens), jnp.int32), frames)
    going = jnp.zeros((), jnp.int32), start
    return jax.lax.while_loop(lambda carry: (carry[0] < steps) & ~jnp.all(carry[1].done), body, going)[1]
