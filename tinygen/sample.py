"""From a checkpoint to samples: files, and the previews of a run."""

import dataclasses
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from rich.progress import track

from tinygen import build, media
from tinygen.checkpoints import store
from tinygen.checkpoints.weights import load
from tinygen.config import Config
from tinygen.data.captions.embeddings import Embedded
from tinygen.data.codec import Batch, Codec
from tinygen.data.source import DataSource
from tinygen.distributed import processes
from tinygen.errors import UserError
from tinygen.pretrained import latents
from tinygen.rng import example_keys, stream
from tinygen.sampling import text as writing
from tinygen.sampling.conditions import told
from tinygen.sampling.settings import configured, guidance, spent, stepping
from tinygen.system.terminal import say
from tinygen.train_step import TrainState, Tree, merge
from tinygen.workdir import files

Conditions = Mapping[str, jax.Array]

BATCH = 64  # samples drawn together unless told otherwise
SETTINGS = ("sampler", "guidance", "new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")  # of any objective


def main(
    ckpt: str,
    *,
    step: int | None,
    ema: bool,
    num: int | None,
    labels: Sequence[str] | None,
    settings: Mapping[str, Any],
    seed: int,
    batch_size: int,
    out: str | None,
    autoencoder: str | None = None,
    prompts: Sequence[str] = (),
    negative: str | None = None,
    encoder: str | None = None,
    stop: Sequence[str] = (),
) -> int:
    """Draws `num` samples and writes them to `out`: one file each, `grid.png` of all, and `samples.json`, which says how they were made.
    Text is printed too: one alone as it is written.

    num: None = BATCH, or of text that begins with prompts one of each
    settings: the objective's settings in place of the recipe's: SETTINGS, nfe
    prompts: what is to be drawn, in turn, or how texts begin
    stop: texts end before any of these
    negative: what guidance leads away from, in place of no caption
    autoencoder: as for `find`
    encoder: as for `prompts.told`
    """
    saved = find(ckpt, step, autoencoder)
    config = configured(saved.config, settings, saved.codec)
    parts = build.parts(config, saved.codec)
    if not hasattr(parts.objective, "sample"):
        raise UserError(f"objective {config.objective.name!r} draws no samples")
    text = saved.codec.vocabulary is not None
    if stop and not text:
        raise UserError(f"--stop={stop[0]}: this model writes no text")
    if "" in stop:
        raise UserError("--stop is empty: give what a text ends before")
    num = num or (len(prompts) if prompts and text else BATCH)
    cond, away, words = told(
        saved.codec, num, labels=labels, prompts=prompts, negative=negative, guidance=config.objective.get("guidance"), encoder=encoder
    )
    latents.check(saved.codec)
    folder = target(out, saved)
    weights = load(saved, parts, ema=ema)
    evaluations = None
    if text:
        x = _write(weights, parts, cond, words, config.model.get("positions"), num=num, seed=seed, batch_size=batch_size, stops=stop)
    else:
        x, evaluations = counted(weights, parts, cond, num=num, seed=seed, batch_size=batch_size, negative=away)
    provenance = {
        "checkpoint": str(saved.workdir), "checkpoint_step": saved.step, "ema": ema, "seed": seed, "num": num,
        **{name: config.objective[name] for name in SETTINGS if name in config.objective},
        **({"guidance": guidance(config, saved.codec)["guidance"]} if "guidance" in config.objective else {}),
        **stepping(config), **({} if evaluations is None else spent(config, evaluations)),
        **({} if negative is None else {"negative": negative}), **({"stop": list(stop)} if stop else {}),
    }  # fmt: skip
    if processes.leads():
        _clear(folder)
        write(folder, x, cond, words, parts, provenance)
        say(f"{num} sample{'s' * (num > 1)} of step {saved.step} in {folder}", error=text)
        if "nfe_most" in provenance:
            nfe = f"{provenance['nfe']:.1f} network evaluations a sample, {provenance['nfe_most']} at most"
            say(f"{config.objective.sampler} took {nfe}")
    return 0


def find(ckpt: str, step: int | None, autoencoder: str | None) -> store.Saved:
    """The checkpoint that all processes sample from.

    autoencoder: of a run on latents, where it is no longer what it was in training
    """
    saved = store.find(ckpt, step)
    processes.agree("the checkpoint", str(saved.step))
    return dataclasses.replace(saved, codec=saved.codec.decoded_by(autoencoder)) if autoencoder else saved


def _write(
    weights: tuple[Tree, Tree], parts: build.Parts, cond: Batch, prompts: Sequence[str], positions: str, **options: Any
) -> list[str]:
    """Texts, each with its prompt, which are printed as well.

    options: of `writing.texts`
    """

    def show(piece: str) -> None:
        if processes.leads():
            try:
                say(piece, end="")
            except BrokenPipeError:  # whoever read along has enough; the files are written all the same
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    if processes.leads() and (told := writing.too_long(cond, parts.objective.length, positions)):
        say(f"tinygen: {told}", error=True)
    alone, prompts = len(prompts) == 1, [prompt.encode("utf-8", "replace").decode() for prompt in prompts]  # as their tokens are made
    show(prompts[0] if alone else "")
    written = writing.texts(weights, parts, cond, **options, say=show if alone else None)
    whole = [prompt + text for prompt, text in zip(prompts, written, strict=True)]
    show("\n" if alone else media.numbered(whole))
    return whole


