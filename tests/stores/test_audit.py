"""What is audited in Redis, told page by page, on one server and over several."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ratelimit_service.errors import StoreError
from ratelimit_service.stores.redis.audit import audited


class Lists:
    """Lists of servers, the newest line first, and how many lines were read in each look."""

    def __init__(self, *lines: Sequence[bytes]) -> None:
        self.lines = {f"s{number}": list(each) for number, each in enumerate(lines)}
        self.looks: list[int] = []
        self.away: set[str] = set()

    async def read(self, name: str, first: int, most: int) -> Sequence[bytes]:
        if name in self.away:
            raise StoreError(f"{name} is away")
        found = self.lines[name][first : first + most]
        self.looks.append(len(found))
        return found

    def push(self, name: str, *lines: bytes) -> None:
        self.lines[name][:0] = lines

    async def page(self, most: int, after: str = "") -> tuple[list[bytes], str]:
        lines, cursor = await audited(list(self.lines), self.read, most, after)
        return [line.encode() for line in lines], cursor


def line(second: int, name: str = "") -> bytes:
    return b'{"v": 1, "time": "2026-01-01T00:00:%02dZ", "id": "%s"}' % (second, name.encode())


async def test_pages_go_on_where_the_last_one_ended() -> None:
    """However many changes come between two pages, each line is told once and in its order."""
    old = [line(second) for second in range(59, -1, -1)]
    for between in range(12):
        lists = Lists(old)
        told, cursor = await lists.page(7)
        while cursor:
            lists.push("s0", *(line(59, f"new{number}") for number in range(between)))
            more, cursor = await lists.page(7, cursor)
            told += more
        assert told == old
        assert max(lists.looks) <= 8


async def test_pages_of_several_servers_are_one_list() -> None:
    """The newest line of all is told first; of each server no more is read than a page has."""
    lists = Lists(
        [line(second, "a") for second in (50, 40, 30, 20)],
        [],
        [line(second, "b") for second in (45, 44, 43, 5)],
    )
    told, cursor = await lists.page(3)
    lists.push("s1", line(59, "c"))
    lists.push("s2", line(58, "b"), line(57, "b"))
    rest, cursor = await lists.page(9, cursor)

    order = [(50, "a"), (45, "b"), (44, "b"), (43, "b"), (40, "a"), (30, "a"), (20, "a"), (5, "b")]
    assert told + rest == [line(second, name) for second, name in order]
    assert cursor == ""
    assert max(lists.looks) <= 4


async def test_lines_that_are_gone_end_their_list() -> None:
    """The list is bounded: if the next line was dropped from it, so were all that are older."""
    lists = Lists([line(second) for second in (9, 8, 7, 6)])
    _, cursor = await lists.page(2)
    lists.push("s0", *(line(20 + number) for number in range(30)))
    del lists.lines["s0"][31:]

    assert await lists.page(2, cursor) == ([], "")
    assert max(lists.looks) <= 3


async def test_servers_that_are_away_are_left_out() -> None:
    """Only the first one must answer. Who was away is not read in later pages either."""
    lists = Lists([line(9), line(7)], [line(8)])
    lists.away = {"s1"}
    told, cursor = await lists.page(1)
    lists.away = set()
    rest, _ = await lists.page(9, cursor)
    assert told + rest == [line(9), line(7)]

    lists.away = {"s0"}
    with pytest.raises(StoreError, match="s0 is away"):
        await lists.page(1)
