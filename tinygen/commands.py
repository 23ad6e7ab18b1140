"""The subcommands: what `help` says of each, the flags that it defines, and the call that it makes with them.

Flags stop here: below, commands are functions of plain arguments. Nothing heavy (JAX, TensorFlow) is imported before one is called.
"""

import contextlib
import dataclasses
import functools
import importlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from absl import flags

from tinygen.errors import UserError
from tinygen.keys import SCHEMA


class Recipe(NamedTuple):
    """What --config and its overrides mean.

    path: as given, "configs/x.py:variant"
    changed: {key: (the recipe's value, the command line's)}
    """

    path: str
    config: Any
    changed: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Command:
    """A subcommand. One that defines a flag --config is run with its `Recipe`, another with None."""

    summary: str
    usage: str
    define: Callable[[flags.FlagValues], None]
    run: Callable[[flags.FlagValues, Any], int | None]


def _recipe_flags(values: flags.FlagValues) -> None:
    flags.DEFINE_string("config", None, "The recipe: PATH.py[:VARIANT]. --config.a.b=v overrides any key.", flag_values=values)
    flags.DEFINE_string(
        "workdir", None, "Where the run lives; starting again there resumes. Default: runs/<config name>.", flag_values=values
    )


def _train_flags(values: flags.FlagValues) -> None:
    _recipe_flags(values)
    flags.DEFINE_boolean(
        "describe", False, "Print what would run - data, parameters, FLOPs, memory, advice on shapes - and leave.", flag_values=values
    )


def _train(values: flags.FlagValues, recipe: Recipe) -> int | None:
    with _joined_for(recipe.config, values):
        if values.describe:
            return _command("describe")(recipe.config)
        return _command("train")(recipe.config, _workdir(values), {"recipe": recipe.path, "changed": recipe.changed})


def _check(values: flags.FlagValues, recipe: Recipe) -> int | None:
    with _joined_for(recipe.config, values):
        return _command("check")(recipe.config, _workdir(values))


def _ckpt_flags(values: flags.FlagValues) -> None:
    flags.DEFINE_string("ckpt", None, "A run's workdir, its checkpoints folder, or one checkpoint in it.", flag_values=values)
    flags.DEFINE_integer("step", None, "Which checkpoint. Default: the newest.", flag_values=values)
    flags.DEFINE_string("distributed", "", "Several processes: auto, or HOST:PORT,PROCESSES,PROCESS.", flag_values=values)
    timeout = SCHEMA["distributed_timeout"].default
    flags.DEFINE_integer("distributed_timeout", timeout, "Seconds to wait for them.", lower_bound=1, flag_values=values)
    flags.DEFINE_boolean("ema", True, "Use the averaged weights; --noema uses the raw ones.", flag_values=values)


def _sample_flags(values: flags.FlagValues) -> None:
    _ckpt_flags(values)
    flags.DEFINE_integer(
        "num", None, "How many samples; sample i is the same whatever their number. Default: 64, or one a line of --prompts.",
        flag_values=values,
    )  # fmt: skip
    flags.DEFINE_list(
        "labels", None, "Labels by number or name, cycled over the samples: 3,7 or 'blond'. Default: all in turn.", flag_values=values
    )
    flags.DEFINE_multi_string(
        "prompt", [], "What to draw, in words; several are drawn in turn. Default: held-out captions.", flag_values=values
    )
    flags.DEFINE_string("prompts", None, "A file of prompts, one a line.", flag_values=values)
    flags.DEFINE_string("negative", None, "What guidance leads away from, in words. Default: no caption.", flag_values=values)
    flags.DEFINE_string("encoder", None, "The folder of a run's text encoder, where that has moved.", flag_values=values)
    _sampler_flags(values)
    flags.DEFINE_integer("seed", 0, "Seed of the noise.", lower_bound=0, upper_bound=2**32 - 1, flag_values=values)
    flags.DEFINE_integer("batch_size", 64, "Samples drawn at once; changes speed and memory, not the samples.", flag_values=values)
    flags.DEFINE_string("out", None, "Folder for the files. Default: <workdir>/sampled/<step>.", flag_values=values)


def _sampler_flags(values: flags.FlagValues) -> None:
    flags.DEFINE_integer("nfe", None, "Network evaluations a sample, guidance's included. Default: the recipe's.", flag_values=values)
    flags.DEFINE_float("guidance", None, "Guidance weight; 1 is off. Default: the recipe's.", flag_values=values)
    flags.DEFINE_string("sampler", None, "The integrator: euler or heun. Default: the recipe's.", flag_values=values)


