"""Recipes by name: the files of `configs/`, installed as `tinygen/configs/`.

Each docstring has three lines that `tinygen recipes` shows, parsed without running the recipe:

    Data: the training data
    Draws: what samples show
    Time: training time on two CPU cores, or the hardware it needs
"""

import ast
import contextlib
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tinygen.errors import UserError, unknown

LIST = "'tinygen recipes' lists them"


class Facts(NamedTuple):
    """A recipe's description. `data`, `draws` and `time` are "" if its docstring lacks that line.

    text: the whole docstring
    variants: the names passed to its `vary(...)`, in order
    """

    text: str
    data: str
    draws: str
    time: str
    variants: tuple[str, ...]


def folder() -> Path:
    """The folder of recipes: inside an installed package, or beside the package in a checkout."""
    package = Path(__file__).parents[1]
    packed = package / "configs"
    return packed if packed.is_dir() else package.parent / "configs"


def names() -> list[str]:
    return sorted(path.stem for path in folder().glob("*.py"))


def located(spec: str) -> tuple[str, str]:
    """(path, variant) of `NAME[:VARIANT]` or `PATH.py[:VARIANT]`; an existing file takes precedence over a recipe of that name.

    Raises UserError, with the nearest name, if there is neither.
    """
    given, _, variant = spec.partition(":")
    known = names()
    if Path(given).is_file():
        return given, variant
    if given in known:
        return str(folder() / f"{given}.py"), variant
    if (name := Path(given).name.removesuffix(".py")) in known:
        raise UserError(f"no config file {given!r} here; for tinygen's recipe of that name use --config={name}")
    if Path(given).suffix or "/" in given:
        raise UserError(f"no config file {given!r}: give the path of a Python file with get_config(), or a recipe's name ({LIST})")
    raise UserError(f"{unknown('recipe', given, known)}\n{LIST}; or give the path of a Python file with get_config()")


def facts(path: str | Path) -> Facts:
    """Parses a recipe without running it. Raises UserError for a file that is not Python."""
    try:
        tree = ast.parse(Path(path).read_bytes(), str(path))
    except (OSError, ValueError, SyntaxError) as error:
        raise UserError(f"{path} cannot be read as a Python file: {' '.join(str(error).split())}") from error
    text = ast.get_docstring(tree) or ""
    found = [re.search(rf"^{fact}: (.+)$", text, re.MULTILINE) for fact in ("Data", "Draws", "Time")]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "vary"]
    variants = tuple(keyword.arg for call in calls for keyword in call.keywords if keyword.arg)
    return Facts(text, *(match[1] if match else "" for match in found), variants=variants)


def existing(spec: str) -> tuple[str, str]:
    """Like `located`, and raises UserError for a variant that the recipe lacks."""
    path, variant = located(spec)
    known = facts(path).variants
    for each in filter(None, variant.split("+")):
        if each not in known:
            raise unknown("variant", each, known)
    return path, variant


def call(path: str, name: str, *arguments: Any, missing: str) -> Any:
    """The result of the function `name` of a recipe's Python file. Raises UserError, followed by `missing`, if it has none, and if the
    file or the function fails.
    """
    with _blaming(f"{path} is not a Python file that can be run"):
        function = runpy.run_path(path).get(name)
    if not callable(function):
        raise UserError(f"{path} has no function {name}{missing}")
    with _blaming(f"{name}({', '.join(map(repr, arguments))}) in {path} fails"):
        return function(*arguments)


@contextlib.contextmanager
def _blaming(what: str) -> Iterator[None]:
    """Turns any error inside the block into a UserError that begins with `what`."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{what}: {type(error).__name__}: {' '.join(str(error).split())[:200]}") from error
