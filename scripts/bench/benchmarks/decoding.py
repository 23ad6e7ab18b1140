"""Decoding with a key-value cache, against a full forward pass per token."""

import statistics
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from benchmarks import gpt_step, turns
from tinygen import build
from tinygen import config as config_lib
from tinygen.objectives.autoregressive import Autoregressive
from tinygen.rng import example_keys, stream
from tinygen.train_step import merge, split


def measure(recipe: str, settings: Sequence[str], vocabulary: int, num: int, rounds: int) -> str:
    """A table: both decode `num` texts greedily from random weights until the window is full.

    The full pass runs over a padded window of fixed length, so it is compiled once; its loop is jitted too.
    """
    greedy = dict(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0)
    config = config_lib.change(gpt_step.load_recipe(recipe, settings), dict(precision="float32", objective=greedy))
    length = config.data.length
    config = config_lib.change(config, dict(objective=dict(new_tokens=length)))
    parts = build.parts(config, gpt_step.codec_of(vocabulary, length))
    graphdef, objective = parts.graphdef, parts.objective
    assert isinstance(objective, Autoregressive)
    params, buffers = split(parts.create(nnx.Rngs(stream(config.seed, "init"))))[1:]
    # Blocks are initialised to the identity: noise makes each token depend on all previous ones.
    noise = iter(jax.random.split(stream(config.seed, "train"), len(jax.tree.leaves(params))))
    params = jax.tree.map(lambda leaf: leaf + 0.3 * jax.random.normal(next(noise), leaf.shape, leaf.dtype), params)
    keys = example_keys(stream(config.seed, "sample"), 0, num)

    @jax.jit
    def cached(params: Any) -> jax.Array:
        return objective.draw(merge(graphdef, params, buffers), keys)[0]

    @jax.jit
    def full(params: Any) -> jax.Array:
        model = merge(graphdef, params, buffers)

        def draw(index: jax.Array, window: jax.Array) -> jax.Array:
            h = model.features(window)[0]
            token = jnp.argmax(model.unembed(jax.lax.dynamic_slice_in_dim(h, index, 1, 1))[:, 0, :vocabulary], -1).astype(jnp.int32)
            ended = (window[:, index] == objective.end) & (index > 0)
            token = jnp.where(ended, objective.end, token)
            return jax.lax.dynamic_update_index_in_dim(window, token, index + 1, 1)

        window = jnp.full((num, length + 1), objective.end, jnp.int32)
        return jax.lax.fori_loop(0, length, draw, window)[:, 1:]

    tokens = cached(params)
    same = float(jnp.mean(tokens == full(params)))
    distinct = len(set(tokens.ravel().tolist()))
    contestants = [turns.timed(lambda each=each: jax.block_until_ready(each(params))) for each in (cached, full)]
    seconds = turns.take(contestants, rounds)
    lines = [f"{num} text(s) of {length} tokens ({distinct} distinct), float32, greedy; medians of {rounds} rounds"]
    for name, own in zip(("with a cache", "full passes"), seconds, strict=True):
        median = statistics.median(own)
        lines.append(f"{name:<14} {1000 * median:10.1f} ms {num * length / median:10,.0f} tokens/s")
    lines.append(f"the cache is {turns.ratio(seconds[0], seconds[1]):.1f}x as fast; {same:.2%} of the tokens are the same")
    return "\n".join(lines)
