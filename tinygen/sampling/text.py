"""Samples text token by token: a single text is streamed, several are drawn in batches."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.progress import Progress

from tinygen import build
from tinygen.data.codec import Batch
from tinygen.distributed import processes
from tinygen.rng import example_keys, stream
from tinygen.sampling.draw import shared
from tinygen.train_step import Tree, merge

TOGETHER = 32  # tokens per device call for several texts, between checks whether all have ended


def texts(
    weights: tuple[Tree, Tree], parts: build.Parts, cond: Batch, *, num: int, seed: int, batch_size: int, stops: Sequence[str],
    say: Callable[[str], None] | None = None,
) -> list[str]:  # fmt: skip
    """Continuations of `num` prompts. Text i depends on the seed, its prompt and i, not on the batch size or the devices.

    say: called with each piece of a single text as it comes; otherwise a progress bar counts tokens
    """
    size, most = parts.layout.padded(min(batch_size, num)), parts.objective.new_tokens
    begin, more = _jitted(parts, size, seed, 1 if say else min(TOGETHER, most))
    written: list[str] = []
    console = Console(stderr=True)  # stdout is for the texts
    hidden = bool(say) or not (processes.leads() and console.is_terminal)
    with Progress(console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task("writing", total=-(-num // size) * most)
        for number, first in enumerate(range(0, num, size)):
            batch = [parts.codec.medium.growing(stops) for _ in range(min(size, num - first))]
            with jax.set_mesh(parts.layout.mesh):
                state, done = begin(*weights, first, shared(parts, cond, first, size, num)), 0
            while done < most and not all(text.ended for text in batch):
                with jax.set_mesh(parts.layout.mesh):
                    state, tokens = more(*weights, state)
                tokens = np.asarray(jax.device_get(tokens))[:, : most - done]
                done += tokens.shape[1]
                pieces = [text.add(row.tolist(), last=done == most) for text, row in zip(batch, tokens, strict=False)]
                if say is not None:
                    say(pieces[0])
                progress.update(task, completed=number * most + done)
            progress.update(task, completed=(number + 1) * most)
            written += [text.whole for text in batch]
    return written


def _jitted(parts: build.Parts, size: int, seed: int, together: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The jitted functions that write `size` texts, `together` tokens per call:
    (weights, buffers, index of the first text, conditions) -> state, and
    (weights, buffers, state) -> (state, tokens), which donates the state.
    """
    graphdef, root, objective = parts.graphdef, stream(seed, "sample"), parts.objective

    def begin(params: Tree, buffers: Tree, start: int, cond: dict[str, jax.Array]) -> Any:
        keys = parts.layout.pinned(example_keys(root, start, size))
        return objective.begin(merge(graphdef, params, buffers), cond["prompt"], cond["prompt_mask"], keys)

    def more(params: Tree, buffers: Tree, state: Any) -> tuple[Any, jax.Array]:
        return objective.more(merge(graphdef, params, buffers), state, together)

    return jax.jit(begin), jax.jit(more, donate_argnums=2, out_shardings=(None, parts.layout.replicated))


def too_long(parts: build.Parts, cond: Batch, positions: str) -> str:
    """A warning about prompts that, with their start token, exceed the context; "" if there are none."""
    context = parts.objective.length
    longest = int(np.sum(cond["prompt_mask"], 1).max())
    if longest < context:
        return ""
    read = f"its last {context // 2} are read" if positions == "learned" else "all are read, and the first ones have then fallen out of it"
    return f"a prompt has {longest} tokens, and the context is {context} with the one before it: {read}"
