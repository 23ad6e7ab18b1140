"""The page's HTML: tables and lists; its script draws charts and pictures. All text from a run's files is escaped."""

import html
import json
import shlex
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from tinygen.report.run import Run, ago, clock, finite

HELD = {  # labels for a manifest's memory_per_device
    "params": "parameters",
    "ema": "EMA",
    "opt_state": "optimizer",
    "argument": "a step's arguments",
    "output": "its results",
    "temporary": "its temporaries",
}
LOOKED_FOR = ("num", "labels", "sampler", "nfe", "guidance", "preset")  # in a score's protocol


def render(
    runs: Sequence[Run], links: Sequence[str | None], notes: Sequence[str], data: Mapping[str, Any], blobs: Sequence[str], now: float
) -> str:
    """The whole page. links: each workdir relative to the page, or None; blobs: data URIs, in the order of their indices in `data`."""
    parts = {
        "title": text(f"{', '.join(run.name for run in runs)} – tinygen report"),
        "style": asset("page.css"),
        "heading": text(" · ".join(run.name for run in runs)),
        "made": text(clock(now)),
        "runs": "".join(card(index, run, now) for index, run in enumerate(runs)),
        "notices": notices(runs, notes),
        "evaluations": evaluations(runs),
        "settings": settings(runs),
        "events": events(runs),
        "files": "".join(files(run, link) for run, link in zip(runs, links, strict=True)),
        "data": as_script(data),
        "plot": asset("plot.js"),
        "curves": asset("curves.js"),
        "script": asset("page.js"),
        "blobs": "".join(f'<script type="text/plain" id="picture-{index}">{blob}</script>\n' for index, blob in enumerate(blobs)),
    }
    pieces = asset("page.html").split("{{")
    return pieces[0] + "".join(parts[name] + rest for name, rest in (piece.split("}}", 1) for piece in pieces[1:]))


def asset(name: str) -> str:
    return resources.files("tinygen.report").joinpath(name).read_text("utf-8")


def text(value: Any) -> str:
    return html.escape(str(value))


def as_script(value: Any) -> str:
    """JSON that is safe inside a script element: it cannot end the element or start a comment."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def shown(value: Any) -> str:
    """A value of a config or an event in readable form."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return value or '""' if isinstance(value, str) else json.dumps(value, default=str)


