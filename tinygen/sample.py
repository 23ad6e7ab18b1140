"""`tinygen sample`: draws samples from a checkpoint and writes them to files."""

import dataclasses
import functools
import itertools
import json
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tinygen import build
from tinygen.checkpoints import store
from tinygen.checkpoints.weights import load
from tinygen.config import Config
from tinygen.data.codec import Codec
from tinygen.data.condition import Request
from tinygen.distributed import processes
from tinygen.errors import UserError
from tinygen.media import MEDIA
from tinygen.media.image import columns_for
from tinygen.pretrained import latents
from tinygen.sampling import text as writing
from tinygen.sampling.conditions import Asked, asked
from tinygen.sampling.draw import BATCH, counted
from tinygen.sampling.history import SHOWN, animation
from tinygen.sampling.settings import configured, find, guidance, spent, stepping
from tinygen.system.terminal import drop_output, say
from tinygen.train_step import Tree
from tinygen.workdir import files

SETTINGS = ("sampler", "guidance", "new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")  # of all objectives


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawing:
    """How samples are drawn from a checkpoint.

    step: checkpoint to use; None = the newest
    ema: use the averaged weights
    num: number of samples; None = one per text prompt, or BATCH
    settings: overrides of the recipe's sampler settings: SETTINGS, nfe
    batch_size: samples drawn together
    history: write the steps of the first samples as an animation
    """

    step: int | None = None
    ema: bool = True
    num: int | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seed: int = 0
    batch_size: int = BATCH
    history: bool = False


def main(ckpt: str, request: Request, drawing: Drawing, *, out: str | None = None, autoencoder: str | None = None) -> int:
    """Draws samples and writes them to `out`: one file each, an overview, and `samples.json` with their provenance.

    Text is also printed; a single text is streamed.

    out: None = sampled/<step> in the run's workdir
    autoencoder: as in `find`
    """
    saved = find(ckpt, drawing.step, autoencoder)
    config = configured(saved.config, drawing.settings, saved.codec)
    parts = build.parts(config, saved.codec)
    if not parts.objective.generates:
        raise UserError(f"objective {config.objective.name!r} draws no samples")
    _check(request, drawing, parts, config.objective.name)
    num = drawing.num or next(filter(None, (each.number(request) for each in saved.codec.conditions)), BATCH)
    wanted = asked(saved.codec, request, num, config.objective.get("guidance"))
    latents.check(saved.codec.domain)
    if request.given is not None:
        tokens = latents.given(saved.codec, request.given)
        wanted = wanted._replace(cond={**wanted.cond, "given": np.broadcast_to(tokens, (num, *tokens.shape))})
    folder = target(out, saved)
    weights = load(saved, parts, ema=drawing.ema)
    draw = _streamed if parts.objective.streams else _whole
    items, evaluations = draw(weights, parts, wanted, config, num=num, seed=drawing.seed, batch_size=drawing.batch_size, stops=request.stop)
    shown: dict[str, Any] = dict(num=min(num, SHOWN), seed=drawing.seed, negative=wanted.negative)
    steps = animation(weights, parts, wanted.cond, **shown) if drawing.history else b""
    if processes.leads():
        provenance = {
            "checkpoint": str(saved.workdir), "checkpoint_step": saved.step, "ema": drawing.ema, "seed": drawing.seed, "num": num,
            **_choices(config, saved.codec), **({} if evaluations is None else spent(config, evaluations)),
            **({} if request.negative is None else {"negative": request.negative}),
            **({"stop": list(request.stop)} if request.stop else {}), **({} if request.given is None else {"given": request.given}),
        }  # fmt: skip
        _clear(folder)
        write(folder, items, wanted, saved.codec, provenance)
        if steps:
            folder.write("history.gif", steps)
        say(f"{num} sample{'s' * (num > 1)} of step {saved.step} in {folder}", error=saved.codec.medium.printed)
        if "nfe_most" in provenance:
            nfe = f"{provenance['nfe']:.1f} network evaluations per sample, {provenance['nfe_most']} at most"
            say(f"sampler {config.objective.sampler} took {nfe}")
    return 0


