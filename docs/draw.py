"""Draws what algorithms admit, as the real code answers.

`docs/generate.py` writes what this returns, and compares it with --check.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ratelimit_service.algorithms import ALGORITHMS, spec_of
from ratelimit_service.model import SECOND_US, Anchor, Limit, State, Step, Unit

EDGE_US = 1_700_000_040 * SECOND_US
"""A moment at which a minute begins, and ten seconds do."""


class Way(NamedTuple):
    """A way to count, as documents call it."""

    file: str
    title: str
    limit: Limit


def ways() -> list[Way]:
    """Every way to count that has a picture, with a limit of `LIMIT` in a window."""

    def limit(algorithm: str, **more: object) -> Limit:
        return Limit(LIMIT, Unit.SECOND, WINDOW, algorithm=algorithm)._replace(**more)

    half = -(-LIMIT // 2)
    return [
        Way("fixed-window", "fixed_window", limit("fixed_window")),
        Way(
            "first-hit",
            "fixed_window, anchor: first_hit",
            limit("fixed_window", anchor=Anchor.FIRST_HIT),
        ),
        Way("sliding-window", "sliding_window", limit("sliding_window")),
        Way(
            "buckets",
            f"sliding_window, buckets: {BUCKETS}",
            limit("sliding_window", buckets=BUCKETS),
        ),
        Way("sliding-log", "sliding_log", limit("sliding_log")),
        Way("token-bucket", f"token_bucket, burst: {LIMIT}", limit("token_bucket")),
        Way("leaky-bucket", f"leaky_bucket, burst: {half}", limit("leaky_bucket", burst=half)),
        Way("concurrency", "concurrency", limit("concurrency")),
    ]


class Counter:
    """One counter of a way to count."""

    def __init__(self, limit: Limit) -> None:
        self._algorithm = ALGORITHMS[limit.algorithm]
        self._spec = spec_of(limit)
        self.state: State | None = None

    def hit(self, now_us: int) -> Step:
        """Charges one hit."""
        lease = now_us.to_bytes(8, "big")
        step = self._algorithm.charge(self.state, now_us, 1, self._spec, False, lease)
        self.state = step.state
        return step

    def give_back(self, now_us: int) -> None:
        """Gives back a hit; of leases the oldest."""
        step = self._algorithm.refund(self.state, now_us, 1, self._spec, b"", None)
        self.state = step.state


# Pictures

LIMIT, WINDOW, BUCKETS = 10, 60, 12
FROM, UNTIL = -60, 120
HITS_AT = [*range(-50, -8, 10), *(-6 + step * 0.4 for step in range(12))]
HITS_AT += [0.6 + step * 0.4 for step in range(12)] + list(range(8, 120, 2))
"""Seconds from the edge: few, a burst just before it, one just after it, and then steadily."""
UNDER_WAY = 20
"""How long a request of the picture of `concurrency` takes, in seconds."""

WIDTH, HEIGHT = 720, 190
LEFT, RIGHT, TOP, FLOOR = 44, 708, 34, 118
HITS_TOP, HITS_FLOOR = 134, 152
MOST = 20

STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #1f2328 }
  .title { font-weight: 600; font-size: 13px } .quiet { fill: #59636e }
  .axis { stroke: #8c959f; fill: none } .edge { stroke: #8c959f; stroke-dasharray: 3 3 }
  .limit { stroke: #bc4c00; stroke-width: 1.5; fill: none }
  .held { fill: #0969da; fill-opacity: .25; stroke: #0969da; stroke-width: 1.5 }
  .yes { stroke: #0969da; stroke-width: 2 } .no { stroke: #8c959f; stroke-width: 1 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .quiet { fill: #9198a1 } .axis, .edge, .no { stroke: #767e88 }
    .limit { stroke: #f0883e } .held { fill: #4493f8; stroke: #4493f8 } .yes { stroke: #4493f8 }
  }
"""


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a way to count made of the picture's hits."""

    hits: list[tuple[float, bool]]
    held: list[tuple[float, int]]
    """How many were admitted in the last window, after each moment at which that changes."""

    @property
    def most(self) -> int:
        """The most at any moment."""
        return max(count for _, count in self.held)


def drawn(limit: Limit) -> Drawn:
    """Lets a counter decide the picture's hits."""
    counter = Counter(limit)
    lasts = UNDER_WAY if limit.algorithm == "concurrency" else WINDOW
    hits: list[tuple[float, bool]] = []
    ends: deque[float] = deque()
    held: list[tuple[float, int]] = [(FROM, 0)]
    for at in HITS_AT:
        while ends and ends[0] <= at:
            gone = ends.popleft()
            held.append((gone, len(ends)))
            if limit.algorithm == "concurrency":
                counter.give_back(_us(gone))
        passed = counter.hit(_us(at)).passed
        hits.append((at, passed))
        if passed:
            ends.append(at + lasts)
            held.append((at, len(ends)))
    return Drawn(hits, held)


def _us(seconds: float) -> int:
    return EDGE_US + round(seconds * SECOND_US)


def _x(seconds: float) -> str:
    return f"{LEFT + (seconds - FROM) * (RIGHT - LEFT) / (UNTIL - FROM):.1f}"


def _y(count: int) -> str:
    return f"{FLOOR - count * (FLOOR - TOP) / MOST:.1f}"


def picture(way: Way) -> str:
    """What a way to count admits around a window's edge, as SVG."""
    found = drawn(way.limit)
    counted = "under way" if way.limit.algorithm == "concurrency" else "admitted in the last minute"
    about = f"{way.title}: at most {found.most} {counted}, with a limit of {LIMIT}"
    line = f"M{_x(FROM)} {_y(0)}"
    for at, count in found.held:
        line += f"H{_x(at)}V{_y(count)}"
    line += f"H{_x(UNTIL)}V{_y(0)}Z"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{about}</title>",
        f"<style>{STYLE}</style>",
        f'<text class="title" x="{LEFT}" y="18">{way.title}</text>',
        f'<text class="quiet" x="{RIGHT}" y="18" text-anchor="end">'
        f"{counted}: at most {found.most}</text>",
        f'<path class="held" d="{line}"/>',
        f'<path class="axis" d="M{LEFT} {TOP}V{FLOOR}H{RIGHT}"/>',
        f'<path class="limit" d="M{LEFT} {_y(LIMIT)}H{RIGHT}"/>',
    ]
    lines += [
        f'<text x="{LEFT - 8}" y="{_y(count)}" dy="4" text-anchor="end">{count}</text>'
        for count in (0, LIMIT, MOST)
    ]
    lines += [f'<path class="edge" d="M{_x(at)} {TOP - 8}V{HITS_FLOOR}"/>' for at in (0, WINDOW)]
    for at, passed in found.hits:
        top = HITS_TOP if passed else HITS_TOP + 8
        kind = "yes" if passed else "no"
        lines.append(f'<path class="{kind}" d="M{_x(at)} {top}V{HITS_FLOOR}"/>')
    for at, text in ((-60, "-60 s"), (0, "a window begins"), (60, "the next"), (120, "120 s")):
        anchor = {-60: "start", 120: "end"}.get(at, "middle")
        lines.append(
            f'<text class="quiet" x="{_x(at)}" y="{HITS_FLOOR + 18}" '
            f'text-anchor="{anchor}">{text}</text>'
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


def drawings() -> Iterator[tuple[str, Callable[[], str]]]:
    """Every file in docs/ that is drawn, and what writes it."""
    for way in ways():
        yield f"pictures/{way.file}.svg", lambda way=way: picture(way)
