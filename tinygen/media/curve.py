"""Curves, plotted: what a regression learns, and scores over sampler settings."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from tinygen.media.image import Picture

FEW = 3  # curves, and names side by side in a legend
MARKED = 32  # curves of at most this many points show them: nothing was measured in between


@dataclasses.dataclass(frozen=True)
class Curve(Picture):
    """A plot of points [N, 1 + K]: x, then a column for each of the K named `curves`."""

    name: ClassVar[str] = "plot"

    curves: tuple[str, ...] = ()

    def first(self, value: Any, num: int) -> Any:
        """All points, since they are one item."""
        return value

    def overview(self, items: np.ndarray, columns: int | None = None) -> np.ndarray:
        """A uint8 picture [H, W, 3]."""
        return plot(items, self.curves)


def plot(points: np.ndarray, names: Sequence[str], x_label: str = "", y_label: str = "", *, log_x: bool = False) -> np.ndarray:
    """Curves as a uint8 picture [H, 600, 3]: 400 pixels high, or more for a long legend.

    points: [N, 1 + K], x and a y for each of the K names, joined in this order
    log_x: the x axis is logarithmic, with a tick per point
    """
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    few, columns = len(names) <= FEW, min(len(names), FEW)
    rows = math.ceil(len(names) / columns) if names else 0
    figure = Figure(figsize=(6, 4 + 0.2 * max(0, rows - 1)), dpi=100, layout="constrained")
    canvas, axes = FigureCanvasAgg(figure), figure.subplots()
    x, *curves = np.asarray(points, np.float64).T
    for index, (name, y) in enumerate(zip(names, curves, strict=True)):
        # A few curves get thinner one by one, so that all show where they coincide. Many are coloured in order.
        colour = f"C{index}" if few else colormaps["viridis"](0.9 * index / (len(names) - 1))
        width = 2 * (len(names) - index) if few else 1.5
        axes.plot(x, y, label=name, color=colour, linewidth=width, marker="o" if len(x) <= MARKED else None)
    axes.set(xlabel=x_label, ylabel=y_label)
    if log_x:
        axes.set_xscale("log")
        axes.set_xticks(x, [f"{each:g}" for each in x])
        axes.set_xticks([], minor=True)
    figure.legend(loc="outside upper center", ncols=columns)  # outside, so that it hides no curve
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
