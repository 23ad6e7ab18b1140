"""The charts of a report, and their points, downsampled without losing extremes."""

import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from tinygen.report.run import Run, Series, finite

POINTS = 2000  # approximate points per curve
BIN = re.compile(r"(?P<name>.+)_t(?P<bin>\d+)")
RAW, AVERAGED = "eval_", "eval_ema_"  # prefixes of held-out metrics of raw and averaged weights
OPTIMISATION = {  # name: (title, whether it is noisy, whether a logarithmic axis makes sense)
    "lr": ("Learning rate", False, False),
    "grad_norm": ("Gradient norm", True, True),
    "param_norm": ("Parameter norm", False, False),
    "update_ratio": ("Update / parameter norm", True, True),
}
SPEED = (  # name, title, factor (a setting or a manifest entry), format, whether it is noisy
    ("steps_per_s", "Steps per second", "", "number", True),
    ("steps_per_s", "Examples per second", "batch_size", "si", True),
    ("steps_per_s", "Arithmetic, FLOP/s", "flops_per_step", "si", True),
    ("data_wait", "Time waiting for data", "", "percent", True),
    ("memory_gib", "Memory, GiB", "", "number", False),
)


def thin(series: Series, limit: int = POINTS) -> tuple[Series, Series]:
    """(the curve, its average), both of at most `limit` points.

    A long curve keeps the minimum and maximum of each bucket, so that no spike is lost. The average has each bucket's mean, since
    smoothing the extremes would show their midpoint. A short curve is its own average.
    """
    steps, values = series.steps, series.values
    if len(steps) <= limit:
        return series, series
    edges = np.linspace(1, len(steps) - 1, limit // 2).astype(int)
    kept, middles, means = [0], [steps[0]], [values[0]]
    for a, b in itertools.pairwise(edges):
        part = values[a:b]
        some = bool(np.isfinite(part).any())
        kept += sorted({a + int(np.nanargmin(part)), a + int(np.nanargmax(part))}) if some else [a]
        middles.append(steps[a:b].mean())
        means.append(np.nanmean(part) if some else np.nan)
    kept.append(len(steps) - 1)
    return Series(steps[kept], values[kept]), Series(np.array(middles), np.array(means))


class Charts:
    """Composes charts of metrics, using each metric once, so that unused ones are known at the end.

    A chart: title, section, format (of its values: number, si or percent), log (whether its axis can be logarithmic), lines.
    A line: run (index), label, tone (colour, where there is one run only), dash (where there are several), smooth (its average is drawn),
    faint (its points are drawn below their average), x, y, and mean_x, mean_y where the average has other points.
    """

    def __init__(self, runs: Sequence[Run]):
        self.runs = runs
        self.made: list[dict[str, Any]] = []
        self.copies = _copies(runs)
        names = list(dict.fromkeys(name for run in runs for name in run.series))
        always = {*OPTIMISATION, *(name for name, *_ in SPEED)}  # shown, even if constant, and so is any loss
        others = [name for name in names if name not in always and "loss" not in name]
        self.constants = {name: value for name in others if (value := _constant(runs, name)) is not None}
        self.left = [name for name in names if name not in self.copies and name not in self.constants]

    def add(self, section: str, title: str, lines: Sequence[dict[str, Any]], *, format: str = "number", log: bool = False) -> None:
        if lines:
            self.made.append(dict(section=section, title=title, format=format, log=log, lines=lines))

    def lines(self, name: str, label: str = "", factor: str = "", **style: Any) -> list[dict[str, Any]]:
        """The line of a metric for each run that has it, times a factor from the run's settings or manifest."""
        drawn = []
        for index, run in enumerate(self.runs):
            scale = finite({**run.settings, **run.manifest}.get(factor)) if factor else 1.0
            if name in run.series and scale is not None:
                drawn.append(_line(index, Series(run.series[name].steps, run.series[name].values * scale), label or name, **style))
        return drawn

    def take(self, name: str, label: str = "", **style: Any) -> list[dict[str, Any]]:
        """The lines of a metric, once; [] if it has been taken."""
        if name not in self.left:
            return []
        self.left.remove(name)
        return self.lines(name, label, **style)

    def held_out(self, name: str) -> list[dict[str, Any]]:
        """The lines of a held-out metric, once."""
        averaged = self.take(AVERAGED + name, "held out, averaged weights", tone=2)
        return averaged + self.take(RAW + name, "held out, raw weights", tone=1, dash="dash")


def compose(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Charts of all metrics of the runs."""
    charts = Charts(runs)
    _learning(charts)
    for name, (title, noisy, log) in OPTIMISATION.items():
        charts.add("Optimisation", title, charts.take(name, smooth=noisy, faint=noisy), log=log)
    for name, title, factor, form, noisy in SPEED:
        charts.take(name)
        charts.add("Speed", title, charts.lines(name, factor=factor, smooth=noisy, faint=noisy), format=form)
    while charts.left:
        name = charts.left[0]
        name = name.removeprefix(AVERAGED if name.startswith(AVERAGED) else RAW)
        lines = charts.take(name, "training", smooth=True, faint=True) + charts.held_out(name)
        charts.add("Other numbers", name, lines, log=True)
    return charts.made


def remarks(runs: Sequence[Run]) -> list[str]:
    """Remarks about metrics that are not drawn."""
    charts = Charts(runs)
    said = [f"{name} equals {other}" for name, other in sorted(charts.copies.items())]
    return said + [f"{name} stayed {value:g}" for name, value in sorted(charts.constants.items())]


def _learning(charts: Charts) -> None:
    for name, title in (("loss", "Loss"), ("raw_loss", "Loss before weighting")):
        charts.add("Learning", title, charts.take(name, "training", smooth=True, faint=True), log=True)
        if held_out := charts.held_out(name):
            training = charts.lines(name, "training, smoothed", smooth=True, dash="dot")
            charts.add("Learning", f"{title}: training and held out", training + held_out, log=True)
    matches = [match for name in charts.left if (match := BIN.fullmatch(name)) and not name.startswith(RAW)]
    for stem in dict.fromkeys(match["name"] for match in matches):
        bins = {int(match["bin"]): match[0] for match in matches if match["name"] == stem}
        _by_time(charts, "Loss" if charts.copies.get(stem, stem) == "loss" else stem, bins)


def _by_time(charts: Charts, title: str, bins: dict[int, str]) -> None:
    """A metric by intervals of t: one chart for a single run; one chart per interval for several, whose colours denote runs."""
    count = max(bins) + 1
    places = [(bins[index], f"t {index / count:.3g} – {(index + 1) / count:.3g}") for index in sorted(bins)]
    if len(charts.runs) > 1:
        for name, place in places:
            lines = charts.take(name, "training, smoothed", smooth=True, dash="dot") + charts.held_out(name)
            charts.add("Learning by time t", f"{title}, {place}", lines, log=True)
        return
    for prefix, what, smooth in (
        ("", "training, smoothed", True),
        (AVERAGED, "held out, averaged weights", False),
        (RAW, "held out, raw weights", False),
    ):
        taken = (charts.take(prefix + name, place, tone=tone, smooth=smooth) for tone, (name, place) in enumerate(places))
        charts.add("Learning by time t", f"{title}, {what}", list(itertools.chain(*taken)), log=True)


def _line(
    run: int, series: Series, label: str, *, tone: int = 0, dash: str = "solid", smooth: bool = False, faint: bool = False
) -> dict[str, Any]:
    curve, average = thin(series)
    line = dict(run=run, label=label, tone=tone, dash=dash, smooth=smooth, faint=faint, x=curve.steps.tolist(), y=_numbers(curve.values))
    if smooth and average is not curve:
        line |= dict(mean_x=np.round(average.steps).astype(int).tolist(), mean_y=_numbers(average.values))
    return line


def _numbers(values: np.ndarray) -> list[float | None]:
    """Values for JSON: six digits, None for non-finite values."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values]


def _copies(runs: Sequence[Run]) -> dict[str, str]:
    """{name: another metric with equal values in every run}, such as the loss before weighting if there is no weighting."""
    copies = {}
    for prefix in ("", RAW, AVERAGED):
        name, other = f"{prefix}raw_loss", f"{prefix}loss"
        pairs = [(run.series[name], run.series[other]) for run in runs if name in run.series and other in run.series]
        alone = any(name in run.series and other not in run.series for run in runs)
        same = all(np.array_equal(a.steps, b.steps) and np.allclose(a.values, b.values, 1e-6, 0, True) for a, b in pairs)
        if pairs and same and not alone:
            copies[name] = other
    return copies


def _constant(runs: Sequence[Run], name: str) -> float | None:
    """The value of a metric that is constant throughout all runs; None if it varies, or was logged only once."""
    values = np.concatenate([run.series[name].values for run in runs if name in run.series])
    return float(values[0]) if len(values) > 1 and (values == values[0]).all() else None
