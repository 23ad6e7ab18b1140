"""The subcommands: what `help` says of each, and the call that it makes with its flags, which `options` defines.

Flags stop here: below, commands are functions of plain arguments. Nothing heavy (JAX, TensorFlow) is imported before one is called.
"""

import contextlib
import dataclasses
import importlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags, logging

from tinygen.cli import flags as options
from tinygen.data import encoding
from tinygen.errors import UserError
from tinygen.workdir import places


class Recipe(NamedTuple):
    """What --config and its overrides mean.

    path: as given, "dit_digits:smoke"
    changed: {key: (the recipe's value, the command line's)}
    """

    path: str
    config: Any
    changed: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Command:
    """A subcommand. One that defines a flag --config is run with its `Recipe`, another with None.

    bare: the flag that a word without one is taken for; "" where such a word is a mistake
    """

    summary: str
    usage: str
    define: Callable[[flags.FlagValues], None]
    run: Callable[[flags.FlagValues, Any], int | None]
    bare: str = ""


def _train(values: flags.FlagValues, recipe: Recipe) -> int | None:
    with _joined_for(recipe.config, values):
        if values.describe:
            return _command("describe")(recipe.config)
        return _command("train")(recipe.config, _workdir(values), {"recipe": recipe.path, "changed": recipe.changed})


def _check(values: flags.FlagValues, recipe: Recipe) -> int | None:
    with _joined_for(recipe.config, values):
        return _command("check")(recipe.config, _workdir(values))


def _sample(values: flags.FlagValues, recipe: None) -> int | None:
    if values.num is not None and values.num <= 0:
        raise UserError(f"--num={values.num}: ask for at least one sample")
    if values.batch_size <= 0:
        raise UserError(f"--batch_size={values.batch_size}: must be positive")
    settings = _settings(values, (*options.DENOISING, *options.WRITING))
    ckpt = required(values, "ckpt", "a run's workdir, for example --ckpt=runs/dit_pixel_faces")
    prompts = _prompts(values)
    with _joined(values, values.distributed, values.distributed_timeout):
        return _command("sample")(
            ckpt, step=values.step, ema=values.ema, num=values.num or (len(prompts) if values.prompts else None), labels=values.labels,
            prompts=prompts, negative=values.negative, settings=settings, seed=values.seed, batch_size=values.batch_size, out=values.out,
            autoencoder=values.autoencoder, encoder=values.encoder, stop=values.stop,
        )  # fmt: skip


def _settings(values: flags.FlagValues, names: Sequence[str]) -> dict[str, Any]:
    """Those of the objective's settings that were given."""
    return {name: values[name].value for name in names if values[name].value is not None}


