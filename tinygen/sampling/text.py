"""Samples text token by token: a single text is streamed, several are drawn in batches."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.progress import Progress

from tinygen import build
from tinygen.data.codec import Batch
from tinygen.distributed import processes
from tinygen.rng import example_keys, stream
from tinygen.samplers.text import Generating
from tinygen.train_step import Tree, merge

TOGETHER = 32  # tokens per device call for several texts, between checks whether all have ended


class Writer(NamedTuple):
    """The jitted functions of text generation, for a fixed number of texts and width of prompts.

    begin: (weights, buffers, index of the first text, conditions) -> state
    more: (weights, buffers, state) -> (state, tokens); donates the state
    """

    begin: Callable[..., Any]
    more: Callable[..., tuple[Any, jax.Array]]


def generating(parts: build.Parts) -> Generating:
    """The objective, which must generate token by token."""
    assert isinstance(parts.objective, Generating)
    return parts.objective


def writer(parts: build.Parts, size: int, seed: int, together: int) -> Writer:
    """together: tokens per call of `more`"""
    graphdef, root, objective = parts.graphdef, stream(seed, "sample"), generating(parts)

    def begin(params: Tree, buffers: Tree, start: int, cond: dict[str, jax.Array]) -> Any:
        keys = parts.layout.pinned(example_keys(root, start, size))
        return objective.begin(merge(graphdef, params, buffers), cond["prompt"], cond["prompt_mask"], keys)

    def more(params: Tree, buffers: Tree, state: Any) -> tuple[Any, jax.Array]:
        return objective.more(merge(graphdef, params, buffers), state, together)

    return Writer(jax.jit(begin), jax.jit(more, donate_argnums=2, out_shardings=(None, parts.layout.replicated)))


def texts(
    weights: tuple[Tree, Tree], parts: build.Parts, cond: Batch, *, num: int, seed: int, batch_size: int, stops: Sequence[str],
    say: Callable[[str], None] | None = None,
) -> list[str]:  # fmt: skip
    """Continuations of `num` prompts. Text i depends on the seed, its prompt and i, not on the batch size or the devices.

    say: called with each piece of a single text as it comes; otherwise a progress bar counts tokens
    """
    size, most = parts.layout.padded(min(batch_size, num)), generating(parts).new_tokens
    with jax.set_mesh(parts.layout.mesh):
        writing = writer(parts, size, seed, 1 if say else min(TOGETHER, most))
    written: list[str] = []
    console = Console(stderr=True)  # stdout is for the texts
    hidden = bool(say) or not (processes.leads() and console.is_terminal)
    with Progress(console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task("writing", total=-(-num // size) * most)
        for number, first in enumerate(range(0, num, size)):
            batch = [parts.codec.medium.growing(stops) for _ in range(min(size, num - first))]
            for done, tokens in _steps(writing, weights, parts, cond, first, size, num, most):
                pieces = [text.add(row.tolist(), last=done == most) for text, row in zip(batch, tokens, strict=False)]
                if say is not None:
                    say(pieces[0])
                progress.update(task, completed=number * most + done)
                if all(text.ended for text in batch):
                    break
            progress.update(task, completed=(number + 1) * most)
            written += [text.whole for text in batch]
    return written


def _steps(
    writing: Writer, weights: tuple[Tree, Tree], parts: build.Parts, cond: Batch, first: int, size: int, num: int, most: int
) -> Iterator[tuple[int, np.ndarray]]:
    """(number of tokens so far, the newest tokens [size, .]), until there are `most`."""
    rows = np.minimum(np.arange(first, first + size), num - 1)  # the last batch repeats its last prompt
    with jax.set_mesh(parts.layout.mesh):
        given = parts.layout.share({key: value[rows] for key, value in cond.items()})
        state = writing.begin(*weights, first, given)
    done = 0
    while done < most:
        with jax.set_mesh(parts.layout.mesh):
            state, tokens = writing.more(*weights, state)
        tokens = np.asarray(jax.device_get(tokens))[:, : most - done]
        done += tokens.shape[1]
        yield done, tokens


def too_long(parts: build.Parts, cond: Batch, positions: str) -> str:
    """A warning about prompts that, with their start token, exceed the context; "" if there are none."""
    context = generating(parts).length
    longest = int(np.sum(cond["prompt_mask"], 1).max())
    if longest < context:
        return ""
    read = f"its last {context // 2} are read" if positions == "learned" else "all are read, and the first ones have then fallen out of it"
    return f"a prompt has {longest} tokens, and the context is {context} with the one before it: {read}"
