"""`tinygen recipes`: lists recipes, shows one, or copies one to be edited."""

import shutil
from pathlib import Path

from tinygen.config.recipes import existing, facts, folder, names
from tinygen.errors import UserError
from tinygen.system.terminal import say


def main(name: str | None, *, copy: str | None, out: str | None) -> int:
    """Lists all recipes, shows what the recipe `name` says of itself, or copies the recipe `copy` to the file `out`."""
    if copy and name:
        raise UserError(f"tinygen recipes {name} shows a recipe, and --copy={copy} writes one: ask for one of the two")
    if copy:
        say(_copied(copy, out))
    elif out:
        raise UserError("--out is the file that --copy=NAME writes: give that too")
    elif name:
        shown = facts(existing(name)[0])
        say(f"{shown.text}\n\nVariants: {', '.join(shown.variants) or 'none'}")
    else:
        say(_listing())
    return 0


def _listing() -> str:
    found = {name: facts(folder() / f"{name}.py") for name in names()}
    heads, times = (max(map(len, each)) for each in (found, [every.time for every in found.values()]))
    lines = [f"{'recipe':<{heads}}  {'two CPU cores':<{times}}  data -> what it draws  :variants"]
    for name, each in found.items():
        variants = " ".join(f":{variant}" for variant in each.variants)
        lines.append(f"{name:<{heads}}  {each.time:<{times}}  {each.data} -> {each.draws}  {variants}")
    lines += ["", "tinygen train --config=NAME[:VARIANT[+VARIANT ...]]     trains one, from any folder"]
    lines += ["tinygen recipes NAME                                    what one says of itself: size, time, figures"]
    lines += ["tinygen recipes --copy=NAME                             writes NAME.py here, to be edited"]
    return "\n".join(lines)


def _copied(spec: str, out: str | None) -> str:
    path, variant = existing(spec)
    target = Path(out or Path(path).name)
    if ":" in target.name:
        raise UserError(f"--out={out}: what follows a colon is read as a variant; give a name without one")
    try:
        with open(path, "rb") as source, open(target, "xb") as stream:
            shutil.copyfileobj(source, stream)
    except FileNotFoundError as error:
        raise UserError(f"{target}: there is no such folder") from error
    except FileExistsError as error:
        raise UserError(f"{target} exists already, and is left as it is: name another file with --out=FILE.py") from error
    return f"{target} is yours to edit: tinygen train --config={target}" + (f":{variant}" if variant else "")
