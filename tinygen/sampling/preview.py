"""The previews of a run: drawn from the same noise and conditions every time."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from tinygen import build, media
from tinygen.config import Config
from tinygen.data.captions.embeddings import Embedded
from tinygen.data.codec import Codec
from tinygen.data.source import DataSource
from tinygen.distributed import processes
from tinygen.pretrained import latents
from tinygen.rng import example_keys, stream
from tinygen.train_step import TrainState, Tree, merge


def preview_step(config: Config, parts: build.Parts) -> Any:
    """The jitted (params, ema, buffers, batch) -> media, for batches of as many examples as `preview_size` says."""
    layout, padded = parts.layout, preview_size(config, parts)

    def draw(params: Tree, ema: Tree, buffers: Tree, batch: Mapping[str, jax.Array]) -> dict[str, media.Media]:
        keys = layout.pinned(example_keys(stream(config.seed, "preview"), 0, padded))
        averaged = merge(parts.graphdef, ema, buffers)
        if hasattr(parts.objective, "compare"):
            return parts.objective.compare(merge(parts.graphdef, params, buffers), averaged, batch, keys)
        return parts.objective.preview(averaged, batch, keys)

    return jax.jit(draw, out_shardings=layout.replicated)


def preview_size(config: Config, parts: build.Parts) -> int:
    return parts.layout.padded(config.train.preview_num)


def make_preview(
    config: Config, source: DataSource, parts: build.Parts, step: Any = None
) -> Callable[[TrainState], dict[str, media.Media]]:
    """state -> media from the same noise and conditions every time: of the averaged weights, or of both where the objective compares.

    step: the `preview_step`, where there is one already
    """
    num, layout, padded = config.train.preview_num, parts.layout, preview_size(config, parts)
    first = next(source.epoch("validation", padded, rows=layout.rows(padded)))
    batch = layout.put(first, padded)
    # Of all labels or prompts in turn; what draws no samples shows the examples, which have their own, as embeddings of captions are.
    if hasattr(parts.objective, "sample") and not isinstance(source.codec.text, Embedded):
        batch |= layout.share(source.codec.conditions(padded))
    drawing = step or preview_step(config, parts)

    def preview(state: TrainState) -> dict[str, media.Media]:
        shown = jax.device_get(drawing(state.params, state.ema, state.buffers, batch))
        first = {name: item if item.kind == "curve" else media.Media(item.value[:num], item.kind) for name, item in shown.items()}
        return {name: seen(item, source.codec) for name, item in first.items()} if processes.leads() else first

    return preview


def seen(item: media.Media, codec: Codec) -> media.Media:
    """What a preview shows of latents as images. Nothing else changes."""
    if item.kind != "codec" or codec.latents is None:
        return item
    return media.Media(latents.images(codec, np.asarray(item.value)), "image")