def _check(request: Request, drawing: Drawing, parts: build.Parts, name: str) -> None:
    """Raises UserError for a request that the objective cannot meet."""
    objective, medium = parts.objective, parts.codec.medium
    if "" in request.stop:
        raise UserError("--stop is empty: give the string before which a text ends")
    if request.stop and medium.printed and not objective.streams:
        raise UserError(f"--stop={request.stop[0]}: objective {name!r} writes all of a text at once")
    for option, wanted in {"--given": request.given is not None, "--history": drawing.history}.items():
        if wanted and not objective.infills:
            raise UserError(f"{option} needs a model of tokens, trained with objective 'discrete', and this one is of {name!r}")
    if drawing.history and not medium.animates:
        raise UserError(f"--history draws pictures, and this model's samples are {medium.noun}")
    if request.given is not None and medium.printed and request.prompts:
        raise UserError("give --prompt or --given, whose text may begin with the prompt, not both")


def _choices(config: Config, codec: Codec) -> dict[str, Any]:
    """The sampler settings that take effect."""
    chosen = {name: config.objective[name] for name in SETTINGS if name in config.objective}
    return {**chosen, **({"guidance": guidance(config, codec)["guidance"]} if "guidance" in chosen else {}), **stepping(config)}


def _whole(
    weights: tuple[Tree, Tree], parts: build.Parts, wanted: Asked, config: Config, *, stops: Sequence[str], **options: Any
) -> tuple[Any, np.ndarray | None]:
    """(samples as items of the medium, network evaluations of each). options: of `counted`"""
    del config, stops
    x, evaluations = counted(weights, parts, wanted.cond, negative=wanted.negative, **options)
    if not processes.leads():
        return None, evaluations
    items, medium = latents.items(parts.codec, np.asarray(x)), parts.codec.medium
    if medium.printed:
        say(f"{items[0]}\n" if len(items) == 1 else medium.overview(items))
    return items, evaluations


def _streamed(weights: tuple[Tree, Tree], parts: build.Parts, wanted: Asked, config: Config, **options: Any) -> tuple[list[str], None]:
    """Prints the texts. Returns (texts, each after its prompt; None). options: of `tinygen.sampling.text.texts`"""

    def show(piece: str) -> None:
        if processes.leads():
            try:
                say(piece, end="")
            except BrokenPipeError:  # the reader has closed the pipe; still write the files
                drop_output()

    if processes.leads() and (warning := writing.too_long(parts, wanted.cond, config.model.get("positions"))):
        say(f"tinygen: {warning}", error=True)
    prompts = [prompt.encode("utf-8", "replace").decode() for prompt in next(filter(None, wanted.words))]  # as the tokenizer does
    alone = len(prompts) == 1
    show(prompts[0] if alone else "")
    written = writing.texts(weights, parts, wanted.cond, **options, say=show if alone else None)
    whole = [prompt + text for prompt, text in zip(prompts, written, strict=True)]
    show("\n" if alone else parts.codec.medium.overview(whole))
    return whole, None


def target(out: str | None, saved: store.Saved) -> files.Folder:
    """The folder for the samples. The coordinator creates it before any work; raises UserError if that fails."""
    folder = files.folder(out) if out else files.folder(saved.workdir) / f"sampled/{saved.step}"
    if not processes.leads():
        return folder
    try:
        if out:
            folder.root.mkdir(parents=True, exist_ok=True)
        folder.make()
    except OSError as error:
        option = f"--out={out}" if out else str(folder)
        raise UserError(f"{option} cannot be made ({error.filename}: {error.strerror}). Give another folder: --out=DIR.") from error
    return folder


def write(folder: files.Folder, items: Any, wanted: Asked, codec: Codec, provenance: Mapping[str, Any]) -> None:
    """Writes the samples, one file each or a single sheet as their medium wants, and samples.json."""
    medium = codec.medium
    names = [f"{index:05d}.{medium.suffix}" for index in range(len(items))] if medium.suffix else []
    for name, item in zip(names, items, strict=False):
        folder.write(name, medium.encode(item))
    described = [each.describe(wanted.cond, words) for each, words in zip(codec.conditions, wanted.words, strict=True)]
    about = [functools.reduce(operator.or_, row) for row in zip(*filter(None, described), strict=True)]
    if medium.sheet:
        folder.write(medium.sheet, medium.contents(items, columns_for(len({json.dumps(row) for row in about})), wanted.cond))
    rows = [{"file": name, **row} for name, row in itertools.zip_longest(names, about if names else [], fillvalue={})]
    folder.write("samples.json", json.dumps({**provenance, "samples": rows}, indent=1) + "\n")


def _clear(folder: files.Folder) -> None:
    """Deletes the numbered files of an earlier call, so that old and new samples don't mix."""
    names = [entry.name for entry in folder.entries()]
    for name in names if "samples.json" in names else ():
        stem, _, suffix = name.rpartition(".")
        if stem.isdigit() and suffix in {medium.suffix for medium in MEDIA.values()}:
            folder.remove(name)
