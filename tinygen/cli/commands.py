"""The subcommands: help text, flags, and the call that each makes.

Flags stop here: below, commands are functions with plain arguments. Nothing heavy (JAX, TensorFlow) is imported before a command runs.
"""

import contextlib
import dataclasses
import importlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from tinygen.cli import flags as options
from tinygen.data import encoding
from tinygen.errors import UserError
from tinygen.workdir.files import check_place


class Recipe(NamedTuple):
    """The parsed --config with its overrides.

    path: as given, "dit_digits:smoke"
    changed: {key: (value in the recipe, value on the command line)}
    """

    path: str
    config: Any
    changed: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Command:
    """A subcommand. `run` gets the `Recipe` if the command has a flag --config, else None.

    bare: the flag that a positional argument sets; "" if there is none
    """

    summary: str
    usage: str
    declared: Sequence[options.Flag]
    run: Callable[[flags.FlagValues, Any], int | None]
    bare: str = ""


def _train(values: flags.FlagValues, recipe: Recipe) -> int | None:
    with _joined(values, recipe.config):
        if values.describe:
            return _command("training.describe")(recipe.config)
        return _command("train")(recipe.config, _workdir(values), {"recipe": recipe.path, "changed": recipe.changed})


def _check(values: flags.FlagValues, recipe: Recipe) -> int | None:
    with _joined(values, recipe.config):
        return _command("check")(recipe.config, _workdir(values))


def _sample(values: flags.FlagValues, recipe: None) -> int | None:
    settings = _settings(values, (*options.DENOISING, *options.TOKENS, *options.WRITING))
    ckpt = required(values, "ckpt", "a run's workdir, for example --ckpt=runs/dit_pixel_faces")
    prompts = _prompts(values)
    with _joined(values, values):
        from tinygen.data.condition import Request
        from tinygen.sample import Drawing

        request = Request(
            labels=values.labels or (), prompts=prompts, negative=values.negative, stop=values.stop, encoder=values.encoder,
            given=values.given,
        )  # fmt: skip
        drawing = Drawing(
            step=values.step, ema=values.ema, num=values.num or (len(prompts) if values.prompts else None), settings=settings,
            seed=values.seed, batch_size=values.batch_size, history=values.history,
        )  # fmt: skip
        return _command("sample")(ckpt, request, drawing, out=values.out, autoencoder=values.autoencoder)


def _settings(values: flags.FlagValues, names: Sequence[str]) -> dict[str, Any]:
    """The objective's settings given as flags."""
    return {name: values[name].value for name in names if values[name].value is not None}


