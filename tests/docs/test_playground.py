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
PAGE = DOCS / "playground.html"
WINDOWS_BEGIN_US = 1_700_000_100 * SECOND_US
"""A moment at which a window of every length begins that the page offers."""


def limits(number: int, window: int, burst: int) -> dict[str, Limit]:
    """The limits of the page's counters, as it calls them."""

    def limit(algorithm: str, **more: object) -> Limit:
        return Limit(number, Unit.SECOND, window, algorithm=algorithm)._replace(**more)  # type: ignore[arg-type]

    half = -(-burst // 2)
    return {
        "fixed_window": limit("fixed_window"),
        "fixed_window, anchor: first_hit": limit("fixed_window", anchor=Anchor.FIRST_HIT),
        "sliding_window": limit("sliding_window"),
        "sliding_window, buckets: 5": limit("sliding_window", buckets=5),
        "sliding_log": limit("sliding_log"),
        f"token_bucket, burst: {burst}": limit("token_bucket", burst=burst),
        f"leaky_bucket, burst: {half}": limit("leaky_bucket", burst=half),
        "concurrency": limit("concurrency"),
    }


AS_OPENED = limits(3, 10, 3)


class Real:
    """One counter of the real code, at a time of its own."""

    def __init__(self, limit: Limit) -> None:
        self._algorithm, self._spec = ALGORITHMS[limit.algorithm], spec_of(limit)
        self._state: State | None = None
        self.second = 0

    @property
    def _now_us(self) -> int:
        return WINDOWS_BEGIN_US + self.second * SECOND_US

    def left(self) -> int:
        """How many hits have room."""
        return self._algorithm.charge(
            self._state, self._now_us, 0, self._spec, False, b""
        ).remaining

    def hit(self) -> tuple[bool, int]:
        """Whether a hit passes, and if it does not in how many whole seconds one would."""
        lease = self._now_us.to_bytes(8, "big")
        step = self._algorithm.charge(self._state, self._now_us, 1, self._spec, False, lease)
        self._state = step.state
        return step.passed, -(-step.retry_us // SECOND_US)

    def done(self) -> None:
        self._state = self._algorithm.refund(
            self._state, self._now_us, 1, self._spec, b"", None
        ).state


WALK = """((walked, chosen) => {
  Object.assign(settings, chosen);
  return WAYS.map((way) => {
    const state = way.fresh();
    let at = 0;
    return [way.title(settings), walked.map((what) => {
      const left = way.left(state, at, settings);
      if (what === "second") at += 1;
      else if (what === "end") way.end?.(state);
      else if (!hit(way, state, at)) {
        let after = at;
        while (!(way.left(structuredClone(state), after, settings) > 0)) after += 1;
        return [left, false, after - at];
      } else return [left, true, 0];
      return [left];
    })];
  });
})"""
"""Walks through all counters of the page: what each of them says at each step."""


def test_every_way_to_count_is_there(chromium: Chromium) -> None:
    """The page has every way that is drawn, and the document a picture of each; all are used.

    `docs/draw.py` need not draw every algorithm: its section in docs/rules.md may be enough.
    """
    chromium.open(PAGE)
    drawn = {limit.algorithm for limit in AS_OPENED.values()}
    assert chromium.run("WAYS.map((way) => way.title(settings))") == list(AS_OPENED)
    assert drawn <= set(ALGORITHMS)

    text = (DOCS / "algorithms.md").read_text()
    pages = "".join(page.read_text() for page in DOCS.glob("*.md"))
    shown = re.findall(r"!\[[^\]]+\]\(pictures/([\w-]+\.svg)\)", pages)
    assert sorted(shown) == sorted(path.name for path in (DOCS / "pictures").glob("*.svg"))
    assert set(re.findall(r"^### (\w+)$", text, re.MULTILINE)) == drawn


def test_answers_as_the_real_code(chromium: Chromium) -> None:
    """With every rate, window and burst that the page offers it and the real code never differ.

    Each time they walk through hits, seconds, and the ends of what is under way, by chance.
    """
    chromium.open(PAGE)
    chance = random.Random(1)
    offered = [
        (rate, window, burst)
        for rate in range(1, 9)
        for window in range(5, 31, 5)
        for burst in range(1, 9)
    ]
    for rate, window, burst in offered:
        walk = chance.choices(("hit", "second", "end"), (6, 5, 1), k=40)
        walk += chance.choices(("hit", "second"), (1, 3), k=80)
        chosen = {"limit": rate, "window": window, "burst": burst}

        found = chromium.run(f"{WALK}({json.dumps(walk)}, {json.dumps(chosen)})")

        assert found == [
            [title, real_walk(limit, walk)] for title, limit in limits(rate, window, burst).items()
        ], chosen


def real_walk(limit: Limit, walk: list[str]) -> list[list[Any]]:
    """What the real code says at each step, as the page is asked."""
    real, said = Real(limit), []
    for what in walk:
        said.append([real.left()])
        if what == "hit":
            said[-1] += real.hit()
        elif what == "second":
            real.second += 1
        elif limit.algorithm == "concurrency":
            real.done()
    return said


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
        chromium.open(PAGE, width, 800, dark=dark)
        reals = {title: Real(limit) for title, limit in AS_OPENED.items()}
        found = {title: [0, 0] for title in AS_OPENED}
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
    assert chromium.run(SEEN) == [[title, 0, 0] for title in AS_OPENED]
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


SLIDE = """((name, value) => {
  const slider = document.getElementById(name);
  slider.value = value;
  slider.dispatchEvent(new Event("input"));
})"""


def test_sliders_and_the_stream(chromium: Chromium) -> None:
    """Sliders set rate, burst, window and the stream; each counter says how it would go on."""
    chromium.open(PAGE)
    for name, value in (("limit", 6), ("window", 20), ("burst", 4), ("stream", 3)):
        chromium.run(f"{SLIDE}('{name}', {value})")

    chromium.press("#steady")

    shown = chromium.run("document.getElementById('said').textContent")
    assert shown == "At 20 s. 20 s with 2 hits a second."
    next_of = "document.querySelector('#{} p.next').textContent"
    assert (
        chromium.run(next_of.format("fixed-window")) == "next to pass: 6 now, 6 at 40 s, 6 at 60 s"
    )
    assert chromium.run(next_of.format("token-bucket")) == (
        "next to pass: 1 now, 1 at 24 s, 1 at 27 s"
    )
    assert chromium.run("document.querySelector('#token-bucket h2').textContent") == (
        "token_bucket, burst: 4"
    )

    chromium.press("#play")
    label = "document.getElementById('play').textContent"
    assert chromium.run(label) == "Stop the stream"
    chromium.press("#play")
    assert chromium.run(label) == "Start the stream"
    assert chromium.run("now") > 20
    assert chromium.faults == []
