"""Text generation token by token, from a language model with a cache.

A document lies between two end tokens E, as in training: E precedes every prompt, and a row that has drawn E has ended. Rotary
positions slide past the model's context of L tokens, which amounts to a banded mask over the whole history. Learned positions end at
L: when the next token would not fit, the last L // 2 tokens are read again from position 0.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from tinygen import rng
from tinygen.errors import UserError
from tinygen.media.preview import Preview
from tinygen.media.text import PROMPT_ENDS
from tinygen.samplers import logits as filters

SHOWN = 64  # maximum tokens of the prompts in previews
MOST = 2**20  # maximum new tokens


class Writing(NamedTuple):
    """The state of B growing documents.

    logits: [B, V], of the next token
    ended: bool [B], whether E has been drawn
    length: int32 [B], the next token's position
    window: int32 [B, L], the tokens from position 0 on; None for rotary positions, which need none
    seen: bool [B, V], the tokens so far, without the leading E; None without a repetition penalty
    drawn: int32, the number of tokens drawn
    keys: [B], one per document; token n is drawn with the key folded with n
    """

    cache: Any
    logits: jax.Array
    ended: jax.Array
    length: jax.Array
    window: jax.Array | None
    seen: jax.Array | None
    drawn: jax.Array
    keys: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generating:
    """An objective that generates text.

    length: L, the model's context
    end: E, the last token
    The other fields are described in `tinygen.config.schema.OBJECTIVES`.
    """

    generates: ClassVar[bool] = True
    streams: ClassVar[bool] = True

    length: int
    end: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    new_tokens: int

    def __post_init__(self) -> None:
        filters.check(self.temperature, self.top_k, self.top_p)
        if not 0 <= self.min_p <= 1:
            raise UserError(f"min_p {self.min_p} must lie in [0, 1]; 0 is off")
        if not (0 < self.repetition_penalty < math.inf):
            raise UserError(f"repetition_penalty {self.repetition_penalty} must be positive; 1 is off, more makes repetition rarer")
        if not 1 <= self.new_tokens <= MOST:
            raise UserError(f"new_tokens {self.new_tokens} must lie between 1 and {MOST:,}")

    def begin(self, model: Any, prompt: jax.Array, prompt_mask: jax.Array, keys: jax.Array) -> Writing:
        """The state after reading E and the prompts int32 [B, P], right-padded: prompt_mask, bool [B, P], is False for padding.

        Of a prompt that exceeds the context, models with learned positions read the last L // 2 tokens.
        """
        B, P = prompt.shape
        tokens = jnp.concatenate([jnp.full((B, 1), self.end, jnp.int32), jnp.where(prompt_mask, prompt, self.end)], 1)
        length = 1 + jnp.sum(prompt_mask, 1, dtype=jnp.int32)
        window = seen = None
        if self.repetition_penalty != 1:
            seen = jnp.zeros((B, self.end + 1), bool).at[jnp.arange(B)[:, None], prompt].max(prompt_mask)
        if model.places is not None:  # learned positions
            tokens = jnp.pad(tokens, ((0, 0), (0, max(0, self.length - P - 1))), constant_values=self.end)
            tokens, length = self._fitting(tokens, length)
            window = tokens
        cache, logits = self._read(model, tokens, length)
        return Writing(cache, logits, jnp.zeros(B, bool), length, window, seen, jnp.zeros((), jnp.int32), keys)

    def more(self, model: Any, state: Writing, num: int) -> tuple[Writing, jax.Array]:
        """(the state after, the next `num` tokens int32 [B, num]): E after a document's end. Stops early when all have ended."""

        def draw(carry: tuple[jax.Array, Writing, jax.Array]) -> tuple[jax.Array, Writing, jax.Array]:
            index, state, tokens = carry
            state, token = self._next(model, state)
            return index + 1, state, jax.lax.dynamic_update_index_in_dim(tokens, token, index, 1)

        ends = jnp.full((len(state.ended), num), self.end, jnp.int32)
        first = (jnp.zeros((), jnp.int32), state, ends)
        _, state, tokens = jax.lax.while_loop(lambda carry: (carry[0] < num) & ~jnp.all(carry[1].ended), draw, first)
        return state, tokens

    def draw(
        self, model: Any, keys: jax.Array, cond: Mapping[str, jax.Array] | None = None, negative: Mapping[str, jax.Array] | None = None
    ) -> tuple[jax.Array, None]:
        """(int32 [B, new_tokens], None): continuations of cond's `prompt` and `prompt_mask`, or else whole documents.

        Document i depends on keys[i] alone. Raises UserError for a negative prompt.
        """
        if negative is not None:
            raise UserError("text is generated without guidance, so there is no negative prompt")
        B = keys.shape[0]
        given = cond or {"prompt": jnp.zeros((B, 0), jnp.int32), "prompt_mask": jnp.zeros((B, 0), bool)}
        return self.more(model, self.begin(model, given["prompt"], given["prompt_mask"], keys), self.new_tokens)[1], None

    def preview(self, raw: Any, averaged: Any, batch: Mapping[str, jax.Array], keys: jax.Array) -> dict[str, Preview]:
        """`samples`, whole documents, and `continuations` of the first document in each of the batch's windows, from its first tokens."""
        P = min(SHOWN, max(1, self.length // 2))
        tokens, segment = batch["tokens"], batch["segment"]
        skipped = (tokens[:, :1] == self.end).astype(jnp.int32)  # `begin` reads E before every prompt anyway
        place = jnp.minimum(skipped + jnp.arange(P), tokens.shape[1] - 1)
        prompt = jnp.take_along_axis(tokens, place, 1)
        same = (jnp.take_along_axis(segment, place, 1) == segment[:, :1]) & (segment[:, :1] > 0)
        mask = jnp.cumprod(same, 1).astype(bool)
        pair = (jnp.zeros_like(prompt), prompt), (jnp.zeros_like(mask), mask)
        both = {"prompt": jnp.concatenate(pair[0]), "prompt_mask": jnp.concatenate(pair[1])}
        first, second = jnp.split(self.draw(averaged, jnp.concatenate(rng.halved(keys)), both)[0], 2)
        mark = jnp.full((len(prompt), 1), PROMPT_ENDS, jnp.int32)
        continued = jnp.concatenate([jnp.where(mask, prompt, self.end), mark, second], 1)
        return {"samples": Preview(first), "continuations": Preview(continued)}

    def _next(self, model: Any, state: Writing) -> tuple[Writing, jax.Array]:
        """(the state after reading one more token, that token int32 [B])."""
        logits = filters.filtered(
            state.logits, state.seen, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
        )  # fmt: skip
        token = rng.categorical(rng.folded(state.keys, state.drawn), logits)
        token = jnp.where(state.ended, self.end, token)
        ended = state.ended | (token == self.end)
        seen = None if state.seen is None else state.seen.at[jnp.arange(len(token)), token].set(True)
        state = state._replace(ended=ended, seen=seen, drawn=state.drawn + 1)
        return self._read_one(model, state, token), token

    def _read_one(self, model: Any, state: Writing, token: jax.Array) -> Writing:
        """The state after reading a token [B] of each document that has not ended."""
        going = (~state.ended).astype(jnp.int32)

        def step() -> tuple[Any, jax.Array]:
            h, cache = model.features(token[:, None], segment=going[:, None], position=state.length[:, None], cache=state.cache)
            return cache, self._logits(model, h)

        if state.window is None:
            cache, logits = step()
            return state._replace(cache=cache, logits=logits, length=state.length + going)
        full = (state.length == self.length) & (going == 1)
        longer = jnp.pad(state.window, ((0, 0), (0, 1)), constant_values=self.end)
        rows = jnp.arange(len(token))
        longer = longer.at[rows, state.length].set(jnp.where(going == 1, token, longer[rows, state.length]))
        window, length = self._fitting(longer, state.length + going)
        # A full window's cache cannot be shortened, only computed again: for all documents, each from its own window.
        cache, logits = jax.lax.cond(jnp.any(full), lambda: self._read(model, window, length), step)
        return state._replace(cache=cache, logits=logits, length=length, window=window)

    def _fitting(self, tokens: jax.Array, length: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(window [B, L], its length [B]): the first `length` [B] of tokens [B, T], T >= L, if they fit, or else the last L // 2."""
        start = jnp.where(length > self.length, length - max(1, self.length // 2), 0)
        place = jnp.minimum(start[:, None] + jnp.arange(self.length), tokens.shape[1] - 1)
        return jnp.take_along_axis(tokens, place, 1), length - start

    def _read(self, model: Any, tokens: jax.Array, length: jax.Array) -> tuple[Any, jax.Array]:
        """(cache, logits [B, V] of the next token) after the first `length` [B] of tokens [B, T].

        At most L tokens are read at a time, otherwise attention would hold T x T scores.
        """
        B, T = tokens.shape
        size = min(T, self.length)
        parts = -(-T // size)
        padded = jnp.pad(tokens, ((0, 0), (0, parts * size - T)), constant_values=self.end)

        def read(carry: tuple[Any, jax.Array], part: tuple[jax.Array, jax.Array]) -> tuple[tuple[Any, jax.Array], None]:
            (cache, last), (rows, start) = carry, part
            place = jnp.broadcast_to(start + jnp.arange(size), (B, size))
            h, cache = model.features(rows, segment=(place < length[:, None]).astype(jnp.int32), position=place, cache=cache)
            own = length - 1 - start  # index of the last token, if it is in this part
            here = jnp.take_along_axis(h, jnp.clip(own, 0, size - 1)[:, None, None], 1)
            return (cache, jnp.where(((own >= 0) & (own < size))[:, None, None], here, last)), None

        rows = jnp.moveaxis(padded.reshape(B, parts, size), 1, 0)
        shape = jax.eval_shape(lambda: model.features(rows[0])[0])
        first = (model.init_cache(B), jnp.zeros((B, 1, shape.shape[-1]), shape.dtype))
        (cache, last), _ = jax.lax.scan(read, first, (rows, size * jnp.arange(parts)))
        return cache, self._logits(model, last)

    def _logits(self, model: Any, h: jax.Array) -> jax.Array:
        """[B, V] of h [B, 1, D], without the padding of the model's vocabulary."""
        return model.unembed(h)[:, 0, : self.end + 1]
