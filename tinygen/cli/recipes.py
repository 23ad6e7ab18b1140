"""`tinygen recipes`: lists recipes, describes one, or copies one for editing."""

import shutil
from pathlib import Path

from tinygen.config.recipes import existing, facts, folder, names
from tinygen.errors import UserError
from tinygen.system.terminal import say


def main(name: str | None, *, copy: str | None, out: str | None) -> int:
    """Lists all recipes, describes the recipe `name`, or copies the recipe `copy` to the file `out`."""
    if copy and name:
        raise UserError(f"tinygen recipes {name} describes a recipe and --copy={copy} copies one: choose one of the two")
    if copy:
        say(_copied(copy, out))
    elif out:
        raise UserError("--out needs --copy=NAME, whose output file it is")
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
    lines += ["", "tinygen train --config=NAME[:VARIANT[+VARIANT ...]]     train one, from any folder"]
    lines += ["tinygen recipes NAME                                    describe one: size, time, results"]
    lines += ["tinygen recipes --copy=NAME                             copy one to NAME.py here, for editing"]
    return "\n".join(lines)


def _copied(spec: str, out: str | None) -> str:
    path, variant = existing(spec)
    target = Path(out or Path(path).name)
    if ":" in target.name:
        raise UserError(f"--out={out}: a colon introduces a variant; choose a name without one")
    try:
        with open(path, "rb") as source, open(target, "xb") as stream:
            shutil.copyfileobj(source, stream)
    except FileNotFoundError as error:
        raise UserError(f"{target}: no such folder") from error
    except FileExistsError as error:
        raise UserError(f"{target} already exists and was not changed: choose another file with --out=FILE.py") from error
    return f"wrote {target}; train it with: tinygen train --config={target}" + (f":{variant}" if variant else "")