def _prompts(values: flags.FlagValues) -> list[str]:
    """Those of --prompt, or of the file --prompts, whose empty lines are left out."""
    if not values.prompts:
        return list(values.prompt)
    if values.prompt:
        raise UserError("give --prompt or --prompts, a file of them; not both")
    try:
        content = Path(values.prompts).read_bytes()
        prompts = [line.strip() for line in io.StringIO(content.decode("utf-8-sig"), newline=None) if line.strip()]
    except OSError as error:
        raise UserError(f"--prompts={values.prompts} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"--prompts={values.prompts} is {encoding.fault(content)}: save it as UTF-8") from error
    if not prompts:
        raise UserError(f"--prompts={values.prompts} holds no prompt: write one a line")
    return prompts


def _evaluate(values: flags.FlagValues, recipe: None) -> int | None:
    ckpt = required(values, "ckpt", "a run's workdir, for example --ckpt=runs/dit_pixel_faces")
    with _joined(values, values.distributed, values.distributed_timeout):
        return _command("evaluate")(ckpt, step=values.step, ema=values.ema)


def _eval_fid(values: flags.FlagValues, recipe: None) -> int | None:
    if values.compare:
        if beside := [name for name in values if values[name].present and name not in ("compare", "allow")]:
            raise UserError(f"--{beside[0]} says how samples are scored; --compare reads scores that are there already")
        return importlib.import_module("tinygen.evaluation.compare").main(values.compare, values.allow)
    from tinygen.evaluation.grid import parse

    settings = _settings(values, options.DENOISING)
    points = parse(values.grid)
    if twice := [name for name in settings if name in points]:
        raise UserError(f"--{twice[0]} is given twice: by itself and in --grid {twice[0]}=...")
    if values.allow:
        raise UserError("--allow says what may differ in --compare A B")
    sampling = [name for name in ("step", "ema", "labels", *settings, "grid", "seed", "batch_size", "autoencoder") if values[name].present]
    if values.samples and sampling:
        raise UserError(f"--{sampling[0]} says how a --ckpt is sampled; what is in --samples has been drawn already")
    with _joined(values, values.distributed, values.distributed_timeout):
        return _command("eval_fid")(
            ckpt=values.ckpt, samples=values.samples, ref=values.ref, num=values.num, scores=values.scores, features=values.features,
            preset=values.preset, weights=values.weights, step=values.step, ema=values.ema, labels=values.labels or [],
            settings=settings, points=points, seed=values.seed, batch_size=values.batch_size, force=values.force,
            autoencoder=values.autoencoder, out=values.out,
        )  # fmt: skip


def _report(values: flags.FlagValues, recipe: None) -> int | None:
    if not values.workdir or not all(values.workdir):
        raise UserError("--workdir is missing: give the folder of a run, for example --workdir=runs/dit_pixel_faces")
    return _command("report")(values.workdir, out=values.out)


def _recipes(values: flags.FlagValues, recipe: None) -> int | None:
    return _command("recipes")(values.name, copy=values.copy, out=values.out)


def _keys(values: flags.FlagValues, recipe: None) -> int | None:
    return _command("keys.listing")(values.prefix)


def _completion(values: flags.FlagValues, recipe: None) -> int | None:
    return _command("completion")(required(values, "shell", f"one of {', '.join(options.SHELLS)}"))


def check_places(values: flags.FlagValues) -> None:
    """Raises UserError for a place that cannot hold a run or a file: before JAX is imported."""
    for name in {"workdir", "ckpt", "out", "compare"} & {*values}:
        given = values[name].value or []
        for path in [given] if isinstance(given, str) else given:
            places.check(path, f"--{name}")


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
    """`main` of a command's module, imported only now: most bring JAX."""
    return importlib.import_module(f"tinygen.{module}").main


def _joined_for(config: Any, values: flags.FlagValues) -> contextlib.AbstractContextManager[None]:
    """`_joined`, as a run's configuration has it."""
    from tinygen.system import runtime

    if config.deterministic:
        runtime.use_deterministic_ops()
    return _joined(values, config.distributed, config.distributed_timeout)


@contextlib.contextmanager
def _joined(values: flags.FlagValues, distributed: str, timeout: int) -> Iterator[None]:
    """This process ready to compute: as one of several, where `distributed` says so, of those that have the same flags."""
    from tinygen.distributed import processes
    from tinygen.system import compilation_cache, runtime

    runtime.disable_async_dispatch()
    compilation_cache.enable()
    own = ("distributed", "config", "workdir")  # of each process; what the latter two mean is compared by train
    command = " ".join(f"--{name}={values[name].value}" for name in values if name not in own)
    with processes.joined(distributed, timeout, command):
        runtime.listen(logging.WARNING)  # after processes have met: it asks JAX which of them this one is
        yield


COMMANDS = {
    "train": Command(
        "train a model, or go on with a run that was stopped",
        "tinygen train --config=RECIPE[:VARIANT] [--workdir=DIR] [--config.KEY=VALUE ...]",
        options.train,
        _train,
    ),
    "check": Command(
        "do all that a run will do once, on a few examples, before it starts",
        "tinygen check --config=RECIPE[:VARIANT] [--workdir=DIR] [--config.KEY=VALUE ...]",
        options.recipe,
        _check,
    ),
    "sample": Command(
        "draw samples from a checkpoint",
        "tinygen sample --ckpt=DIR [--num=64] [--labels=3,7 | --prompt=WORDS] [--nfe=25] [--guidance=2.0 | --temperature=0.8] [--out=DIR]",
        options.sample,
        _sample,
    ),
    "eval": Command(
        "the objective's own held-out metrics of a checkpoint",
        "tinygen eval --ckpt=DIR [--step=N] [--noema]",
        options.ckpt,
        _evaluate,
    ),
    "eval-fid": Command(
        "score samples against a reference: FID and its kind, each with its protocol",
        "tinygen eval-fid --ckpt=DIR | --samples=DIR --ref=NAME|DIR|FILE.npz [--num=50000] [--features=efflite0] | --compare A B",
        options.eval_fid,
        _eval_fid,
    ),
    "report": Command(
        "one HTML page of a run, or of several side by side",
        "tinygen report --workdir=DIR[,DIR ...] [--out=FILE.html]",
        options.report,
        _report,
    ),
    "recipes": Command(
        "list the recipes that --config knows by name, or copy one to edit",
        "tinygen recipes [NAME] | --copy=NAME [--out=FILE.py]",
        options.recipes,
        _recipes,
        bare="name",
    ),
    "keys": Command(
        "list the keys of a configuration: defaults, meanings, constraints",
        "tinygen keys [PREFIX]",
        options.keys,
        _keys,
        bare="prefix",
    ),
    "completion": Command(
        "print a script that has a shell complete commands, flags, recipes and keys",
        "tinygen completion bash|zsh|fish",
        options.completion,
        _completion,
        bare="shell",
    ),
}