def _prompts(values: flags.FlagValues) -> list[str]:
    """The prompts of --prompt, or of the file --prompts without its empty lines."""
    if not values.prompts:
        return list(values.prompt)
    if values.prompt:
        raise UserError("give either --prompt or --prompts, not both")
    try:
        content = Path(values.prompts).read_bytes()
        prompts = [line.strip() for line in io.StringIO(content.decode("utf-8-sig"), newline=None) if line.strip()]
    except OSError as error:
        raise UserError(f"--prompts={values.prompts} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"--prompts={values.prompts} is {encoding.fault(content)}: save it as UTF-8") from error
    if not prompts:
        raise UserError(f"--prompts={values.prompts} has no prompts: write one per line")
    return prompts


def _evaluate(values: flags.FlagValues, recipe: None) -> int | None:
    ckpt = required(values, "ckpt", "a run's workdir, for example --ckpt=runs/dit_pixel_faces")
    with _joined(values, values):
        return _command("evaluate")(ckpt, step=values.step, ema=values.ema)


def _eval_fid(values: flags.FlagValues, recipe: None) -> int | None:
    if values.compare:
        if beside := [name for name in values if values[name].present and name not in ("compare", "allow")]:
            raise UserError(f"--{beside[0]} has no effect with --compare, which reads existing scores")
        return importlib.import_module("tinygen.evaluation.compare").main(values.compare, values.allow)
    from tinygen.evaluation.grid import parse

    settings = _settings(values, (*options.DENOISING, *options.TOKENS))
    points = parse(values.grid)
    if twice := [name for name in settings if name in points]:
        raise UserError(f"--{twice[0]} is given twice: as a flag and in --grid {twice[0]}=...")
    if values.allow:
        raise UserError("--allow needs --compare A B")
    sampling = [name for name in ("step", "ema", "labels", *settings, "grid", "seed", "batch_size", "autoencoder") if values[name].present]
    if values.samples and sampling:
        raise UserError(f"--{sampling[0]} has no effect with --samples, which are existing images; it needs --ckpt")
    with _joined(values, values):
        return _command("eval_fid")(
            ckpt=values.ckpt, samples=values.samples, ref=values.ref, num=values.num, scores=values.scores, features=values.features,
            preset=values.preset, weights=values.weights, step=values.step, ema=values.ema, labels=values.labels or [],
            settings=settings, points=points, seed=values.seed, batch_size=values.batch_size, force=values.force,
            autoencoder=values.autoencoder, out=values.out,
        )  # fmt: skip


def _report(values: flags.FlagValues, recipe: None) -> int | None:
    if not values.workdir or not all(values.workdir):
        raise UserError("--workdir is missing: give the workdir of a run, for example --workdir=runs/dit_pixel_faces")
    return _command("report")(values.workdir, out=values.out)


def check_places(values: flags.FlagValues) -> None:
    """Raises UserError for an invalid workdir, checkpoint or output path, before JAX is imported."""
    for name in {"workdir", "ckpt", "out", "compare"} & {*values}:
        given = values[name].value or []
        for path in [given] if isinstance(given, str) else given:
            check_place(path, f"--{name}")


def _workdir(values: flags.FlagValues) -> str:
    path, _, variant = values.config.partition(":")
    name = os.path.splitext(os.path.basename(path))[0]
    return values.workdir or os.path.join("runs", f"{name}-{variant}" if variant else name)


def required(values: flags.FlagValues, name: str, what: str) -> str:
    value = values[name].value
    if not value:
        raise UserError(f"--{name} is missing: give {what}")
    return str(value)


def _command(module: str) -> Callable[..., int | None]:
    """`main` of a command's module, imported lazily since most import JAX."""
    return importlib.import_module(f"tinygen.{module}").main


@contextlib.contextmanager
def _joined(values: flags.FlagValues, settings: Any) -> Iterator[None]:
    """Prepares this process to compute, alone or as one of several processes that must have the same flags.

    settings: what names the other processes: the configuration, or the flags of a command without one
    """
    from tinygen.distributed import processes
    from tinygen.system import compilation_cache, runtime

    if "deterministic" in settings and settings.deterministic:
        runtime.use_deterministic_ops()
    runtime.disable_async_dispatch()
    compilation_cache.enable()
    own = ("distributed", "config", "workdir")  # may differ between processes; train compares what the latter two refer to
    command = " ".join(f"--{name}={values[name].value}" for name in values if name not in own)
    with processes.joined(settings.distributed, settings.distributed_timeout, command):
        runtime.listen(quiet=True)  # after processes have connected: it needs JAX's process index
        yield


COMMANDS = {
    "train": Command(
        "train a model, or resume a run",
        "tinygen train --config=RECIPE[:VARIANT] [--workdir=DIR] [--config.KEY=VALUE ...]",
        options.TRAIN,
        _train,
    ),
    "check": Command(
        "dry run: do everything that a run does once, on a few examples",
        "tinygen check --config=RECIPE[:VARIANT] [--workdir=DIR] [--config.KEY=VALUE ...]",
        options.RECIPE,
        _check,
    ),
    "sample": Command(
        "draw samples from a checkpoint",
        "tinygen sample --ckpt=DIR [--num=64] [--labels=3,7 | --prompt=TEXT] [--nfe=25] [--guidance=2.0 | --temperature=0.8] [--out=DIR]",
        options.SAMPLE,
        _sample,
    ),
    "eval": Command(
        "compute the held-out metrics of a checkpoint", "tinygen eval --ckpt=DIR [--step=N] [--noema]", options.CKPT, _evaluate
    ),
    "eval-fid": Command(
        "score samples against a reference: FID and related scores, with their protocol",
        "tinygen eval-fid --ckpt=DIR | --samples=DIR --ref=NAME|DIR|FILE.npz [--num=50000] [--features=efflite0] | --compare A B",
        options.EVAL_FID,
        _eval_fid,
    ),
    "report": Command(
        "write an HTML report of a run, or of several side by side",
        "tinygen report --workdir=DIR[,DIR ...] [--out=FILE.html]",
        options.REPORT,
        _report,
    ),
    "recipes": Command(
        "list the recipes, describe one, or copy one for editing",
        "tinygen recipes [NAME] | --copy=NAME [--out=FILE.py]",
        options.RECIPES,
        lambda values, _: _command("cli.recipes")(values.name, copy=values.copy, out=values.out),
        bare="name",
    ),
    "keys": Command(
        "list configuration keys: defaults, meanings, constraints",
        "tinygen keys [PREFIX]",
        options.KEYS,
        lambda values, _: _command("cli.key_listing")(values.prefix),
        bare="prefix",
    ),
    "completion": Command(
        "print a shell completion script for commands, flags, recipes and keys",
        "tinygen completion bash|zsh|fish",
        options.COMPLETION,
        lambda values, _: _command("cli.completion")(required(values, "shell", f"one of {', '.join(options.SHELLS)}")),
        bare="shell",
    ),
}