def table(head: Sequence[str], rows: Sequence[str], label: str, attributes: str = "") -> str:
    """Rows of HTML under plain headings, in a scrolling box."""
    cells = "".join(f'<th scope="col">{text(each)}</th>' for each in head)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(label)}"><table {attributes}>'
        f"<thead><tr>{cells}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def card(index: int, run: Run, now: float) -> str:
    """A run's name, state, latest metrics and hardware."""
    state = run.status(now)
    rate, batch = run.recent("steps_per_s"), finite(run.settings.get("batch_size"))
    # A power weights examples by their own errors, so that only the loss before weighting is informative.
    name, what = ("raw_loss", ", before weighting") if "objective.power" in run.settings else ("loss", "")
    numbers = [
        (f"loss{what}, mean of the last 5 %", _figure(run.recent(name))),
        (f"held out{what}, averaged weights", _figure(run.last(f"eval_ema_{name}"))),
        (f"held out{what}, raw weights", _figure(run.last(f"eval_{name}"))),
        ("held out, velocity, averaged weights", _figure(run.last("eval_ema_velocity_loss"))),
        ("bits per byte, averaged weights", _figure(run.last("eval_ema_bits_per_byte"))),
        ("steps/s", _figure(rate)),
        ("examples/s", f"{rate * batch:,.0f}" if rate is not None and batch is not None else ""),
    ]
    tiles = "".join(f"<div><dt>{text(label)}</dt><dd>{text(value)}</dd></div>" for label, value in numbers if value)
    facts = "".join(f"<div><dt>{text(label)}</dt><dd>{text(value)}</dd></div>" for label, value in _facts(run, now) if value)
    return (
        f'<article class="run" style="--run: var(--series-{index % 8})"><h2><span class="chip"></span>{text(run.name)} '
        f'<span class="state {state.split()[0]}">{text(state)}</span></h2>'
        f'<dl class="tiles">{tiles}</dl><dl class="facts">{facts}</dl></article>'
    )


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _facts(run: Run, now: float) -> list[tuple[str, str]]:
    known, count = run.manifest, run.manifest.get("parameters")
    device = f"{known.get('device_count', 1)} × {known['device_kind']}" if "device_kind" in known else str(run.start.get("device", ""))
    model, objective, source = (run.settings.get(f"{part}.name", "?") for part in ("model", "objective", "data"))
    flops, rate = finite(known.get("flops_per_step")), run.recent("steps_per_s")
    arithmetic = f"{flops * rate / 1e12:.3g} TFLOP/s" if flops and rate else ""
    wait, memory = run.recent("data_wait"), run.last("memory_gib")
    mesh, held, versions = known.get("mesh"), known.get("memory_per_device"), known.get("versions")
    axes = " × ".join(f"{axis} {size}" for axis, size in mesh.items()) if isinstance(mesh, Mapping) else ""
    sizes = [(name, size) for name, each in held.items() if (size := finite(each))] if isinstance(held, Mapping) else []
    packages = versions.items() if isinstance(versions, Mapping) else ()
    return [
        ("recipe", str(run.start.get("recipe", ""))),
        ("model", f"{model} by {objective} on {source}" if run.settings else ""),
        ("parameters", f"{count:,}" if isinstance(count, int) else ""),
        ("device", device),
        ("mesh", axes),
        ("memory per device", ", ".join(f"{HELD.get(name, name)} {size / 2**20:,.4g} MiB" for name, size in sizes)),
        ("device use", "; ".join(filter(None, [arithmetic, f"{wait:.1%} waiting for data" if wait is not None else ""]))),
        ("memory", f"{memory:.2f} GiB" if memory is not None else ""),
        ("last line", f"{clock(run.last_written)}, {ago(now - run.last_written)}" if run.last_written else ""),
        ("versions", ", ".join(f"{name} {number}" for name, number in packages if number != "unknown")),
        ("revision", str(known.get("revision", ""))),
    ]


def notices(runs: Sequence[Run], notes: Sequence[str]) -> str:
    lines = [f"{run.name}: {problem}" if len(runs) > 1 else problem for run in runs for problem in run.problems] + list(notes)
    if not lines:
        return ""
    return f'<aside class="notices" aria-label="Notices"><ul>{"".join(f"<li>{text(line)}</li>" for line in lines)}</ul></aside>'


def evaluations(runs: Sequence[Run]) -> str:
    lines = [(run, in_short(line)) for run in runs for line in run.evaluations]
    if not lines:
        return "<p class=quiet>None yet: <code>tinygen eval --ckpt=…</code> and <code>tinygen eval-fid</code> add a line.</p>"
    names = list(dict.fromkeys(name for _, line in lines for name in line))
    named = len(runs) > 1
    rows = []
    for run, line in lines:
        cells = "".join(f"<td>{text(shown(line[name])) if name in line else ''}</td>" for name in names)
        rows.append(f"<tr>{_named(run) if named else ''}{cells}</tr>")
    return table([*(["run"] if named else []), *names], rows, "Evaluations")


