"""The figure of a comparison: ways of sampling by numbers of network evaluations, with scores below the samples."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tinygen.media import image

WIDTH, GAP = 1.9, 0.15  # inches: width of a cell, gap between cells
LEFT, TOP, LINE = 2.1, 0.8, 0.17  # inches: width of the row names, height of the title and of a line of scores
DPI = 150
GREY = "0.35"


class Cell(NamedTuple):
    """A cell.

    pictures: uint8 [N, H, W, C]
    caption: lines of text below
    reason: why there are no pictures, if there are none
    """

    pictures: np.ndarray | None = None
    caption: Sequence[str] = ()
    reason: str = ""


class Row(NamedTuple):
    """about: lines of text below the name; cells: one per column"""

    name: str
    about: Sequence[str]
    cells: Sequence[Cell]


def draw(path: Path, title: str, heads: Sequence[str], rows: Sequence[Row], across: int) -> None:
    """Writes a PNG file.

    heads: titles of the columns
    across: samples per row of a cell
    """
    sheets = [[None if cell.pictures is None else image.grid(cell.pictures, across) for cell in row.cells] for row in rows]
    height = max((WIDTH * sheet.shape[0] / sheet.shape[1] for row in sheets for sheet in row if sheet is not None), default=WIDTH)
    below = LINE * (1 + max((len(cell.caption) for row in rows for cell in row.cells), default=0)) + GAP
    total = (LEFT + len(heads) * (WIDTH + GAP), TOP + len(rows) * (height + below))
    figure = Figure(figsize=total, dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)

    def write(x: float, y: float, text: str, **style: Any) -> None:
        """Writes text at `x` inches from the left and `y` from the top."""
        figure.text(x / total[0], 1 - y / total[1], text, va="top", **style)

    write(GAP, GAP, title, fontsize=11)
    for column, head in enumerate(heads):
        write(LEFT + column * (WIDTH + GAP) + WIDTH / 2, TOP - 0.27, head, ha="center", fontsize=11, weight="bold")
    for number, (row, own) in enumerate(zip(rows, sheets, strict=True)):
        top = TOP + number * (height + below)
        name = textwrap.wrap(row.name, 20)
        write(GAP, top, "\n".join(name), fontsize=11, weight="bold")
        write(GAP, top + 0.21 * len(name), "\n".join(row.about), fontsize=8.5, color=GREY, linespacing=1.4)
        for column, (cell, sheet) in enumerate(zip(row.cells, own, strict=True)):
            left = LEFT + column * (WIDTH + GAP)
            axes = figure.add_axes((left / total[0], 1 - (top + height) / total[1], WIDTH / total[0], height / total[1]))
            axes.set(xticks=[], yticks=[])
            for side in axes.spines.values():
                side.set_visible(sheet is None)
                side.set_color("0.8")
            if sheet is None:
                reason = textwrap.fill(cell.reason, 24)
                axes.text(0.5, 0.5, reason, ha="center", va="center", fontsize=8.5, color=GREY, transform=axes.transAxes)
            else:
                axes.imshow(sheet.squeeze(), cmap="gray", vmin=0, vmax=255, aspect="auto")
            write(
                left + WIDTH / 2,
                top + height + 0.05,
                "\n".join(cell.caption),
                ha="center",
                fontsize=8.5,
                linespacing=1.25,
            )
    figure.savefig(path)
