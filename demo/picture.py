"""The picture of the demo: how two topics lived, and where every seq is in the end. SVG, which needs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, MARGIN, RIGHT = 1000, 70, 24
PANEL, STRIP, GAP = 210, 16, 62
HEADER = 112
INK, FAINT, GRID, PAPER = "#1f2933", "#6b7785", "#e4e8ec", "#ffffff"
HEAD, ARCHIVED, LIVE, LAKE, LOST, WAIT = "#1f2933", "#1b9e77", "#3b7dd8", "#8fd3bd", "#d64545", "#f2c14e"
CELLS = 64


@dataclass(frozen=True)
class Sample:
    """A topic at one moment."""

    at_s: float
    head: int
    earliest: int
    archived: int


@dataclass(frozen=True)
class Story:
    """What became of one topic."""

    topic: str
    head: int
    live: list[int]
    healed: list[int]
    gaps: list[tuple[int, int, str]]
    samples: list[Sample]
    waiting: list[tuple[float, float]]  # when its writer had to wait


def add_gap(gaps: list[tuple[int, int, str]], first: int, last: int, reason: str) -> None:
    """Puts another gap behind these; one that goes on where the last ended is the same loss, met in two steps."""
    if gaps and gaps[-1][1] + 1 == first and gaps[-1][2] == reason:
        first = gaps.pop()[0]
    gaps.append((first, last, reason))


def strip(story: Story, *, colour: bool) -> str:
    """The seqs from 1 to the head in one line of a terminal: live, in the lake, in a gap."""
    live_from = story.live[0] if story.live else story.head + 1
    cells = []
    for at in range(CELLS):
        seq = 1 + at * story.head // CELLS
        lost = any(first <= seq <= last for first, last, _ in story.gaps)
        mark, code = ("×", "31") if lost else ("█", "34") if seq >= live_from else ("▒", "32")
        cells.append(f"\x1b[{code}m{mark}\x1b[0m" if colour else mark)
    return "".join(cells) + "  ▒ lake  █ live  × gap"


def draw(stories: Sequence[Story], *, cap: int, verdict: str) -> str:
    height = HEADER + len(stories) * (PANEL + GAP + 2 * STRIP + 46) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="Inter, Helvetica, Arial, sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="{PAPER}"/>',
        _text(MARGIN, 36, "A lake takes over what the topics cannot keep", size=21, weight=600),
        _text(MARGIN, 58, f"caps of {cap:,} records, an archive that follows, and an audit: {verdict}", fill=FAINT),
        *_legend(78),
    ]
    y = HEADER + 14.0
    for story in stories:
        parts += _panel(story, y, cap)
        y += PANEL + 40
        parts += _strips(story, y)
        y += 2 * STRIP + GAP + 20
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(y: float) -> Iterable[str]:
    x = float(MARGIN)
    for colour, words in (
        (HEAD, "head"), (ARCHIVED, "archived up to"), (LIVE, "live"), (LAKE, "in the lake"), (LOST, "lost before that"),
        (WAIT, "writer waits"),
    ):  # fmt: skip
        yield f'<rect x="{x}" y="{y - 9}" width="12" height="10" rx="2" fill="{colour}"/>'
        yield _text(x + 18, y, words, size=12)
        x += 36 + 7.0 * len(words)


def _panel(story: Story, top: float, cap: int) -> Iterable[str]:
    """Seqs over time: what is live lies between the first retained seq and the head."""
    samples = _thinned(story.samples)
    end_s = max(samples[-1].at_s, 0.1)
    bottom = top + PANEL

    def x(at_s: float) -> float:
        return MARGIN + (WIDTH - MARGIN - RIGHT) * at_s / end_s

    def y(seq: float) -> float:
        return bottom - PANEL * seq / max(story.head, 1)

    yield _text(MARGIN, top - 12, story.topic, size=15, weight=600)
    for begin, end in story.waiting:
        yield _box(x(begin), top, max(x(end) - x(begin), 1), PANEL, WAIT, opacity=0.22)
    for step in range(5):
        seq = story.head * step / 4
        yield _line(MARGIN, y(seq), WIDTH - RIGHT, y(seq), GRID)
        yield _text(MARGIN - 8, y(seq) + 4, f"{seq:,.0f}", size=11, anchor="end", fill=FAINT)
    yield from _seconds(end_s, bottom, x)
    upper = [(x(one.at_s), y(one.head)) for one in samples]
    lower = [(x(one.at_s), y(one.earliest - 1)) for one in samples]
    yield f'<polygon points="{_points([*upper, *reversed(lower)])}" fill="{LIVE}" opacity="0.22"/>'
    yield _path(lower, LIVE, 1.6)
    yield _path([(x(one.at_s), y(one.archived)) for one in samples], ARCHIVED, 2.2)
    yield _path(upper, HEAD, 1.8)
    for first, last, _ in story.gaps:
        yield _box(MARGIN - 5, y(last), 5, max(y(first - 1) - y(last), 2), LOST)


def _seconds(end_s: float, bottom: float, x: Callable[[float], float]) -> Iterable[str]:
    every = next(step for step in (1, 2, 5, 10, 30, 60, 600) if end_s / step <= 10 or step == 600)
    for mark in range(0, int(end_s) + 1, every):
        yield _line(x(mark), bottom, x(mark), bottom + 4, FAINT)
        yield _text(x(mark), bottom + 17, f"{mark} s", size=11, anchor="middle", fill=FAINT)


def _strips(story: Story, top: float) -> Iterable[str]:
    """Where each seq is in the end: what the topic gives, and what topic and lake give together."""

    def x(seq: float) -> float:
        return MARGIN + (WIDTH - MARGIN - RIGHT) * (seq - 1) / max(story.head, 1)

    def box(first: int, last: int, y: float, colour: str) -> str:
        return _box(x(first), y, max(x(last + 1) - x(first), 0.8), STRIP, colour)

    full = WIDTH - MARGIN - RIGHT
    below = top + STRIP + 6
    lost = sum(last - first + 1 for first, last, _ in story.gaps)
    yield _box(MARGIN, top, full, STRIP, GRID)
    yield _box(MARGIN, below, full, STRIP, GRID)
    for first, last in _runs(story.live):
        yield box(first, last, top, LIVE)
    for first, last in _runs(story.healed):
        yield box(first, last, below, LAKE)
    for first, last in _runs(story.live):
        yield box(first, last, below, LIVE)
    for first, last, _ in story.gaps:
        yield box(first, last, below, LOST)
    yield _text(MARGIN - 8, top + 12, "topic", size=11, anchor="end", fill=FAINT)
    yield _text(MARGIN - 8, below + 12, "+ lake", size=11, anchor="end", fill=FAINT)
    words = f"{len(story.live):,} of {story.head:,} in the topic, {len(story.healed):,} with the lake"
    words += f", {lost:,} lost before that, and told" if lost else ", nothing lost"
    yield _text(MARGIN, below + STRIP + 16, words, size=12)


def _thinned(samples: list[Sample]) -> list[Sample]:
    """At most some hundreds: a picture has no more columns."""
    step = max(len(samples) // 600, 1)
    return [*samples[::step], samples[-1]]


def _runs(seqs: list[int]) -> Iterable[tuple[int, int]]:
    start = before = None
    for seq in seqs:
        if before is None or start is None:
            start = seq
        elif seq != before + 1:
            yield start, before
            start = seq
        before = seq
    if start is not None and before is not None:
        yield start, before


def _points(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _path(points: Iterable[tuple[float, float]], colour: str, width: float) -> str:
    return (
        f'<polyline points="{_points(points)}" fill="none" stroke="{colour}" stroke-width="{width}" '
        'stroke-linejoin="round"/>'
    )


def _box(x: float, y: float, width: float, height: float, colour: str, *, opacity: float = 1.0) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.2f}" height="{height:.1f}"'
    return f'<rect {place} fill="{colour}" opacity="{opacity}"/>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(
    x: float, y: float, words: str, *, size: int = 13, anchor: str = "start", fill: str = INK, weight: int = 400
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text {place} fill="{fill}">{escape(words)}</text>'