def in_short(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of eval.jsonl with the protocol replaced by its most relevant fields."""
    protocol = line.get("protocol")
    looked_for = {name: protocol[name] for name in LOOKED_FOR if name in protocol} if isinstance(protocol, dict) else {}
    return {name: value for name, value in line.items() if name != "protocol"} | looked_for


def settings(runs: Sequence[Run]) -> str:
    """Every key with its value in each run. Rows that differ between runs or from a recipe are marked."""
    keys = sorted({key for run in runs for key in run.settings})
    if not keys:
        return "<p class=quiet>There is no config.json that can be read.</p>"
    rows = []
    for key in keys:
        values = [shown(run.settings[key]) if key in run.settings else None for run in runs]
        apart, cells = len(set(values)) > 1, ""
        changed = [key in run.changed for run in runs]
        for run, value, own in zip(runs, values, changed, strict=True):
            was = f' <span class="was">recipe: {text(shown(run.changed[key]))}</span>' if own else ""
            cells += f"<td{' class=changed' if own else ''}>{'–' if value is None else text(value)}{was}</td>"
        rows.append(f'<tr{" class=differs" if apart or any(changed) else ""}><th scope="row">{text(key)}</th>{cells}</tr>')
    return table(["key", *(run.name for run in runs)], rows, "Configuration", 'id="settings"')


def events(runs: Sequence[Run]) -> str:
    lines = [(run, event) for run in runs for event in run.events]
    lines.sort(key=lambda pair: str(pair[1].get("time", "")))
    if not lines:
        return "<p class=quiet>None are recorded.</p>"
    rows = []
    for run, event in lines:
        rest = {key: value for key, value in event.items() if key not in ("time", "step", "event")}
        said = "<br>".join(f"<span class=field>{text(key)}</span> {text(_sentence(value))}" for key, value in rest.items())
        when = text(str(event.get("time", "")).replace("T", " "))
        what = f"<td>{text(event.get('step', ''))}</td><td>{text(event.get('event', ''))}</td><td class=details>{said}</td>"
        rows.append(f"<tr><td class=when>{when}</td>{_named(run) if len(runs) > 1 else ''}{what}</tr>")
    return table(["time", *(["run"] if len(runs) > 1 else []), "step", "event", "details"], rows, "Events")


def _named(run: Run) -> str:
    return f"<td class=name>{text(run.name)}</td>"


def _sentence(value: Any) -> str:
    """Changes as `key: old → new`, anything else verbatim."""
    if not isinstance(value, Mapping):
        return shown(value)
    parts = []
    for key, each in value.items():
        pair = [each.get("from"), each.get("to")] if isinstance(each, Mapping) and {"from", "to"} <= each.keys() else each
        changed = isinstance(pair, list) and len(pair) == 2
        parts.append(f"{key}: {' → '.join(map(shown, pair)) if changed else shown(each)}")
    return ", ".join(parts) or "nothing"


def _there(run: Run, name: str) -> bool:
    try:
        return run.folder.type_of(name) in ("file", "folder")
    except OSError:
        return False


def files(run: Run, link: str | None) -> str:
    """Links to the files of the workdir, and commands to continue from it."""
    folder = str(run.folder)
    names = ("config.json", "manifest.json", "metrics.jsonl", "eval.jsonl", "events.jsonl", "codec/codec.json", "samples", "checkpoints")
    links = {name: text(name) if link is None else f'<a href="{text(link + name)}">{text(name)}</a>' for name in names}
    items = "".join(f"<li>{links[name]}</li>" for name in names if _there(run, name))
    unsampled = ("regression", "classification", "autoencoder")
    what = ["eval"] if run.settings.get("objective.name") in unsampled else ["sample", "eval"]
    commands = [f"tinygen {each} --ckpt={shlex.quote(folder)}" for each in what] if run.checkpoints else []
    commands.append(f"tensorboard --logdir={shlex.quote(folder)}")
    steps = f"<p>Checkpoints at steps {text(', '.join(f'{step:,}' for step in run.checkpoints))}.</p>" if run.checkpoints else ""
    return (
        f"<article><h3>{text(run.name)}</h3><p class=path>{text(folder)}</p><ul class=links>{items}</ul>{steps}"
        f"<pre>{text(chr(10).join(commands))}</pre></article>"
    )
