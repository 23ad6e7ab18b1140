"""`tinygen report`: a self-contained HTML page of a run, or of several side by side."""

import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from etils import epath

from tinygen.errors import UserError, in_line
from tinygen.media import element_of
from tinygen.report import charts, page
from tinygen.report.pictures import BUDGET, pack, texts
from tinygen.report.run import Run, read
from tinygen.system.terminal import say
from tinygen.workdir.files import File, folder


def main(workdirs: Sequence[str], *, out: str | None) -> int:
    """Writes the report of the runs in `workdirs` to `out` (default: `default_target`) and prints its path and any problems."""
    runs = [read(path, name) for path, name in zip(workdirs, names(workdirs), strict=True)]
    target = epath.Path(out) if out else default_target(runs)
    if target.is_dir():
        raise UserError(f"--out={target} is a folder: give the name of a file, for example --out={target / 'report.html'}")
    if not target.parent.exists():
        raise UserError(f"--out={target}: there is no folder {target.parent}")
    text, notes = build(runs, target, time.time())
    content = text.encode("utf-8", "replace")  # a file may contain half a character
    try:
        folder(target.parent).write(target.name, content)  # atomically: a browser never reads a mix of two versions
    except OSError as error:
        raise UserError(f"{target} cannot be written ({error.strerror}): give another --out") from error
    say(f"{target}  {len(content) / 1e6:.1f} MB")
    for run in runs:
        for problem in run.problems:
            say(f"  {in_line(f'{run.name}: {problem}')}")
    for note in notes:
        say(f"  {note}")
    return 0


def default_target(runs: Sequence[Run]) -> epath.Path:
    """report.html in the workdir; for several runs, next to the first workdir, so that it does not replace a run's own report."""
    first = runs[0].folder.path()
    if len(runs) == 1:
        return first / "report.html"
    names = [re.sub(r"[^\w.+-]+", "-", run.name)[:40] for run in runs]
    return first.parent / f"report-{'-'.join(names[:4])}{f'-and-{len(names) - 4}-more' * (len(names) > 4)}.html"


def build(runs: Sequence[Run], target: epath.Path, now: float, budget: int = BUDGET) -> tuple[str, list[str]]:
    """(the page, notes about all runs). Adds problems with pictures to each run's problems."""
    groups = [[File(run.folder, "data.png")] for run in runs if run.folder.type_of("data.png")]
    previews = [list(grids.values()) for run in runs for grids in run.grids.values()]
    album = pack(groups + [[path for path in group if element_of(path.name) == "img"] for group in previews], budget)
    words, unread = texts([path for group in previews for path in group if element_of(path.name) == "pre"])
    for run in runs:
        damaged = {path: problem for path, problem in (album.problems | unread).items() if path.folder is run.folder}
        run.problems += [f"{path.name} cannot be shown: {problem}" for path, problem in damaged.items()]
    blobs = list(dict.fromkeys(each.data for each in album.pictures.values()))
    seen = {path: dict(blob=blobs.index(each.data), width=each.width, height=each.height) for path, each in album.pictures.items()}
    links = [relative(run.folder.path(), target) for run in runs]
    notes = [album.note] if album.note else []
    data = {
        "runs": [run.name for run in runs],
        "charts": charts.compose(runs),
        "remarks": charts.remarks(runs),
        "marks": marks(runs),
        "grids": grids(runs, links, seen | {path: {"text": each} for path, each in words.items()}),
        "examples": examples(runs, seen),
    }
    return page.render(runs, links, notes, data, blobs, now), notes


def grids(runs: Sequence[Run], links: Sequence[str | None], seen: Mapping[File, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """[{name, steps, runs: [{run, steps, pictures, captions}]}]: for every kind of preview, each run's previews by step and their prompts.

    seen: the page's content of each file, {"blob": its index, "width": ..., "height": ...} or {"text": ...}
    """
    made = []
    for name in dict.fromkeys(name for run in runs for name in run.grids):
        shown: list[dict[str, Any]] = []
        for index, (run, link) in enumerate(zip(runs, links, strict=True)):
            held = {step: path for step, path in sorted(run.grids.get(name, {}).items()) if path in seen}
            pictures = [{**seen[path], "file": None if link is None else f"{link}{quote(path.name)}"} for path in held.values()]
            if held:
                shown.append(dict(run=index, steps=list(held), pictures=pictures, captions=run.prompts if name == "samples" else []))
        if shown:
            made.append(dict(name=name, steps=sorted({step for each in shown for step in each["steps"]}), runs=shown))
    return made


def examples(runs: Sequence[Run], seen: Mapping[File, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each run's training examples; a single shared entry if all runs have the same."""
    made: list[dict[str, Any]] = []
    for index, run in enumerate(runs):
        if picture := seen.get(File(run.folder, "data.png")):
            made.append(dict(run=index, captions=captions(run), **picture))
    same = len(made) == len(runs) and len({(each["blob"], *each["captions"]) for each in made}) == 1
    return [made[0] | {"run": None}] if same else made


def captions(run: Run) -> list[str]:
    """The label and caption of each example, if any."""
    parts = [[str(example[key]) for key in ("label", "caption") if example.get(key) not in (None, "")] for example in run.examples]
    return [": ".join(each) for each in parts] if any(parts) else []


def marks(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The events of the runs by step, to mark in charts, except for starts at step 0 and ends."""
    kinds_at: dict[int, list[str]] = {}
    for run in runs:
        for event in run.events:
            step, kind = event.get("step"), str(event.get("event"))
            if isinstance(step, int) and step > 0 and kind != "finished" and kind not in kinds_at.setdefault(step, []):
                kinds_at[step].append(kind)
    return [dict(step=step, text=", ".join(kinds)) for step, kinds in sorted(kinds_at.items())]


def names(workdirs: Sequence[str]) -> list[str]:
    """The shortest unique suffix of each path."""
    parts = [epath.Path(path).absolute().parts for path in workdirs]

    def ending(own: tuple[str, ...]) -> str:
        ends = (own[-depth:] for depth in range(1, len(own) + 1))
        return "/".join(next(end for end in ends if all(each == own or each[-len(end) :] != end for each in parts)))

    return [ending(own) for own in parts]


def relative(folder: epath.Path, target: epath.Path) -> str | None:
    """The folder as a link relative to the page at `target`; None if impossible, as between a bucket and a disk."""
    if "://" in str(folder) or "://" in str(target):
        return None
    way = os.path.relpath(os.path.abspath(folder), os.path.abspath(target.parent))
    return "" if way == "." else quote(way, errors="surrogateescape") + "/"
