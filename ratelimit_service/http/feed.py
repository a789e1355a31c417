"""What the console shows of this moment: worked out once, and sent to all who watch.

While somebody watches, all numbers are read about once a second, less often where reading them
takes long, so that it takes a hundredth of the time at most. A message is what has changed since
the one before. What must not live here: where messages go (`routes.console`).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

from ratelimit_service.eventloop.clock import now_us
from ratelimit_service.http.route import Operating
from ratelimit_service.http.routes.counters import callers
from ratelimit_service.http.routes.processes import processes_of
from ratelimit_service.metrics import Reading
from ratelimit_service.observability.bugs import Bugs
from ratelimit_service.observability.stats import LATENCY_BOUNDS_US
from ratelimit_service.rules.tree import Snapshot
from ratelimit_service.service.questions import QuestionError

__all__ = ["Feed"]

_SECONDS = 1.0
_LONGEST_SECONDS = 10.0
_SHARE = 100
"""After a reading so many times its own length passes before the next."""

_STATE_EVERY = 5
"""Readings from one of what changes seldom to the next."""

_CALLERS = 15
_OVERRIDES = 100
_MOST_RULES = 100
"""Rules in a message: those that denied the most, and then those that were asked the most."""

_MOST_DENIALS = 40
_KEPT_DENIALS = 400
"""Lines of the last denials that who asks later is told."""

_KEPT = 120
"""Messages that who comes later is told, without their denials."""


_AGAIN = b"retry: 1000\n\n"
"""After so many milliseconds a page whose stream has ended asks for another."""


class _Totals(NamedTuple):
    """All that was counted until a moment."""

    at: float
    ok: int
    over: int
    refused: int
    hits: int
    hits_by_policy: int
    latency: list[int]
    rules: dict[tuple[str, str], tuple[int, int, int]]
    """Hits, and of these over and near, by domain and rule."""


class Feed:
    """Messages about one service, while somebody watches."""

    def __init__(self, operating: Operating) -> None:
        self._operating = operating
        self._watching = 0
        self._task: asyncio.Task[None] | None = None
        self._history: deque[dict[str, object]] = deque(maxlen=_KEPT)
        self._changed = asyncio.Event()
        self._number = 0
        self._message = b""
        self._state = b""
        """The last message of the other kind."""
        self._before: _Totals | None = None
        self._snapshot: Snapshot | None = None
        """The rules of which pages were told last."""
        self._bugs = Bugs()
        self._denied: deque[str] = deque(maxlen=_KEPT_DENIALS)

    @property
    def watching(self) -> int:
        """How many watch."""
        return self._watching

    def join(self) -> bytes:
        """One more watches; returns what was told before. Each `join` needs a `leave`."""
        self._watching += 1
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._read())
        return _AGAIN + _event("past", list(self._history)) + self._state

    def leave(self) -> None:
        """One watches no more."""
        self._watching -= 1
        if not self._watching and self._task is not None:
            self._task.cancel()
            self._task = None
            self._history.clear()
            self._state = b""
            self._before = None

    async def last_denials(self) -> list[str]:
        """Lines of the last denials that were noted; more are for seconds after this was asked.

        Raises QuestionError.
        """
        if self._task is None:  # else it asks each second, and who watches should miss none
            await self._new_denials()
        return list(self._denied)

    async def moment(self) -> dict[str, object]:
        """What a page shows, once: of the second that begins now, and of the time since the start.

        Raises QuestionError.
        """
        operating = self._operating
        await self.last_denials()
        before = await self._totals()
        await asyncio.sleep(_SECONDS)
        now = await self._totals()
        overrides = await operating.ask("overrides", {"newest": 1})
        return {
            **self._message_of(before, now),
            "hits_since_start": now.hits,
            "hits_by_policy_since_start": now.hits_by_policy,
            "overrides": overrides["count"] if isinstance(overrides, dict) else 0,
            "processes": await processes_of(operating),
            "callers": await callers(operating, "over", "minute", _CALLERS, {}),
            "denials": await self.last_denials(),
        }

    async def _totals(self) -> _Totals:
        await self._operating.collect()
        return _totals(await self._operating.sources.read())

    async def following(self) -> bytes:
        """Waits for the next message."""
        await self._changed.wait()
        return self._message

    async def _read(self) -> None:
        for number in count():
            pause = _SECONDS
            try:
                pause = await self._read_once(with_state=number % _STATE_EVERY == 0)
            except Exception as error:
                self._bugs.note("the console could not be told what happens", error)
            await asyncio.sleep(pause)

    async def _read_once(self, *, with_state: bool) -> float:
        """Tells one message; returns the seconds until the next."""
        state = b""
        if with_state:
            state = self._state = await self._read_state()
        denials = await self._denials()
        await self._operating.collect()
        reading = await self._operating.sources.read()
        began = time.thread_time()
        before, self._before = self._before, _totals(reading)
        if self._snapshot is not self._operating.snapshot():
            self._snapshot = self._operating.snapshot()
            self._number += 1
        if before is None:
            self._publish(state)
        else:
            message = self._message_of(before, self._before)
            self._history.append(message)
            self._publish(state + _event("now", {**message, "denials": denials}))
        took = 2 * (time.thread_time() - began)  # to read the numbers takes about as long again
        return min(max(_SECONDS, took * _SHARE), _LONGEST_SECONDS)

    async def _read_state(self) -> bytes:
        """What changes seldom: processes, overrides, callers; without what nobody can tell."""
        operating = self._operating
        state = {}
        for name, asking in (
            ("processes", processes_of(operating)),
            ("overrides", operating.ask("overrides", {"newest": _OVERRIDES})),
            ("callers", callers(operating, "over", "minute", _CALLERS, {})),
        ):
            try:
                state[name] = await asking
            except QuestionError as error:
                state[name] = {"error": str(error)}
        return _event("state", state)

    def _publish(self, message: bytes) -> None:
        self._message = message
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _denials(self) -> list[str]:
        """Lines of denials since the last time; none while nobody can tell them."""
        try:
            return (await self._new_denials())[-_MOST_DENIALS:]
        except QuestionError:
            return []

    async def _new_denials(self) -> list[str]:
        """All that were noted since the last time, by time. Raises QuestionError."""
        answers = await self._operating.ask_all("denials")
        lines = sorted([line for answer in answers if isinstance(answer, list) for line in answer])
        self._denied += lines
        return lines

    def _message_of(self, before: _Totals, now: _Totals) -> dict[str, object]:
        health = self._operating.health
        seconds = max(now.at - before.at, 0.001)
        rules = dict(_changed(before.rules, now.rules))
        most = sorted(rules, key=lambda rule: rules[rule][1::-1], reverse=True)[:_MOST_RULES]
        latency = [_less(a, b) for a, b in zip(now.latency, before.latency, strict=True)]
        return {
            "at": now_us() / 1_000_000,
            "seconds": round(seconds, 3),
            "rules_number": self._number,
            "ok": _less(now.ok, before.ok),
            "over": _less(now.over, before.over),
            "refused": _less(now.refused, before.refused),
            "hits": _less(now.hits, before.hits),
            "hits_by_policy": _less(now.hits_by_policy, before.hits_by_policy),
            "p50_us": _quantile(latency, 0.5),
            "p99_us": _quantile(latency, 0.99),
            "rules": [[*rule, *rules[rule]] for rule in most],
            "serving": health.serving,
            "phase": health.phase,
            "faults": health.faults,
        }


def _totals(reading: Reading) -> _Totals:
    stats = reading.stats
    rules: dict[tuple[str, str], tuple[int, int, int]] = {}
    for series in reading.series:
        domain, path, _ = series.labels
        tally = series.tally
        hits, over, near = rules.get((domain, path), (0, 0, 0))
        rules[domain, path] = (hits + tally.hits, over + tally.over, near + tally.near)
    return _Totals(
        time.monotonic(),
        stats.decisions["ok"],
        stats.decisions["over_limit"],
        sum(stats.refusals.values()),
        sum([series.tally.hits for series in reading.series]),
        sum([series.tally.by_policy for series in reading.series]),
        list(stats.latency.buckets),
        rules,
    )


def _changed(
    before: dict[tuple[str, str], tuple[int, int, int]],
    now: dict[tuple[str, str], tuple[int, int, int]],
) -> Iterator[tuple[tuple[str, str], tuple[int, int, int]]]:
    """What rules have counted meanwhile, if they have."""
    nothing = (0, 0, 0)
    for rule, (hits, over, near) in now.items():
        former = before.get(rule, nothing)
        if hits != former[0]:
            yield rule, (_less(hits, former[0]), _less(over, former[1]), _less(near, former[2]))


def _less(now: int, before: int) -> int:
    """How many more; a count that is smaller than before has begun again from 0."""
    return now - before if now >= before else now


def _quantile(buckets: list[int], share: float) -> int | None:
    """The bound below which so many were, in microseconds; None if there were none."""
    wanted = sum(buckets) * share
    if not wanted:
        return None
    below = 0
    for bound, some in zip((*LATENCY_BOUNDS_US, LATENCY_BOUNDS_US[-1]), buckets, strict=True):
        below += some
        if below >= wanted:
            return bound
    return LATENCY_BOUNDS_US[-1]


def _event(kind: str, data: object) -> bytes:
    """As EventSource reads it; the JSON has no line ends."""
    text = json.dumps(data, separators=(",", ":"))
    return f"event: {kind}\ndata: {text}\n\n".encode()