def draw(
    weights: tuple[Tree, Tree], parts: build.Parts, cond: Batch, *, num: int, seed: int, batch_size: int, negative: Batch | None = None
) -> np.ndarray:
    """Samples [num, ...] in the model's domain. Sample i depends on the seed and i, not on the batch size or the devices."""
    return counted(weights, parts, cond, num=num, seed=seed, batch_size=batch_size, negative=negative)[0]


def counted(
    weights: tuple[Tree, Tree], parts: build.Parts, cond: Batch, *, num: int, seed: int, batch_size: int, negative: Batch | None = None
) -> tuple[np.ndarray, np.ndarray | None]:
    """(what `draw` gives, the network evaluations that each took [num], None where the objective does not count them)."""
    size = parts.layout.padded(min(batch_size, num))
    parted = drawn(weights, parts, cond, num=num, seed=seed, size=size, negative=negative)
    shown = track(parted, description="sampling", total=-(-num // size), transient=True, disable=not processes.leads())
    x, evaluations = zip(*shown, strict=True)
    return np.concatenate(x), None if evaluations[0] is None else np.concatenate(evaluations)


def drawn(
    weights: tuple[Tree, Tree], parts: build.Parts, cond: Batch, *, num: int, seed: int, size: int, start: int = 0, step: Any = None,
    negative: Batch | None = None,
) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:  # fmt: skip
    """Samples `start` to `num` and their network evaluations as `counted` gives them, at most `size` at a time.

    cond, negative: of all `num`
    step: the `sample_step` of that size and seed, where there is one already
    """
    with jax.set_mesh(parts.layout.mesh):
        jitted = step or sample_step(parts, size, seed)
    for first in range(start, num, size):
        rows = np.minimum(np.arange(first, first + size), num - 1)  # the last batch repeats its last condition
        with jax.set_mesh(parts.layout.mesh):  # not around the yield: what is done meanwhile has its own
            given = [parts.layout.share({key: value[rows] for key, value in each.items()}) for each in (cond, negative) if each is not None]
            x, evaluations = jax.device_get(jitted(*weights, first, *given))
        yield np.asarray(x)[: num - first], None if evaluations is None else np.asarray(evaluations)[: num - first]


def sample_step(parts: build.Parts, size: int, seed: int) -> Any:
    """The jitted (weights, buffers, number of the first, conditions [size], negative ones or None) -> `size` samples, their evaluations."""
    root = stream(seed, "sample")

    def sample(
        params: Tree, buffers: Tree, start: int, cond: Conditions, negative: Conditions | None = None
    ) -> tuple[jax.Array, jax.Array | None]:
        given = merge(parts.graphdef, params, buffers), parts.layout.pinned(example_keys(root, start, size)), cond, negative
        return parts.objective.counted(*given) if hasattr(parts.objective, "counted") else (parts.objective.sample(*given), None)

    return jax.jit(sample, out_shardings=parts.layout.replicated)


def target(out: str | None, saved: store.Saved) -> files.Folder:
    """The folder for the samples, which process 0 makes before any work: that may not be possible."""
    folder = files.folder(out) if out else files.folder(saved.workdir) / f"sampled/{saved.step}"
    if not processes.leads():
        return folder
    try:
        if out:
            folder.root.mkdir(parents=True, exist_ok=True)
        folder.make()
    except OSError as error:
        option = f"--out={out}" if out else str(folder)
        raise UserError(f"{option} cannot be made ({error.filename}: {error.strerror}). Give --out=DIR, a folder that can be.") from error
    return folder


def write(
    folder: files.Folder, x: np.ndarray | list[str], cond: Batch, prompts: Sequence[str], parts: build.Parts, provenance: dict[str, Any]
) -> None:
    """Samples as files; arrays that are no pictures as one samples.npz.

    x: in the model's domain, or texts
    prompts: of each, or none
    """
    codec = parts.codec
    suffix = "txt" if codec.vocabulary is not None else "png" if codec.kind == "image" else ""
    files = [f"{index:05d}.{suffix}" for index in range(len(x))] if suffix else []
    if codec.vocabulary is not None:
        for name, text in zip(files, x, strict=True):
            folder.write(name, str(text))
    elif codec.kind == "image":
        pictures = latents.pictures(codec, np.asarray(x))
        for name, picture in zip(files, pictures, strict=True):
            folder.write(name, media.png(picture))
        cycle = len(set(cond["label"].tolist())) if "label" in cond else len(set(prompts))
        folder.write("grid.png", media.png(media.grid(pictures, media.columns_for(cycle))))
    else:
        arrays: Any = {"x": x, **{name: rows[:] for name, rows in cond.items()}}
        packed = io.BytesIO()  # zip goes back and forth in its file, which object stores do not let it
        np.savez(packed, **arrays)
        folder.write("samples.npz", packed.getvalue())
    rows: list[dict[str, Any]] = [{"file": name} for name in files]
    for row, label in zip(rows, cond.get("label", []), strict=False):
        row |= {"label": int(label), "name": codec.labels[label]}
    for row, prompt in zip(rows, prompts, strict=False):
        row["prompt"] = prompt
    folder.write("samples.json", json.dumps({**provenance, "samples": rows}, indent=1) + "\n")


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


def _clear(folder: files.Folder) -> None:
    """Deletes the numbered files of an earlier call, so that none is taken for one of these."""
    names = [entry.name for entry in folder.entries()]
    for name in names if "samples.json" in names else ():
        stem, _, suffix = name.rpartition(".")
        if stem.isdigit() and suffix in ("png", "txt"):
            folder.remove(name)
