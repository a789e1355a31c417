"""Long work is done a slice at a time; who stands in line does one slice of all in each round."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from itertools import pairwise
from types import SimpleNamespace

import pytest

from ratelimit_service.eventloop import slices
from ratelimit_service.eventloop.slices import pause, slowly, stand_in_line, stepwise


async def seen_by_round(done: list[int], tasks: list[asyncio.Task[None]]) -> list[int]:
    """How many slices were done in each round of the loop."""
    seen = [len(done)]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        seen.append(len(done))
    return [after - before for before, after in pairwise(seen)]


async def work(number: int, slices: int, done: list[int], *, in_line: bool) -> None:
    if in_line:
        stand_in_line()
        await pause()
    for _ in range(slices):
        done.append(number)
        await pause()


async def test_one_slice_in_each_round() -> None:
    """However many stand in line, a round has one slice; all go on by turns, and none is lost."""
    done: list[int] = []
    tasks = [asyncio.create_task(work(each, 10, done, in_line=True)) for each in range(50)]
    for _ in range(5):
        await asyncio.sleep(0)
    tasks[7].cancel()
    alone = asyncio.create_task(work(-1, 10, done, in_line=False))

    rounds = await seen_by_round(done, [task for task in tasks if task is not tasks[7]])

    assert max(rounds) <= 2  # one of the line, and one of who does not stand in it
    assert alone.done()
    assert all(done.count(number) == 10 for number in range(50) if number != 7)
    first = [each for each in done if each >= 0][:40]
    assert len(set(first)) == 40


async def test_one_alone_waits_for_one_round() -> None:
    """Who stands in line alone goes on in each round."""
    done: list[int] = []
    task = asyncio.create_task(work(0, 20, done, in_line=True))

    rounds = await seen_by_round(done, [task])

    assert len(rounds) <= 24


async def test_slices_of_generators() -> None:
    """`slowly` and `stepwise` pause in line as well."""
    done: list[int] = []

    async def items() -> AsyncIterator[int]:
        async for item in slowly(range(200), 10):
            yield item

    async def read() -> None:
        stand_in_line()
        async for item in items():
            if item % 10 == 0:
                done.append(item)  # noqa: PERF401 -- each when it comes

    async def step() -> int:
        stand_in_line()

        def steps() -> Generator[None, None, int]:
            for each in range(20):
                done.append(each)
                yield
            return 7

        return await stepwise(steps())

    readers = [asyncio.create_task(read()) for _ in range(10)]
    stepping = asyncio.create_task(step())
    await asyncio.sleep(0)
    begun = len(done)
    rounds = await seen_by_round(done, readers)

    assert begun == 11
    assert max(rounds) <= 1
    assert await stepping == 7


@pytest.mark.parametrize("tasks", [1, 5])
async def test_long_work_has_half_of_the_time(monkeypatch: pytest.MonkeyPatch, tasks: int) -> None:
    """Who stands in line rests for as long as the line has worked, alone and beside others."""
    now = SimpleNamespace(us=10**9)
    monkeypatch.setattr(slices, "elapsed_us", lambda: now.us)
    slice_us, count = 700, 40

    async def work() -> None:
        stand_in_line()
        await pause()
        for _ in range(count):
            now.us += slice_us
            await pause()

    await asyncio.gather(*(asyncio.create_task(work()) for _ in range(tasks)))

    worked_us = tasks * count * slice_us
    assert worked_us - 3_000 <= slices._LINE[0].rested_us <= worked_us


@pytest.mark.parametrize("others", [0, 3])
async def test_time_without_work_is_no_work(monkeypatch: pytest.MonkeyPatch, others: int) -> None:
    """Whoever comes after a while does not rest for it, whoever was the last one before."""
    now = SimpleNamespace(us=10**9)
    monkeypatch.setattr(slices, "elapsed_us", lambda: now.us)

    async def work() -> None:
        stand_in_line()
        await pause()
        now.us += 10  # and ends without another pause

    for _ in range(4):
        await asyncio.gather(*(asyncio.create_task(work()) for _ in range(1 + others)))
        await asyncio.sleep(0)  # the round in which the last one has ended is over
        await asyncio.sleep(0)
        now.us += 30_000_000

    assert slices._LINE[0].rested_us == 0
