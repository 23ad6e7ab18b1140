"""The command line: subcommands, absl flags, and the border where a user's mistake becomes one line and exit status 2.

Flags stop here: below, commands are functions of plain arguments. Nothing heavy (JAX, TensorFlow) is imported before
a command is known to be well formed, so help and mistakes answer at once.
"""

import contextlib
import dataclasses
import importlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from tinygen import __version__
from tinygen.errors import UserError, unknown
from tinygen.keys import SCHEMA, TABLES

OVERRIDE = re.compile(r"--?(?:no)?config\.([^=]*)")


@dataclasses.dataclass(frozen=True)
class Command:
    """A subcommand: what `help` says of it, the flags it defines, and the call it makes with them."""

    summary: str
    usage: str
    define: Callable[[flags.FlagValues], None]
    run: Callable[[flags.FlagValues, list[str]], int | None]


def _train_flags(values: flags.FlagValues) -> None:
    flags.DEFINE_string("config", None, "The recipe: PATH.py[:VARIANT]. --config.a.b=v overrides any key.", flag_values=values)
    flags.DEFINE_string(
        "workdir", None, "Where the run lives; starting again there resumes. Default: runs/<config name>.", flag_values=values
    )
    flags.DEFINE_boolean(
        "describe", False, "Print what would run - data, parameters, FLOPs, memory, advice on shapes - and leave.", flag_values=values
    )


def _train(values: flags.FlagValues, overrides: list[str]) -> int | None:
    recipe = _required(values, "config", "a recipe, for example --config=configs/dit_pixel_faces.py")
    config, changed = _config(recipe, overrides)  # before the import: a mistake in it answers at once
    with _joined(values, config.distributed, config.distributed_timeout):
        if values.describe:
            return _command("describe")(config)
        return _command("train")(config, _workdir(values), {"recipe": recipe, "changed": changed})


def _ckpt_flags(values: flags.FlagValues) -> None:
    flags.DEFINE_string("ckpt", None, "A run's workdir, its checkpoints folder, or one checkpoint in it.", flag_values=values)
    flags.DEFINE_integer("step", None, "Which checkpoint. Default: the newest.", flag_values=values)
    flags.DEFINE_string("distributed", "", "Several processes: auto, or HOST:PORT,PROCESSES,PROCESS.", flag_values=values)
    timeout = SCHEMA["distributed_timeout"].default
    flags.DEFINE_integer("distributed_timeout", timeout, "Seconds to wait for them.", lower_bound=1, flag_values=values)
    flags.DEFINE_boolean("ema", True, "Use the averaged weights; --noema uses the raw ones.", flag_values=values)


def _sample_flags(values: flags.FlagValues) -> None:
    _ckpt_flags(values)
    flags.DEFINE_integer("num", 64, "How many samples. Sample i is the same whatever their number.", flag_values=values)
    flags.DEFINE_list(
        "labels", None, "Labels by number or name, cycled over the samples: 3,7 or 'blond'. Default: all in turn.", flag_values=values
    )
    flags.DEFINE_integer("nfe", None, "Network evaluations a sample, guidance's included. Default: the recipe's.", flag_values=values)
    flags.DEFINE_float("guidance", None, "Guidance weight; 1 is off. Default: the recipe's.", flag_values=values)
    flags.DEFINE_string("sampler", None, "The integrator: euler or heun. Default: the recipe's.", flag_values=values)
    flags.DEFINE_integer("seed", 0, "Seed of the noise.", lower_bound=0, upper_bound=2**32 - 1, flag_values=values)
    flags.DEFINE_integer("batch_size", 64, "Samples drawn at once; changes speed and memory, not the samples.", flag_values=values)
    flags.DEFINE_string("out", None, "Folder for the files. Default: <workdir>/sampled/<step>.", flag_values=values)


def _sample(values: flags.FlagValues, overrides: list[str]) -> int | None:
    if values.num <= 0:
        raise UserError(f"--num={values.num}: ask for at least one sample")
    if values.batch_size <= 0:
        raise UserError(f"--batch_size={values.batch_size}: must be positive")
    settings = {name: values[name].value for name in ("nfe", "guidance", "sampler") if values[name].value is not None}
    ckpt = _required(values, "ckpt", "a run's workdir, for example --ckpt=runs/dit_pixel_faces")
    with _joined(values, values.distributed, values.distributed_timeout):
        return _command("sample")(
            ckpt, step=values.step, ema=values.ema, num=values.num, labels=values.labels, settings=settings,
            seed=values.seed, batch_size=values.batch_size, out=values.out,
        )  # fmt: skip


