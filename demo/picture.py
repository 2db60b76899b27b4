"""Draw the picture of the demo as SVG: two topics over time, and where every seq is at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LEFT, RIGHT = 1160, 76, 236  # the findings of the audit are to the right of the charts
PANEL, STRIP = 230, 18
HEADER, BLOCK = 132, 408
INK, FAINT, GRID, PAPER = "#1f2933", "#5d6975", "#e4e8ec", "#ffffff"
HEAD, ARCHIVED, LIVE, LAKE, LOST, WAIT = "#1f2933", "#12805c", "#3b7dd8", "#a9dcc9", "#d64545", "#f2b632"
CELLS = 64

Gap = tuple[int, int, str]
Scale = Callable[[float], float]


@dataclass(frozen=True)
class Sample:
    """The state of a topic at one time."""

    at_s: float
    head: int
    earliest: int
    archived: int


@dataclass(frozen=True)
class Step:
    """The position of a reader of topic and lake at one time."""

    at_s: float
    seq: int


@dataclass(frozen=True)
class Story:
    """The history of one topic."""

    topic: str
    rule: str  # its behaviour when it is full, in a few words
    head: int
    live: list[int]
    healed: list[int]
    gaps: list[Gap]
    samples: list[Sample]
    waiting: list[tuple[float, float]]  # when its writer had to wait
    reading: list[Step]

    @property
    def lost(self) -> int:
        return sum(last - first + 1 for first, last, _ in self.gaps)

    @property
    def live_from(self) -> int:
        return self.live[0] if self.live else self.head + 1


def add_gap(gaps: list[Gap], first: int, last: int, reason: str) -> None:
    """Append a gap, or extend the last one if the two are adjacent."""
    if gaps and gaps[-1][1] + 1 == first and gaps[-1][2] == reason:
        first = gaps.pop()[0]
    gaps.append((first, last, reason))


def strip(story: Story, *, colour: bool) -> str:
    """Return the seqs from 1 to the head as one terminal line: live, in the lake, or in a gap."""
    cells = []
    for at in range(CELLS):
        seq = 1 + at * story.head // CELLS
        lost = any(first <= seq <= last for first, last, _ in story.gaps)
        mark, code = ("×", "31") if lost else ("█", "34") if seq >= story.live_from else ("▒", "32")
        cells.append(f"\x1b[{code}m{mark}\x1b[0m" if colour else mark)
    return "".join(cells) + "  ▒ lake  █ live  × gap"


def draw(stories: Sequence[Story], *, cap: int, unexplained: int) -> str:
    height = HEADER + len(stories) * BLOCK - 16
    end_s = max(max(story.samples[-1].at_s, story.reading[-1].at_s) for story in stories)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="Inter, Helvetica, Arial, sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="{PAPER}"/>',
        _text(LEFT, 40, "A lake takes over what the topics cannot keep", size=22, weight=600),
        _text(
            LEFT, 64, f"Two topics with room for {cap:,} records, an archive that follows them, a reader, an audit",
            size=14, fill=FAINT,
        ),
        *_legend(92),
    ]  # fmt: skip
    for number, story in enumerate(stories):
        top = HEADER + 30.0 + number * BLOCK
        parts += [*_panel(story, top, end_s), *_audit(story, top, unexplained), *_strips(story, top + PANEL + 58)]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(y: float) -> Iterable[str]:
    x = float(LEFT)
    for colour, words in (
        (HEAD, "written"), (ARCHIVED, "archived up to here"), (LIVE, "in the topic"), (LAKE, "only in the lake"),
        (LOST, "lost, and reported"), (WAIT, "writer waits"),
    ):  # fmt: skip
        thin = colour in (HEAD, ARCHIVED)
        yield _box(x, y - (6 if thin else 10), 18, 3 if thin else 11, colour)
        yield _text(x + 25, y, words, size=13)
        x += 52 + 6.9 * len(words)


def _panel(story: Story, top: float, end_s: float) -> Iterable[str]:
    """Draw seqs over time: evicted, live, and the last archived seq."""
    samples = [*_thinned(story.samples), _last(story.samples, end_s)]
    bottom, wide = top + PANEL, WIDTH - LEFT - RIGHT

    def x(at_s: float) -> float:
        return LEFT + wide * at_s / end_s

    def y(seq: float) -> float:
        return bottom - PANEL * seq / max(story.head, 1)

    yield _text(LEFT, top - 14, story.topic, size=16, weight=600)
    yield _text(LEFT + 12 + 9.0 * len(story.topic), top - 14, story.rule, size=13, fill=FAINT)
    for begin, end in story.waiting:
        yield _box(x(begin), top, max(x(end) - x(begin), 1), PANEL, WAIT, opacity=0.25)
    yield from _grid(story.head, end_s, top, x, y)
    upper = [(x(one.at_s), y(one.head)) for one in samples]
    lower = [(x(one.at_s), y(one.earliest - 1)) for one in samples]
    yield _area([*lower, (x(end_s), bottom), (x(0), bottom)], LAKE, 0.55)
    yield _area([*upper, *reversed(lower)], LIVE, 0.25)
    for first, last, _ in story.gaps:
        evicted = [(x(one.at_s), y(max(min(one.earliest - 1, last), first - 1))) for one in samples]
        yield _area([*evicted, (x(end_s), y(first - 1)), (evicted[0][0], y(first - 1))], LOST, 0.8)
    yield _path([(x(one.at_s), y(one.archived)) for one in samples], ARCHIVED, 2.4)
    yield _path(upper, HEAD, 2)
    yield from _reader(story, x, y)
    yield from _notes(story, top, end_s, x, y)


def _grid(head: int, end_s: float, top: float, x: Scale, y: Scale) -> Iterable[str]:
    bottom = top + PANEL
    for step in range(5):
        seq = head * step / 4
        yield _line(LEFT, y(seq), WIDTH - RIGHT, y(seq), GRID)
        yield _text(LEFT - 8, y(seq) + 4, f"{seq:,.0f}", size=12, anchor="end", fill=FAINT)
    yield _text(LEFT - 8, top - 14, "seq", size=12, anchor="end", fill=FAINT)
    every = next(step for step in (1, 2, 5, 10, 30, 60, 600) if end_s / step <= 10 or step == 600)
    for mark in range(0, int(end_s) + 1, every):
        yield _line(x(mark), bottom, x(mark), bottom + 4, FAINT)
        yield _text(x(mark), bottom + 18, f"{mark} s", size=12, anchor="middle", fill=FAINT)


def _reader(story: Story, x: Scale, y: Scale) -> Iterable[str]:
    """Draw the progress of the reader as dots, in the colour of the record's source."""
    yield _line(x(story.reading[0].at_s), y(story.head), x(story.reading[0].at_s), y(0), FAINT, dash="3 3")
    for step in story.reading[:: max(len(story.reading) // 40, 1)]:
        colour = LIVE if step.seq >= story.live_from else ARCHIVED
        attributes = f'cx="{x(step.at_s):.1f}" cy="{y(step.seq):.1f}"'
        yield f'<circle {attributes} r="3.2" fill="{colour}" stroke="{PAPER}" stroke-width="0.8"/>'


def _notes(story: Story, top: float, end_s: float, x: Scale, y: Scale) -> Iterable[str]:
    begins = story.reading[0].at_s
    words = "a reader from seq 1, with the lake"
    if x(begins) > LEFT + 300:
        yield _text(x(begins) - 6, y(0) - 8, words, size=12, anchor="end")
    else:
        yield _text(x(begins) + 6, y(0) - 8, words, size=12)
    if story.waiting:
        begin, end = max(story.waiting, key=lambda span: span[1] - span[0])
        middle = min(max((x(begin) + x(end)) / 2, LEFT + 80), WIDTH - RIGHT - 80)
        yield _text(middle, top + 16, "full: 422 topic_full", size=12, anchor="middle")
    for first, last, reason in story.gaps:
        at_s = next((one.at_s for one in story.samples if min(one.earliest, one.archived) > last), end_s)
        words = f"tombstone: seqs {first:,} to {last:,} ({reason})"
        at = min(x(at_s) + 10, WIDTH - RIGHT - 6.6 * len(words))
        yield _text(at, y((first + last) / 2) + 4, words, size=12, fill=PAPER, weight=600)


def _audit(story: Story, top: float, unexplained: int) -> Iterable[str]:
    """Draw the result of the audit beside the chart."""
    x, width = WIDTH - RIGHT + 20.0, RIGHT - 40.0
    archived = story.head - len(story.live) - story.lost
    rows = [
        (LIVE, len(story.live), "live"), (LAKE, archived, "archived"), (LOST, story.lost, "in a recorded gap"),
    ]  # fmt: skip
    attributes = f'x="{x}" y="{top}" width="{width}" height="{PANEL}"'
    yield f'<rect {attributes} rx="6" fill="none" stroke="{GRID}" stroke-width="1.5"/>'
    yield _text(x + 14, top + 28, "audit", size=15, weight=600)
    for number, (colour, count, words) in enumerate(rows):
        y = top + 64 + number * 42
        yield _box(x + 14, y - 13, 5, 30, colour)
        yield _text(x + 28, y, f"{count:,}", size=15, weight=600)
        yield _text(x + 28, y + 16, words, size=12, fill=FAINT)
    good = unexplained == 0
    yield _line(x + 14, top + 184, x + width - 14, top + 184, GRID)
    yield _text(x + 14, top + 210, f"{unexplained:,} unexplained", size=15, weight=600, fill=ARCHIVED if good else LOST)


def _strips(story: Story, top: float) -> Iterable[str]:
    """Draw where each seq is at the end: in the topic alone, and in topic and lake together."""
    full = WIDTH - LEFT - RIGHT

    def box(first: int, last: int, y: float, colour: str) -> str:
        from_x = LEFT + full * (first - 1) / max(story.head, 1)
        return _box(from_x, y, max(full * (last - first + 1) / max(story.head, 1), 0.8), STRIP, colour)

    below = top + STRIP + 8
    yield _text(LEFT, top - 8, f"where the seqs from 1 to {story.head:,} are in the end", size=12, fill=FAINT)
    yield _box(LEFT, top, full, STRIP, GRID)
    yield _box(LEFT, below, full, STRIP, GRID)
    yield from (box(first, last, top, LIVE) for first, last in _runs(story.live))
    yield from (box(first, last, below, LAKE) for first, last in _runs(story.healed))
    yield from (box(first, last, below, LIVE) for first, last in _runs(story.live))
    yield from (box(first, last, below, LOST) for first, last, _ in story.gaps)
    yield _text(LEFT - 8, top + 14, "topic", size=12, anchor="end", fill=FAINT)
    yield _text(LEFT - 8, below + 14, "+ lake", size=12, anchor="end", fill=FAINT)
    aside = WIDTH - RIGHT + 20
    yield _text(aside, top + 14, f"{len(story.live):,} of {story.head:,}", size=13)
    lost = f", {story.lost:,} lost" if story.lost else ": healed"
    yield _text(aside, below + 14, f"{len(story.healed):,} of {story.head:,}{lost}", size=13)


def _thinned(samples: list[Sample]) -> list[Sample]:
    """Return at most a few hundred samples, because the picture has no more columns."""
    return samples[:: max(len(samples) // 600, 1)]


def _last(samples: list[Sample], end_s: float) -> Sample:
    return Sample(end_s, samples[-1].head, samples[-1].earliest, samples[-1].archived)


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


def _area(points: Iterable[tuple[float, float]], colour: str, opacity: float) -> str:
    return f'<polygon points="{_points(points)}" fill="{colour}" opacity="{opacity}"/>'


def _path(points: Iterable[tuple[float, float]], colour: str, width: float) -> str:
    return (
        f'<polyline points="{_points(points)}" fill="none" stroke="{colour}" stroke-width="{width}" '
        'stroke-linejoin="round"/>'
    )


def _box(x: float, y: float, width: float, height: float, colour: str, *, opacity: float = 1.0) -> str:
    attributes = f'x="{x:.1f}" y="{y:.1f}" width="{width:.2f}" height="{height:.1f}"'
    return f'<rect {attributes} fill="{colour}" opacity="{opacity}"/>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, *, dash: str = "") -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{dashed}/>'


def _text(
    x: float, y: float, words: str, *, size: int = 13, anchor: str = "start", fill: str = INK, weight: int = 400
) -> str:
    attributes = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text {attributes} fill="{fill}">{escape(words)}</text>'
