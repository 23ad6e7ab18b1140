"""From a checkpoint to samples: files, and the previews of a run."""

import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tinygen import build, media
from tinygen.checkpoints import store
from tinygen.checkpoints.weights import load
from tinygen.data.codec import Batch
from tinygen.distributed import processes
from tinygen.errors import UserError
from tinygen.pretrained import latents
from tinygen.sampling import text as writing
from tinygen.sampling.conditions import told
from tinygen.sampling.draw import BATCH, counted
from tinygen.sampling.settings import configured, find, guidance, spent, stepping
from tinygen.system.terminal import say
from tinygen.train_step import Tree
from tinygen.workdir import files

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


def _clear(folder: files.Folder) -> None:
    """Deletes the numbered files of an earlier call, so that none is taken for one of these."""
    names = [entry.name for entry in folder.entries()]
    for name in names if "samples.json" in names else ():
        stem, _, suffix = name.rpartition(".")
        if stem.isdigit() and suffix in ("png", "txt"):
            folder.remove(name)