def _evaluate(values: flags.FlagValues, overrides: list[str]) -> int | None:
    ckpt = _required(values, "ckpt", "a run's workdir, for example --ckpt=runs/dit_pixel_faces")
    with _joined(values, values.distributed, values.distributed_timeout):
        return _command("evaluate")(ckpt, step=values.step, ema=values.ema)


def _report_flags(values: flags.FlagValues) -> None:
    flags.DEFINE_list("workdir", None, "Folders of runs, separated by commas: several are shown side by side.", flag_values=values)
    flags.DEFINE_string("out", None, "The page's file. Default: report.html in the first run's folder.", flag_values=values)


def _report(values: flags.FlagValues, overrides: list[str]) -> int | None:
    if not values.workdir or not all(values.workdir):
        raise UserError("--workdir is missing: give the folder of a run, for example --workdir=runs/dit_pixel_faces")
    return _command("report")(values.workdir, out=values.out)


COMMANDS = {
    "train": Command(
        "train a model, or go on with a run that was stopped",
        "tinygen train --config=configs/RECIPE.py[:VARIANT] [--workdir=DIR] [--config.KEY=VALUE ...]",
        _train_flags,
        _train,
    ),
    "sample": Command(
        "draw samples from a checkpoint",
        "tinygen sample --ckpt=DIR [--num=64] [--labels=3,7] [--nfe=25] [--guidance=2.0] [--out=DIR]",
        _sample_flags,
        _sample,
    ),
    "eval": Command(
        "the objective's own held-out metrics of a checkpoint",
        "tinygen eval --ckpt=DIR [--step=N] [--noema]",
        _ckpt_flags,
        _evaluate,
    ),
    "report": Command(
        "one HTML page of a run, or of several side by side",
        "tinygen report --workdir=DIR[,DIR ...] [--out=FILE.html]",
        _report_flags,
        _report,
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line (default: this process's) and returns its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except UserError as error:
        return _refuse(str(error))
    except flags.Error as error:
        return _refuse(_flag_message(error))
    except KeyboardInterrupt:
        print("tinygen: interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        if error.filename is None and error.errno is None:
            raise
        return _refuse(f"{error.filename or 'input/output'}: {error.strerror}")


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview())
        return 0
    name, rest = arguments[0], arguments[1:]
    if name == "--version":
        print(f"tinygen {__version__}")
        return 0
    if name == "help":
        if not rest:
            print(_overview())
            return 0
        name, rest = rest[0], ["--help"]
    if name not in COMMANDS:
        raise unknown("command", name, [*COMMANDS, "help"])
    command, values = COMMANDS[name], flags.FlagValues()
    command.define(values)
    if any(argument in ("-h", "--help", "-help") for argument in rest):
        print(_manual(name, command, values))
        return 0
    _prepare_process()
    overrides, rest = _split_overrides(rest)
    if overrides and "config" not in values:
        raise UserError(f"{overrides[0]}: only 'tinygen train' takes overrides; a checkpoint brings its own configuration")
    _parse(values, rest)
    return command.run(values, overrides) or 0


def _parse(values: flags.FlagValues, arguments: list[str]) -> None:
    known = {*values}
    for argument in arguments:  # absl's own message names a near match only for some; ours always does, and in one line
        flag = re.match(r"--?([A-Za-z_][\w.]*)", argument)
        name = flag[1] if flag else ""
        if flag and name not in known and not (name.startswith("no") and name[2:] in known):
            raise unknown("flag", f"--{name}", [f"--{each}" for each in known])
    try:
        positional = values(["tinygen", *arguments])[1:]
    except ValueError as error:  # absl's for --noema=3
        raise UserError(str(error)) from error
    if positional:
        raise UserError(f"{positional[0]!r} is not a flag: write --name=value ('tinygen help' lists commands and flags)")


def _config(recipe: str, overrides: list[str]) -> tuple[Any, dict[str, Any]]:
    """The recipe's configuration with every `--config.a.b=v`, typed and applied by ml_collections' config_flags; and what that changed."""
    from ml_collections import config_flags

    from tinygen import config as schema

    original = schema.load(recipe)
    # A new name brings another row of keywords, so it must be chosen before the other overrides are typed.
    chosen = [re.fullmatch(r"--?config\.(\w+)\.name=(.*)", override) for override in overrides]
    config = schema.change(original, {match[1]: {"name": match[2]} for match in chosen if match and match[1] in TABLES})
    keys = schema.flatten(config)
    for override in overrides:
        key = OVERRIDE.match(override)[1]  # type: ignore[index]
        if key not in keys:
            raise unknown("config key", key, keys)
    typed = flags.FlagValues()
    own = schema.change(config, {})  # the flags change what they are given
    config_flags.DEFINE_config_dict("config", own, flag_values=typed, sys_argv=overrides)
    typed(["tinygen", *overrides])
    config = schema.change(config, typed.config.to_dict())
    schema.check(config)
    return config, schema.difference(original, config)


def _split_overrides(arguments: list[str]) -> tuple[list[str], list[str]]:
    """(overrides `--config.a.b=v`, the other arguments); `--config.a.b v` is written with `=`."""
    overrides: list[str] = []
    others: list[str] = []
    waiting = False
    for argument in arguments:
        if OVERRIDE.match(argument):
            overrides.append(argument)
            waiting = "=" not in argument
        elif waiting and not argument.startswith("--"):
            overrides[-1] += f"={argument}"
            waiting = False
        else:
            others.append(argument)
            waiting = False
    return overrides, others


def _workdir(values: flags.FlagValues) -> str:
    path, _, variant = values.config.partition(":")
    name = os.path.splitext(os.path.basename(path))[0]
    return values.workdir or os.path.join("runs", f"{name}-{variant}" if variant else name)


def _required(values: flags.FlagValues, name: str, what: str) -> str:
    value = values[name].value
    if not value:
        raise UserError(f"--{name} is missing: give {what}")
    return str(value)


def _command(module: str) -> Callable[..., int | None]:
    """`main` of a command's module, imported only now: it brings JAX."""
    return importlib.import_module(f"tinygen.{module}").main


def _joined(values: flags.FlagValues, distributed: str, timeout: int) -> contextlib.AbstractContextManager[None]:
    """This process ready to compute: as one of several, where `distributed` says so, of those that have the same flags."""
    from tinygen import compiled, processes, runtime

    runtime.compute_in_turn()
    compiled.keep_compiled()
    own = ("distributed", "config", "workdir")  # of each process; what the latter two mean is compared by train
    command = " ".join(f"--{name}={values[name].value}" for name in values if name not in own)
    return processes.joined(distributed, timeout, command)


def _prepare_process() -> None:
    from tinygen.runtime import keep_memory

    keep_memory()
    flags.FLAGS.mark_as_parsed()  # or absl's log warns that it was used before its flags were parsed
    for name, value in dict(TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0", GRPC_VERBOSITY="ERROR").items():
        os.environ.setdefault(name, value)  # or TensorFlow and what it brings greet on stderr


def _flag_message(error: flags.Error) -> str:
    return " ".join(str(error).removeprefix("flag ").split())


def _refuse(message: str) -> int:
    print(f"tinygen: {message}", file=sys.stderr)
    return 2


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"tinygen {__version__}: trains tiny generative models from one config file.", "", "Commands:"]
    lines += [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    lines += ["", "'tinygen help COMMAND' shows a command's flags. To begin: tinygen train --config=configs/dit_pixel_faces.py"]
    return "\n".join(lines)


def _manual(name: str, command: Command, values: flags.FlagValues) -> str:
    lines = [f"tinygen {name}: {command.summary}", "", f"  {command.usage}", "", "Flags:"]
    for flag_name in values:
        flag = values[flag_name]
        default = "" if flag.default in (None, "") else f" (default: {str(flag.default).lower()})"
        lines.append(f"  --{flag_name}: {flag.help}{default}")
    return "\n".join(lines)
