"""Shell completion. The shell's script calls `tinygen __complete WORD ...` for completions of the last word; nothing heavy is imported.

absl's flags have no completion, and libraries for it (argcomplete, shtab) support argparse only.
"""

import itertools
from collections.abc import Iterable, Sequence

from absl import flags

from tinygen.cli.commands import COMMANDS, Command
from tinygen.cli.flags import defined
from tinygen.cli.key_listing import groups
from tinygen.config import recipes
from tinygen.config.key import Key
from tinygen.errors import UserError
from tinygen.system.terminal import say

HIDDEN = "__complete"
RECIPES = ("config", "copy", "name")  # flags whose value is a recipe
BASH = r"""# bash 4.3 and newer
_tinygen() {
  local words word breaks=
  read -ra words <<< "${COMP_LINE:0:COMP_POINT}|"  # the bar keeps an empty last word
  word=${words[-1]%|}
  words[-1]=$word
  mapfile -t COMPREPLY < <("${words[0]/#\~/$HOME}" __complete "${words[@]:1}" 2> /dev/null)
  # Readline replaces only what follows the last of its word breaks.
  [[ $COMP_WORDBREAKS == *=* ]] && breaks+="="
  [[ $COMP_WORDBREAKS == *:* ]] && breaks+=":"
  [[ $breaks ]] && COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*[$breaks]}"}"}")
  [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=.:] ]] && compopt -o nospace
  return 0
}
complete -o default -F _tinygen tinygen  # files, where tinygen knows nothing"""
ZSH = r"""#compdef tinygen
_tinygen() {
  local -a found
  found=("${(@f)$(${~words[1]} __complete "${(@)words[2,CURRENT]}" 2> /dev/null)}")
  [[ -n $found[1] ]] || { compset -P '*='; _files; return }
  compadd -Q -S '' -- ${(M)found:#*[=.:]}
  compadd -Q -- ${found:#*[=.:]}
}
compdef _tinygen tinygen"""
FISH = r"""function __tinygen_complete
    set -l words (commandline -opc) (commandline -ct)
    $words[1] __complete $words[2..-1] 2> /dev/null
end
complete -c tinygen -a '(__tinygen_complete)'"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def main(shell: str) -> int:
    say(SCRIPTS[shell])
    return 0


def answer(words: Sequence[str]) -> int:
    """Prints the candidates, one per line."""
    for candidate in candidates(words):
        say(candidate)
    return 0


def candidates(words: Sequence[str]) -> list[str]:
    """Completions of the last of the words after `tinygen`. A completion that ends with "=", "." or ":" continues."""
    *before, word = words or [""]
    if not before:
        found: Iterable[str] = [*COMMANDS, "help", "--help", "--version"]
    elif before[0] == "help":
        found = COMMANDS
    else:
        found = _arguments(COMMANDS[before[0]], before[-1], word) if before[0] in COMMANDS else []
    return [each for each in found if each.startswith(word)]


def _arguments(command: Command, before: str, word: str) -> list[str]:
    """before: the preceding word, possibly a flag whose value `word` is"""
    values = defined(command.declared)
    name, equals, value = word.partition("=")
    if equals:
        return [f"{name}={each}" for each in _values(values, name.lstrip("-"), value)]
    waiting = before.lstrip("-") if before.startswith("-") else ""
    if waiting in values and not values[waiting].boolean:
        return _values(values, waiting, word)
    if "config" in values and word.startswith("--config."):
        found = _level((f"--config.{key}" for key in _keys()), word)
        return [each if each.endswith(".") else f"{each}=" for each in found]
    if word.startswith("-") or not command.bare:
        given = [f"--{name}" if values[name].boolean else f"--{name}=" for name in values]
        return given + ["--config."] * ("config" in values)
    return _values(values, command.bare, word)


def _values(values: flags.FlagValues, name: str, typed: str) -> list[str]:
    """The known values of a flag or of an override `config.KEY`."""
    if name in values and name in RECIPES:
        return _recipes(typed)
    if name in values and name == "prefix":
        return _level((each for group in groups() for key in group.keys for each in group.spellings(key)), typed)
    if name in values:
        return list(getattr(values[name].parser, "enum_values", ()))
    keys = _keys().get(name.removeprefix("config."), []) if "config" in values else []
    choices = [("true", "false") if isinstance(key.default, bool) else key.choices for key in keys]
    return [*dict.fromkeys(itertools.chain(*choices))]


def _recipes(typed: str) -> list[str]:
    """Recipes, and after a recipe its variants, which can be combined: "dit_faces_80m:deep+smoke"."""
    name, colon, variants = typed.partition(":")
    near = [each for each in recipes.names() if each.startswith(name)]
    if not colon and len(near) != 1:
        return near
    try:
        known = recipes.facts(recipes.located(name if colon else near[0])[0]).variants
    except UserError:
        return []
    done, plus, _ = variants.rpartition("+")
    added = [f"{name if colon else near[0]}:{done}{plus}{each}" for each in known if each not in done.split("+")]
    return added if colon else [*near, *added]


def _keys() -> dict[str, list[Key]]:
    """The keys of all rows by dotted name, since a recipe's rows are known only after running it."""
    found: dict[str, list[Key]] = {}
    for group in groups():
        for name, key in group.keys.items():
            found.setdefault(name, []).append(key)
    return found


def _level(names: Iterable[str], typed: str) -> list[str]:
    """The matching names, cut after the next dot.

    >>> _level(["seed", "optim.lr", "optim.b1"], "o")
    ['optim.']
    """
    found: dict[str, None] = {}
    for name in names:
        if name.startswith(typed):
            head, dot, _ = name[len(typed) :].partition(".")
            found[typed + head + dot] = None
    return [*found]
