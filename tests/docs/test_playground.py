"""docs/playground.html answers as the real code does."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ratelimit_service.algorithms import ALGORITHMS, spec_of
from ratelimit_service.model import SECOND_US, Anchor, Limit, State, Unit
from tests.servers.chromium import Chromium

DOCS = Path(__file__).parents[2] / "docs"
WINDOW_BEGINS_US = 1_700_000_000 * SECOND_US
PASSES, LEFT, WAIT, AFTER_HIT, AFTER_SECOND, AFTER_DONE = range(6)


def _limit(algorithm: str, **more: object) -> Limit:
    return Limit(3, Unit.SECOND, 10, algorithm=algorithm)._replace(**more)  # type: ignore[arg-type]


LIMITS = {
    "fixed_window": _limit("fixed_window"),
    "fixed_window, anchor: first_hit": _limit("fixed_window", anchor=Anchor.FIRST_HIT),
    "sliding_window": _limit("sliding_window"),
    "sliding_window, buckets: 5": _limit("sliding_window", buckets=5),
    "sliding_log": _limit("sliding_log"),
    "token_bucket, burst: 3": _limit("token_bucket", burst=3),
    "leaky_bucket, burst: 2": _limit("leaky_bucket", burst=2),
    "concurrency": _limit("concurrency"),
}
"""As the page calls them: 3 hits in 10 seconds."""


class Real:
    """One counter of the real code, at a time of its own."""

    def __init__(self, limit: Limit) -> None:
        self._algorithm, self._spec = ALGORITHMS[limit.algorithm], spec_of(limit)
        self._state: State | None = None
        self.second = 0

    @property
    def _now_us(self) -> int:
        return WINDOW_BEGINS_US + self.second * SECOND_US

    def hit(self) -> tuple[bool, int, float]:
        """Whether a hit passes, what was left before it, and the seconds to wait."""
        look = self._algorithm.charge(self._state, self._now_us, 0, self._spec, False, b"")
        lease = self._now_us.to_bytes(8, "big")
        step = self._algorithm.charge(self._state, self._now_us, 1, self._spec, False, lease)
        self._state = step.state
        return step.passed, look.remaining, step.retry_us / SECOND_US

    def done(self) -> None:
        self._state = self._algorithm.refund(
            self._state, self._now_us, 1, self._spec, b"", None
        ).state


def ways() -> dict[str, Any]:
    """The states that the page looks answers up in, by the name of a way to count."""
    text = (DOCS / "playground" / "answers.js").read_text()
    rows = re.findall(r"^  \{\.\.\.(\{.*?\}), states: (\[.*\])\},$", text, re.MULTILINE)
    return {json.loads(about)["title"]: json.loads(states) for about, states in rows}


def test_every_way_to_count_is_there() -> None:
    """The page has every way that is drawn, and the document a picture of each; all are used.

    `docs/draw.py` need not draw every algorithm: its section in docs/rules.md may be enough.
    """
    drawn = {limit.algorithm for limit in LIMITS.values()}
    assert list(ways()) == list(LIMITS)
    assert drawn <= set(ALGORITHMS)

    text = (DOCS / "algorithms.md").read_text()
    both = text + (DOCS / "index.md").read_text()
    shown = re.findall(r"!\[[^\]]+\]\(pictures/([\w-]+\.svg)\)", both)
    assert sorted(shown) == sorted(path.name for path in (DOCS / "pictures").glob("*.svg"))
    assert set(re.findall(r"^### (\w+)$", text, re.MULTILINE)) == drawn


@pytest.mark.parametrize("title", LIMITS)
def test_the_table_answers_as_the_real_code(title: str) -> None:
    """On a random walk of hits and seconds the table and the real code never differ."""
    chance, states = random.Random(title), ways()[title]
    real, at = Real(LIMITS[title]), 0
    for _ in range(4_000):
        what = chance.choice([AFTER_HIT, AFTER_HIT, AFTER_SECOND, AFTER_DONE])
        if what == AFTER_HIT:
            passed, left, wait = real.hit()
            assert states[at][:3] == [int(passed), left, wait]
        elif what == AFTER_SECOND:
            real.second += 1
        elif title == "concurrency":
            real.done()
        else:
            continue
        at = states[at][what]


@pytest.fixture
def chromium(tmp_path: Path) -> Iterator[Chromium]:
    chromium = Chromium(tmp_path)
    yield chromium
    chromium.close()


SEEN = """[...document.querySelectorAll(".way")].map((way) => [
  way.querySelector("h2").textContent,
  way.querySelectorAll("rect.yes").length,
  way.querySelectorAll("rect.no").length,
])"""


def test_buttons_do_what_they_say(chromium: Chromium) -> None:
    """In a real browser hits pass as in the real code, on a wide page and on a narrow one."""
    for width, dark in ((1200, False), (360, True)):
        chromium.open(DOCS / "playground.html", width, 800, dark=dark)
        reals = {title: Real(limit) for title, limit in LIMITS.items()}
        found = {title: [0, 0] for title in LIMITS}
        for pressed in ("hit", "second", "three", "second", "hit", "hit", "second", "three"):
            chromium.press(f"#{pressed}")
            for title, real in reals.items():
                real.second += pressed == "second"
                for _ in range({"hit": 1, "three": 3, "second": 0}[pressed]):
                    found[title][not real.hit()[0]] += 1

        assert chromium.run(SEEN) == [[title, *counts] for title, counts in found.items()]
        assert chromium.run("document.getElementById('said').textContent").startswith("At 3 s. ")
        assert chromium.run("document.documentElement.scrollWidth") <= width

    chromium.press("#new")
    assert chromium.run(SEEN) == [[title, 0, 0] for title in LIMITS]
    chromium.press("#edge")
    assert chromium.run("document.querySelector('#fixed-window .above').textContent") == (
        "6 in the last 10 s, at most 6 of 3"
    )
    assert chromium.run("document.querySelector('#sliding-log .above')") is None
    under_way = "document.querySelector('#concurrency .lately').textContent"
    assert chromium.run(under_way) == "3 under way"
    chromium.press("#concurrency button")
    assert chromium.run(under_way) == "2 under way"
    assert chromium.faults == []
