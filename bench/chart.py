"""The picture of a run: one bar for each judged figure, drawn as multiples of its bar.

Figures have different units and some are better small, so what is drawn is the distance from the bound on a log scale:
right of the line is better than the bar asks for. The shapes are laid out once and drawn as SVG, which needs
nothing, and as PNG where matplotlib is installed.
"""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from report import Result, figure, verdict
from row import Ask, Reading

WIDTH, ROW_HEIGHT, TOP, BOTTOM = 940, 26, 54, 44
LABEL_WIDTH, FIGURE_WIDTH = 270, 270
LEGEND = (
    "log scale; right of 1 × is better than the bar asks for; the tick is the goal; "
    "green: goal met; yellow: bar met, or no bar; red: bar not met; grey: unsure"
)
LEAST, MOST = 0.25, 8.0  # the ends of the log scale; what lies beyond is drawn up to the end
GREEN, AMBER, RED, GREY, INK, FAINT = "#2e8b57", "#d9a441", "#c0392b", "#9aa0a6", "#202124", "#dadce0"
COLOURS = {"goal met": GREEN, "bar met": AMBER, "below the goal": AMBER, "UNSURE: CROWDED": GREY, "BELOW THE BAR": RED}


@dataclass(frozen=True)
class Box:
    x: float
    y: float
    width: float
    height: float
    colour: str


@dataclass(frozen=True)
class Line:
    x1: float
    y1: float
    x2: float
    y2: float
    colour: str
    dashed: bool = False


@dataclass(frozen=True)
class Text:
    x: float
    y: float
    words: str
    size: int = 12
    anchor: str = "start"  # or "middle", "end"


Shape = Box | Line | Text


def write(results: list[Result], target: Path) -> list[Path]:
    """Draw the charts. Return the files written."""
    judged = [
        (result.row.id, ask, reading)
        for result in results
        for ask, reading in result.answers()
        if (ask.bar or ask.goal) and reading.value is not None
    ]
    if not judged:
        return []
    shapes, height = lay_out(judged)
    svg = target.with_suffix(".svg")
    svg.write_text(as_svg(shapes, height))
    png = target.with_suffix(".png")
    return [svg, png] if write_png(shapes, height, png) else [svg]


def lay_out(judged: list[tuple[str, Ask, Reading]]) -> tuple[list[Shape], int]:
    height = TOP + ROW_HEIGHT * len(judged) + BOTTOM
    shapes: list[Shape] = [
        Text(12, 22, "How far each figure is from its bar", 15),
        Text(
            12,
            40,
            LEGEND,
            11,
        ),
    ]
    shapes += _axis(height)
    for index, (row_id, ask, reading) in enumerate(judged):
        shapes += _bar(TOP + ROW_HEIGHT * index, row_id, ask, reading)
    return shapes, height


def _x(headroom: float) -> float:
    inside = min(max(headroom, LEAST), MOST)
    span = WIDTH - LABEL_WIDTH - FIGURE_WIDTH
    return LABEL_WIDTH + span * math.log(inside / LEAST) / math.log(MOST / LEAST)


def _axis(height: int) -> list[Shape]:
    bottom, shapes = height - BOTTOM + 4, list[Shape]()
    for mark in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0):
        shapes.append(Line(_x(mark), TOP, _x(mark), bottom, INK if mark == 1 else FAINT))
        shapes.append(Text(_x(mark), bottom + 16, f"{mark:g} ×", 11, "middle"))
    return shapes


def _bar(y: float, row_id: str, ask: Ask, reading: Reading) -> list[Shape]:
    bound = ask.bar or ask.goal
    assert bound is not None
    assert reading.value is not None
    start, end = _x(1.0), _x(bound.headroom(reading.value))
    words = f"{figure(ask, reading)}  ({'bar' if ask.bar else 'goal'} {bound})"
    colour = COLOURS.get(verdict(ask, reading), GREY)
    shapes: list[Shape] = [
        Text(LABEL_WIDTH - 10, y + 17, f"{row_id}  {ask.key}", 12, "end"),
        Box(min(start, end), y + 5, max(abs(end - start), 1.5), ROW_HEIGHT - 10, colour),
        Text(WIDTH - FIGURE_WIDTH + 12, y + 17, words),
    ]
    if ask.goal:
        goal = _x(bound.headroom(ask.goal.value))
        shapes.append(Line(goal, y + 2, goal, y + ROW_HEIGHT - 2, INK, dashed=True))
    return shapes


def as_svg(shapes: list[Shape], height: int) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">'
    background = f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
    return "\n".join([head, background, *map(_svg_shape, shapes), "</svg>"]) + "\n"


def _svg_shape(shape: Shape) -> str:
    match shape:
        case Box(x, y, width, height, colour):
            return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'
        case Line(x1, y1, x2, y2, colour, dashed):
            dash = ' stroke-dasharray="3 2"' if dashed else ""
            return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{dash}/>'
        case Text(x, y, words, size, anchor):
            place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"'
            return f'<text {place} fill="{INK}">{escape(words)}</text>'


def write_png(shapes: list[Shape], height: int, path: Path) -> bool:
    """Draw the same shapes with matplotlib. Return False if it is not installed."""
    try:
        agg: Any = importlib.import_module("matplotlib.backends.backend_agg")
        figures: Any = importlib.import_module("matplotlib.figure")
        patches: Any = importlib.import_module("matplotlib.patches")
    except ImportError:
        return False
    picture = figures.Figure(figsize=(WIDTH / 100, height / 100), dpi=150)
    agg.FigureCanvasAgg(picture)
    axes = picture.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(height, 0))
    axes.axis("off")
    for shape in shapes:
        match shape:
            case Box(x, y, width, tall, colour):
                axes.add_patch(patches.Rectangle((x, y), width, tall, color=colour))
            case Line(x1, y1, x2, y2, colour, dashed):
                axes.plot([x1, x2], [y1, y2], color=colour, linewidth=0.8, linestyle=":" if dashed else "-")
            case Text(x, y, words, size, anchor):
                side = {"start": "left", "middle": "center", "end": "right"}[anchor]
                axes.text(x, y, words, fontsize=size * 0.68, ha=side, va="baseline", color=INK)
    picture.savefig(path)
    return True
