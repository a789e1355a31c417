"""Of thousands of patterns only those are compared with a value that have a fragment of it."""

from __future__ import annotations

import re
from random import Random

import pytest

from ratelimit_service.limiter import DomainOverrides
from ratelimit_service.model import Entry, Override, OverrideKind
from ratelimit_service.rules.matchers.effort import EFFORT, EffortSpentError
from ratelimit_service.rules.matchers.pattern import Pattern
from ratelimit_service.rules.matchers.search import Search
from tests.grpc.counted_work import work_of


def search(texts: list[str]) -> Search:
    index = Search()
    for text in texts:
        index.add(Pattern.of(text))
    for _ in index.completing():
        pass
    return index


def takes(text: str, value: str) -> bool:
    """As a regular expression says it."""
    return re.fullmatch(".*".join(map(re.escape, text.split("*"))), value, re.DOTALL) is not None


@pytest.mark.parametrize("letters", ["ab", "abc*", "xyé☃"])
def test_finds_what_each_by_itself_takes(letters: str) -> None:
    """A value goes to the first declared pattern that takes it, and all are found that do."""
    chance = Random(letters)
    for _ in range(60):
        texts = {
            "".join(chance.choices(letters + "**", k=chance.randint(0, 9))) + "*" for _ in range(40)
        }
        declared = sorted(texts)
        patterns = search(declared)
        for _ in range(60):
            value = "".join(chance.choices(letters, k=chance.randint(0, 12)))
            expected = [at for at, text in enumerate(declared) if takes(text, value)]

            assert list(patterns.all(value)) == expected
            assert patterns.first(value) == (expected[0] if expected else -1)


@pytest.mark.parametrize("form", ["*p{}*", "p{}*", "*p{}", "/api/*p{}*", "*x*p{}*x*"])
@pytest.mark.parametrize("value", ["x" * 200, "/api/p7-" + "x" * 200, "-" * 200 + "p77"])
def test_more_patterns_cost_no_more(form: str, value: str) -> None:
    """A value that few of 4,000 patterns can take is compared with few."""
    few, many = (search([form.format(at) for at in range(count)]) for count in (100, 4_000))

    work = work_of(lambda: many.first(value))

    assert work <= 2 * work_of(lambda: few.first(value)) + 40


def test_many_stars_cost_no_more_than_the_text_between_them() -> None:
    """Stars that follow each other are one, and a value that is too short is not compared."""
    stars = search(["*" * 50_000 + "x"])
    assert stars.first("yx") == 0
    assert work_of(lambda: stars.first("yx")) < 50

    fragments = search(["*x" * 400])
    assert fragments.first("x" * 399) == -1
    assert work_of(lambda: fragments.first("x" * 399)) < 50
    assert fragments.first("x" * 400) == 0


def override(number: int, value: str) -> Override:
    return Override(str(number), OverrideKind.BAN, "edge", (Entry("k", value),), 0)


def test_more_overrides_cost_no_more() -> None:
    """Of 1,000 overrides with a pattern few are compared with a value; removed ones are gone."""
    overrides = DomainOverrides()
    each = [override(number, f"*p{number}*") for number in range(1_000)]
    for one in each:
        overrides.add(one)
    entries = (Entry("k", "x" * 100 + "p777" + "x" * 100),)

    taken = {one.id for one in overrides.taking(entries)}
    assert taken == {"7", "77", "777"}
    assert work_of(lambda: overrides.taking(entries)) < 300

    for one in each:
        overrides.remove(one)
    assert not overrides.taking(entries)


@pytest.mark.parametrize("kind", ["rules", "overrides"])
def test_what_costs_much_is_done_in_several_turns(kind: str) -> None:
    """When the effort of a turn is spent no other value is searched; what was found stays."""
    long = "*x" * 300 + "*y"
    patterns, overrides = search([long + "*"]), DomainOverrides()
    overrides.add(override(1, long + "*"))
    values = [f"{number}-" + "x" * 400 for number in range(200)]
    turns = 1
    EFFORT.begin({})
    try:
        done = 0
        while done < len(values):
            try:
                for done, value in enumerate(values, 1):  # noqa: B007 -- it is read behind the loop
                    if kind == "rules":
                        patterns.first(value)
                    else:
                        overrides.taking((Entry("k", value),))
            except EffortSpentError:
                done = 0
                turns += 1
                EFFORT.begin(EFFORT.results)
    finally:
        EFFORT.end()

    assert 2 < turns < 50
