"""A run's previews, drawn from the same noise and conditions every time."""

from collections.abc import Callable, Mapping
from typing import Any

import jax

from tinygen import build
from tinygen.config import Config
from tinygen.data.codec import Codec
from tinygen.data.source import DataSource
from tinygen.distributed import processes
from tinygen.media.image import columns_for
from tinygen.media.preview import Preview, View
from tinygen.pretrained import latents
from tinygen.rng import example_keys, stream
from tinygen.train_step import TrainState, Tree, merge


def preview_step(config: Config, parts: build.Parts) -> Any:
    """The jitted (params, ema, buffers, batch) -> {name: Preview}, for batches of `preview_size` examples."""
    layout, padded = parts.layout, preview_size(config, parts)

    def draw(params: Tree, ema: Tree, buffers: Tree, batch: Mapping[str, jax.Array]) -> dict[str, Preview]:
        keys = layout.pinned(example_keys(stream(config.seed, "preview"), 0, padded))
        raw, averaged = (merge(parts.graphdef, weights, buffers) for weights in (params, ema))
        return parts.objective.preview(raw, averaged, batch, keys)

    return jax.jit(draw, out_shardings=layout.replicated)


def preview_size(config: Config, parts: build.Parts) -> int:
    return parts.layout.padded(config.train.preview_num)


def make_preview(config: Config, source: DataSource, parts: build.Parts, step: Any = None) -> Callable[[TrainState], dict[str, View]]:
    """state -> previews, from the same noise and conditions every time. Only the coordinator decodes; other processes get {}.

    step: the `preview_step`, if already made
    """
    num, layout, padded = config.train.preview_num, parts.layout, preview_size(config, parts)
    batch = layout.put(next(source.epoch("validation", padded, rows=layout.rows(padded))), padded)
    if parts.objective.generates:  # other previews keep the examples' own conditions
        for condition in source.codec.conditions:
            batch |= layout.share(condition.preview(padded, source.splits["validation"])[0])
    drawing = step or preview_step(config, parts)

    def preview(state: TrainState) -> dict[str, View]:
        shown = jax.device_get(drawing(state.params, state.ema, state.buffers, batch))
        return {name: seen(each, source.codec, num) for name, each in shown.items()} if processes.leads() else {}

    return preview


def seen(preview: Preview, codec: Codec, num: int) -> View:
    """The first `num` items of a preview."""
    columns = columns_for(max((each.cycle for each in codec.conditions), default=0))
    if preview.medium is None:
        return View(codec.medium, latents.items(codec, codec.medium.first(preview.value, num)), columns)
    return View(preview.medium, preview.medium.decode(preview.medium.first(preview.value, num)), columns)