def _sample(values: flags.FlagValues, recipe: None) -> int | None:
    if values.num is not None and values.num <= 0:
        raise UserError(f"--num={values.num}: ask for at least one sample")
    if values.batch_size <= 0:
        raise UserError(f"--batch_size={values.batch_size}: must be positive")
    settings = {name: values[name].value for name in ("nfe", "guidance", "sampler") if values[name].value is not None}
    ckpt = required(values, "ckpt", "a run's workdir, for example --ckpt=runs/dit_pixel_faces")
    prompts = _prompts(values)
    with _joined(values, values.distributed, values.distributed_timeout):
        return _command("sample")(
            ckpt, step=values.step, ema=values.ema, num=values.num or (len(prompts) if values.prompts else 64), labels=values.labels,
            prompts=prompts, negative=values.negative, settings=settings, seed=values.seed, batch_size=values.batch_size, out=values.out,
            encoder=values.encoder,
        )  # fmt: skip


def _prompts(values: flags.FlagValues) -> list[str]:
    """Those of --prompt, or of the file --prompts, whose empty lines are left out."""
    if not values.prompts:
        return list(values.prompt)
    if values.prompt:
        raise UserError("give --prompt or --prompts, a file of them; not both")
    try:
        with open(values.prompts, encoding="utf-8") as stream:
            prompts = [line.strip() for line in stream if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--prompts={values.prompts} cannot be read as text ({error})") from error
    if not prompts:
        raise UserError(f"--prompts={values.prompts} holds no prompt: write one a line")
    return prompts


def _evaluate(values: flags.FlagValues, recipe: None) -> int | None:
    ckpt = required(values, "ckpt", "a run's workdir, for example --ckpt=runs/dit_pixel_faces")
    with _joined(values, values.distributed, values.distributed_timeout):
        return _command("evaluate")(ckpt, step=values.step, ema=values.ema)


def _eval_fid_flags(values: flags.FlagValues) -> None:
    _ckpt_flags(values)
    values["ckpt"].help = "Score a run's samples: its workdir, its checkpoints folder, or one checkpoint in it."
    text, number = functools.partial(flags.DEFINE_string, flag_values=values), functools.partial(flags.DEFINE_integer, flag_values=values)
    text("samples", None, "Score pictures that are there: a folder, or an .npz file (arr_0, uint8 [N, H, W, C]).")
    text(
        "ref",
        None,
        "What they are compared with: train or validation (of the run's data), a data set NAME[:SPLIT], a folder, an .npz file of pictures "
        "or of statistics (mu, sigma). Default for --ckpt: train.",
    )
    number("num", None, "How many samples. Default: 50,000 of a checkpoint, all of --samples.")
    flags.DEFINE_list(
        "scores", ["fd"], "fd (Fréchet distance) | kid | pr (precision, recall) | dc (density, coverage) | is.", flag_values=values
    )
    text("features", "inception", "What is compared: inception (FID) | efflite0 (FD-EffLite0) | the workdir of a classifier trained here.")
    flags.DEFINE_enum(
        "preset",
        None,
        ["adm", "pytorch-fid", "clean"],
        "How Inception's pictures are resized and scaled. Default: adm.",
        flag_values=values,
    )
    text("weights", None, "Inception's file: .pth, .npz or .safetensors. Default: where it is kept, or downloaded.")
    flags.DEFINE_list(
        "labels", None, "Labels of the samples: data (as often as the reference has them) | all (in turn) | numbers or names in turn. "
        "Default: data where the reference is a split of it, else all.",
        flag_values=values,
    )  # fmt: skip
    _sampler_flags(values)
    number("seed", 0, "Seed of the samples' noise.", lower_bound=0, upper_bound=2**32 - 1)
    number("batch_size", 64, "Samples drawn at once; changes speed and memory, not the samples.", lower_bound=1)
    flags.DEFINE_boolean("force", False, "Score too few samples as well: the number is then far too large.", flag_values=values)
    flags.DEFINE_multi_string(
        "grid", [], "Score every combination of settings: --grid guidance=1,1.5,2 nfe=4,25; draws a plot.", flag_values=values
    )
    flags.DEFINE_multi_string(
        "compare",
        [],
        "Put the newest scores of two workdirs side by side: --compare A B. Unlike protocols are refused.",
        flag_values=values,
    )
    flags.DEFINE_list("allow", [], "Fields of the protocol that may differ in --compare.", flag_values=values)


def _eval_fid(values: flags.FlagValues, recipe: None) -> int | None:
    if values.compare:
        if beside := [name for name in values if values[name].present and name not in ("compare", "allow")]:
            raise UserError(f"--{beside[0]} says how samples are scored; --compare reads scores that are there already")
        return importlib.import_module("tinygen.scoring.compare").main(values.compare, values.allow)
    from tinygen.scoring.grid import parse

    settings = {name: values[name].value for name in ("nfe", "guidance", "sampler") if values[name].value is not None}
    points = parse(values.grid)
    if twice := [name for name in settings if name in points]:
        raise UserError(f"--{twice[0]} is given twice: by itself and in --grid {twice[0]}=...")
    if values.allow:
        raise UserError("--allow says what may differ in --compare A B")
    sampling = [name for name in ("step", "ema", "labels", *settings, "grid", "seed", "batch_size") if values[name].present]
    if values.samples and sampling:
        raise UserError(f"--{sampling[0]} says how a --ckpt is sampled; what is in --samples has been drawn already")
    with _joined(values, values.distributed, values.distributed_timeout):
        return _command("eval_fid")(
            ckpt=values.ckpt, samples=values.samples, ref=values.ref, num=values.num, scores=values.scores, features=values.features,
            preset=values.preset, weights=values.weights, step=values.step, ema=values.ema, labels=values.labels or [],
            settings=settings, points=points, seed=values.seed, batch_size=values.batch_size, force=values.force,
        )  # fmt: skip


def _report_flags(values: flags.FlagValues) -> None:
    flags.DEFINE_list("workdir", None, "Folders of runs, separated by commas: several are shown side by side.", flag_values=values)
    flags.DEFINE_string("out", None, "The page's file. Default: report.html in the first run's folder.", flag_values=values)


def _report(values: flags.FlagValues, recipe: None) -> int | None:
    if not values.workdir or not all(values.workdir):
        raise UserError("--workdir is missing: give the folder of a run, for example --workdir=runs/dit_pixel_faces")
    return _command("report")(values.workdir, out=values.out)


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
    """`main` of a command's module, imported only now: it brings JAX."""
    return importlib.import_module(f"tinygen.{module}").main


def _joined_for(config: Any, values: flags.FlagValues) -> contextlib.AbstractContextManager[None]:
    """`_joined`, as a run's configuration has it."""
    from tinygen import runtime

    if config.deterministic:
        runtime.compute_repeatably()
    return _joined(values, config.distributed, config.distributed_timeout)


def _joined(values: flags.FlagValues, distributed: str, timeout: int) -> contextlib.AbstractContextManager[None]:
    """This process ready to compute: as one of several, where `distributed` says so, of those that have the same flags."""
    from tinygen import compiled, processes, runtime

    runtime.compute_in_turn()
    compiled.keep_compiled()
    own = ("distributed", "config", "workdir")  # of each process; what the latter two mean is compared by train
    command = " ".join(f"--{name}={values[name].value}" for name in values if name not in own)
    return processes.joined(distributed, timeout, command)


COMMANDS = {
    "train": Command(
        "train a model, or go on with a run that was stopped",
        "tinygen train --config=configs/RECIPE.py[:VARIANT] [--workdir=DIR] [--config.KEY=VALUE ...]",
        _train_flags,
        _train,
    ),
    "check": Command(
        "do all that a run will do once, on a few examples, before it starts",
        "tinygen check --config=configs/RECIPE.py[:VARIANT] [--workdir=DIR] [--config.KEY=VALUE ...]",
        _recipe_flags,
        _check,
    ),
    "sample": Command(
        "draw samples from a checkpoint",
        "tinygen sample --ckpt=DIR [--num=64] [--labels=3,7 | --prompt=WORDS] [--nfe=25] [--guidance=2.0] [--out=DIR]",
        _sample_flags,
        _sample,
    ),
    "eval": Command(
        "the objective's own held-out metrics of a checkpoint",
        "tinygen eval --ckpt=DIR [--step=N] [--noema]",
        _ckpt_flags,
        _evaluate,
    ),
    "eval-fid": Command(
        "score samples against a reference: FID and its kind, each with its protocol",
        "tinygen eval-fid --ckpt=DIR | --samples=DIR --ref=NAME|DIR|FILE.npz [--num=50000] [--features=efflite0] | --compare A B",
        _eval_fid_flags,
        _eval_fid,
    ),
    "report": Command(
        "one HTML page of a run, or of several side by side",
        "tinygen report --workdir=DIR[,DIR ...] [--out=FILE.html]",
        _report_flags,
        _report,
    ),
}
