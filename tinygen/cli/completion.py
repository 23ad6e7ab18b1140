"""Shell completion. A script asks `tinygen __complete WORD ...` what the last word may become, which imports nothing heavy.

absl's flags have no completion of their own, and libraries for it (argcomplete, shtab) know argparse's parsers only.
"""

from collections.abc import Iterable, Sequence

from absl import flags

from tinygen.cli.commands import COMMANDS, Command
from tinygen.cli.key_listing import groups
from tinygen.config import recipes
from tinygen.config.schema import Key
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
    """Prints the candidates, one per line; nothing where there are none."""
    for candidate in candidates(words):
        say(candidate)
    return 0


def candidates(words: Sequence[str]) -> list[str]:
    """What the last of the words after `tinygen` may become. One that ends with "=", "." or ":" is to be continued."""
    *before, word = words or [""]
    if not before:
        found: Iterable[str] = [*COMMANDS, "help", "--help", "--version"]
    elif before[0] == "help":
        found = COMMANDS
    else:
        found = _arguments(COMMANDS[before[0]], before[-1], word) if before[0] in COMMANDS else []
    return [each for each in found if each.startswith(word)]


def _arguments(command: Command, before: str, word: str) -> list[str]:
    """before: the word in front of it, which may be a flag that waits for its value"""
    values = flags.FlagValues()
    command.define(values)
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
    """What a flag, or an override `config.KEY`, may be."""
    if name in values and name in RECIPES:
        return _recipes(typed)
    if name in values and name == "prefix":
        return _level((each for group in groups() for key in group.keys for each in group.spellings(key)), typed)
    if name in values:
        return list(getattr(values[name].parser, "enum_values", ()))
    keys = _keys().get(name.removeprefix("config."), []) if "config" in values else []
    return [*dict.fromkeys(choice for key in keys for choice in _choices(key))]


def _choices(key: Key) -> Iterable[str]:
    return ("true", "false") if isinstance(key.default, bool) else key.choices


def _recipes(typed: str) -> list[str]:
    """Recipes, or where one is typed its variants, which add up: "dit_faces_80m:deep+smoke"."""
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
    """The keys of all rows by their dotted names: which rows a recipe has is known only when it is run."""
    found: dict[str, list[Key]] = {}
    for group in groups():
        for name, key in group.keys.items():
            found.setdefault(name, []).append(key)
    return found


def _level(names: Iterable[str], typed: str) -> list[str]:
    """Names as far as the next dot after what is typed.

    >>> _level(["seed", "optim.lr", "optim.b1"], "o")
    ['optim.']
    """
    found: dict[str, None] = {}
    for name in names:
        if name.startswith(typed):
            head, dot, _ = name[len(typed) :].partition(".")
            found[typed + head + dot] = None
    return [*found]
