"""Processor time of servers: what their processes have used, and what a call costs one.

Other work on the machine changes it less than calls a second. So it can tell small differences, if
two servers are asked in turns.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.by_policy import hold
from benchmarks.load import Call, Caller, keep_in_flight

__all__ = ["GaveUpError", "Load", "Spent", "cpu_seconds", "interval", "processes", "say", "turn"]

_POLL_SECONDS = 0.005


class Spent(NamedTuple):
    """What a call took, in microseconds: of each process of a server, and for its caller."""

    each: list[float]
    waited: float


class GaveUpError(SystemExit):
    """The server has refused calls, or has hung up."""


class Load(NamedTuple):
    """Of a turn: so many calls, so many at once on each of so many connections."""

    calls: int = 20_000
    connections: int = 4
    in_flight: int = 50
    rest_seconds: float = 0.05
    """For what a server does after its last answer. It counts as well."""


def cpu_seconds(pid: int) -> float:
    """What all threads of a process have used."""
    each = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(path.read_text().split()[0]) for path in each) / 1e9


def processes(pid: int) -> list[int]:
    """A process and those that it has started, whichever of its threads has."""
    each = Path(f"/proc/{pid}/task").glob("*/children")
    started = [child for path in each for child in path.read_text().split()]
    return [pid, *[each for child in started for each in processes(int(child))]]


async def turn(port: int, pids: list[int], calls: Iterator[Call], load: Load) -> Spent:
    """What each of these processes of a server takes for a call, and how long its callers wait.

    The latter is the median. A quarter as many calls come before it begins, with all that the
    server does after these. Raises SystemExit if an answer is no decision, and GaveUpError if a
    call is refused, which happens where the machine stands still.
    """
    loop = asyncio.get_running_loop()
    latencies = array("d")
    callers: list[Caller] = []
    for _ in range(load.connections):
        _, caller = await loop.create_connection(
            lambda: Caller(calls, latencies), "127.0.0.1", port
        )
        callers.append(caller)

    async def pause() -> None:
        await asyncio.sleep(_POLL_SECONDS)
        if any(caller._transport.is_closing() for caller in callers):  # noqa: SLF001
            for caller in callers:
                caller._transport.close()  # noqa: SLF001
            raise GaveUpError("cpu.py: the server gave up")

    async def ask(number: int) -> None:
        most = len(latencies) + number
        keep_in_flight(callers, load.in_flight)
        while len(latencies) < most:
            await pause()
        for caller in callers:
            caller.answered = lambda _: None
        while any(caller.in_flight for caller in callers):
            await pause()
        await asyncio.sleep(load.rest_seconds)

    await ask(load.calls // 4)
    before, began = len(latencies), [cpu_seconds(pid) for pid in pids]
    await ask(load.calls)
    made = len(latencies) - before
    spent = [cpu_seconds(pid) - since for pid, since in zip(pids, began, strict=True)]
    for caller in callers:
        if caller.ended - caller.messages:
            raise SystemExit("cpu.py: some answers are no decisions")
        hold("cpu.py", caller.ended, caller.by_policy, most=0)
        caller._transport.close()  # noqa: SLF001
    await asyncio.sleep(load.rest_seconds)
    return Spent([seconds / made * 1e6 for seconds in spent], median(latencies[before:]) * 1e6)


def interval(values: Iterable[float]) -> tuple[float, float, float]:
    """The median, and between which values it lies with 95 %: the interval is binomial."""
    found = sorted(values)
    beyond = max(0, len(found) // 2 - round(0.98 * len(found) ** 0.5))
    return median(found), found[beyond], found[-1 - beyond]


def say(what: str, calls: str, found: tuple[list[float], list[float]]) -> None:
    """Prints a row."""
    kept, without_it = found
    longer, low, high = interval(
        100 * (one / other - 1) for one, other in zip(kept, without_it, strict=True)
    )
    print(
        f"| {what} | {calls} | {median(kept):.2f} | {median(without_it):.2f} "
        f"| {longer:.1f} % ({low:.1f} to {high:.1f}) |",
        flush=True,
    )
