"""The command line: parsing, help, and errors, which a user sees as one line and exit status 2.

Nothing heavy (JAX, TensorFlow) is imported before a command is known to be well formed, so help and mistakes respond at once.
"""

import contextlib
import itertools
import os
import re
import select
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from absl import flags

from tinygen import __version__
from tinygen.cli import completion
from tinygen.cli.commands import COMMANDS, Command, Recipe, check_places, required
from tinygen.cli.flags import defined
from tinygen.config.schema import TABLES
from tinygen.errors import UserError, unknown
from tinygen.system import faults
from tinygen.system.terminal import drop_output, say
from tinygen.workdir.reading import Refused

PLAIN = {  # plain messages for absl's
    r"invalid literal for int\(\) with base 10: .*": "not a whole number",
    r"could not convert string to float: .*": "not a number",
    r"Error while parsing string: .* as tuple\..*": "not a comma-separated list of values",
    r"\('Non-boolean argument to boolean flag', .*\)": "must be true or false",
}
OVERRIDE = re.compile(r"--?(?:no)?config\.([^=]*)")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line (default: this process's) and returns its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        with _leaving_on_ctrl_c() if arguments[:1] == ["train"] else contextlib.nullcontext():
            status = _dispatch(arguments)
        _flush()
        return status
    except UserError as error:
        return _refuse(str(error))
    except flags.Error as error:
        return _refuse(_flag_message(error))
    except Refused as error:  # a file in an untrusted workdir
        return _refuse(f"{error.filename}: {error.strerror}")
    except KeyboardInterrupt:
        say("tinygen: interrupted", error=True)
        return 130
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _unread():
            drop_output()
            return 128 + signal.SIGPIPE  # silently, as `yes | head -1` ends
        if (message := faults.environment_message(error)) is None:
            raise
        faults.show(error, message)
        return 2


def _flush() -> None:
    """Flushes standard output. Python would do so at exit, and print a traceback if that fails."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_output()
        error.filename = "standard output"
        raise


def _unread() -> bool:
    """Whether standard output or standard error is a closed pipe, as opposed to a pipe of a library."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(OSError, ValueError):  # ValueError: it has no file descriptor
            watch = select.poll()
            watch.register(stream.fileno(), 0)
            if any(event & (select.POLLERR | select.POLLHUP) for _, event in watch.poll(0)):
                return True
    return False


@contextlib.contextmanager
def _leaving_on_ctrl_c() -> Iterator[None]:
    """Exits on Ctrl-C until the training loop handles it: an exception during an import or a callback may be lost."""

    def leave(number: int, frame: object) -> None:
        os.write(2, b"tinygen: interrupted\n")
        os._exit(130)

    before = signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _dispatch(arguments: list[str]) -> int:
    name, *rest = arguments or ["help"]
    if name == "help" and rest:
        name, rest = rest[0], ["--help"]
    if name in ("help", "-h", "--help"):
        say(_overview())
        return 0
    if name == "--version":
        say(f"tinygen {__version__}")
        return 0
    if name == completion.HIDDEN:
        return completion.answer(rest)
    if name not in COMMANDS:
        raise unknown("command", name, [*COMMANDS, "help"])
    command = COMMANDS[name]
    values = defined(command.declared)
    if any(argument in ("-h", "--help", "-help") for argument in rest):
        say(_manual(name, command, values))
        return 0
    _prepare_process()
    overrides, rest = split_overrides(rest)
    if overrides and "config" not in values:
        why = "; a checkpoint brings its own configuration" if "ckpt" in values else ""
        raise UserError(f"{overrides[0]}: 'tinygen train' and 'tinygen check' take overrides{why}")
    _parse(values, _spread(rest, ("--grid", "--compare")), command.bare)
    recipe = None
    if "config" in values:  # before JAX is imported, so that mistakes respond at once
        path = required(values, "config", "a recipe, for example --config=dit_pixel_faces ('tinygen recipes' lists them)")
        recipe = Recipe(path, *configured(path, overrides))
    check_places(values)
    return command.run(values, recipe) or 0


def _parse(values: flags.FlagValues, arguments: list[str], bare: str) -> None:
    known = {*values}
    for argument in arguments:  # absl names a near match only for some flags, and not in one line
        flag = re.match(r"--?([A-Za-z_][\w.]*)", argument)
        name = flag[1] if flag else ""
        if flag and name not in known and not (name.startswith("no") and name[2:] in known):
            raise unknown("flag", f"--{name}", [f"--{each}" for each in known])
    try:
        positional = values(["tinygen", *arguments])[1:]
    except ValueError as error:  # absl's error for --noema=3
        raise UserError(str(error)) from error
    if bare and positional and values[bare].value is None:
        values(["tinygen", *arguments, f"--{bare}={positional.pop(0)}"])
    if positional:
        raise UserError(f"{positional[0]!r} is not a flag: write --name=value ('tinygen help' lists commands and flags)")


def _spread(arguments: list[str], names: Sequence[str]) -> list[str]:
    """`--compare A B` as `--compare=A --compare=B`: flags with those names take all words up to the next flag.

    >>> _spread(["--compare", "a", "b", "--allow=nfe"], ["--compare"])
    ['--compare=a', '--compare=b', '--allow=nfe']
    """
    spread: list[str] = []
    taking = ""
    for argument, following in itertools.pairwise([*arguments, "-"]):
        if argument.startswith("-"):
            taking = argument if argument in names and not following.startswith("-") else ""
            spread += [] if taking else [argument]
        else:
            spread.append(f"{taking}={argument}" if taking else argument)
    return spread


def configured(recipe: str, overrides: list[str]) -> tuple[Any, dict[str, Any]]:
    """The recipe's configuration with every `--config.a.b=v`, parsed and applied by ml_collections' config_flags, and the changes.

    Values of the recipe that do not carry over to another row are printed to stderr.
    """
    from ml_collections import config_flags

    from tinygen import config as config_lib

    original = config_lib.load(recipe)
    given = {overridden_key(override): override for override in overrides}  # the last of each: repeated tuples would be concatenated
    # A new name selects another row of keys, so apply it before parsing the other overrides.
    rows = {section: given.get(f"{section}.name", "").partition("=") for section in TABLES}
    config = config_lib.change(original, {section: {"name": name} for section, (_, equals, name) in rows.items() if equals})
    keys = config_lib.flatten(config)
    if wrong := [key for key in given if key not in keys]:
        raise unknown("config key", wrong[0], keys)
    typed = flags.FlagValues()
    own = config_lib.change(config, {})  # a copy, since the flags modify it
    config_flags.DEFINE_config_dict("config", own, flag_values=typed, sys_argv=[*given.values()])
    typed(["tinygen", *given.values()])
    config = config_lib.change(config, typed.config.to_dict())
    config_lib.check(config)
    for section, values in config_lib.lost(original, config).items():
        pairs = {key: pair for key, pair in values.items() if f"{section}.{key}" not in given}
        dropped = [f"{key}={old!r}" + ("" if new is None else f" (now {new!r})") for key, (old, new) in pairs.items()]
        if dropped:
            change = f"config.{section}.name={config[section].name} in place of {original[section].name}"
            say(f"tinygen: {change} drops values of the recipe: {', '.join(dropped)}", error=True)
    return config, config_lib.difference(original, config)


def overridden_key(override: str) -> str:
    """
    >>> overridden_key("--config.optim.lr=1e-3")
    'optim.lr'
    """
    return OVERRIDE.findall(override)[0]


def split_overrides(arguments: list[str]) -> tuple[list[str], list[str]]:
    """(overrides `--config.a.b=v`, the other arguments); `--config.a.b v` becomes `--config.a.b=v`."""
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


def _prepare_process() -> None:
    from tinygen.system.malloc import retain_freed_memory

    retain_freed_memory()
    flags.FLAGS.mark_as_parsed()  # otherwise absl's logging warns that flags are not parsed
    for name, value in dict(TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0", GRPC_VERBOSITY="ERROR").items():
        os.environ.setdefault(name, value)  # silences the startup messages of TensorFlow and its dependencies


def _flag_message(error: flags.Error) -> str:
    said = str(error)
    for pattern, plain in PLAIN.items():
        said = re.sub(pattern, plain, said)
    return " ".join(said.removeprefix("flag ").split())


def _refuse(message: str) -> int:
    say(f"tinygen: {message}", error=True)
    return 2


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"tinygen {__version__}: trains tiny generative models from one config file.", "", "Commands:"]
    lines += [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    lines += ["", "'tinygen help COMMAND' shows a command's flags. To get started: tinygen train --config=dit_pixel_faces"]
    return "\n".join(lines)


def _manual(name: str, command: Command, values: flags.FlagValues) -> str:
    lines = [f"tinygen {name}: {command.summary}", "", f"  {command.usage}", "", "Flags:"]
    for flag_name in values:
        flag = values[flag_name]
        value = ",".join(flag.default) if isinstance(flag.default, list) else str(flag.default).lower()
        default = "" if flag.default in (None, "", []) else f" (default: {value})"
        text = flag.help.partition(";\n")[0]  # absl adds a line for repeatable flags
        lines.append(f"  --{flag_name}: {text}{default}")
        if flag_name == "config":
            lines.append("  --config.KEY=VALUE: Override a key of the recipe; see 'tinygen keys', or 'tinygen keys optim' for a section.")
    return "\n".join(lines)
