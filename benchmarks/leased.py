"""What leased limits save, and that they admit no more: two processes on one Redis.

    .venv/bin/python -m benchmarks.leased [PYTHON]

Three ways to count for one hot limit are driven by the same calls in this process: each hit asked
of Redis (`exact`), advances (`leased`), and a reporter that counts by itself and tells Redis every
100 ms, as some rate limiters do. A row has what was admitted of the limit, and what was sent to
Redis for each admitted hit. Windows are one and ten seconds long. Below stands what one process
does leased, beside counters in memory and exact ones: calls a second in batches of one read, time
of one call, and the processor time of Redis for a decision. These are medians of nine pairs, in
turns, with the 95 % interval of the median. With a PYTHON, such as that of `.venv-compiled`, they
are told of it as well. It takes some four minutes, and one more for that.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import accumulate
from operator import sub, truediv
from random import Random
from typing import NamedTuple, Protocol
from zlib import crc32

import redis

from benchmarks.cpu import interval
from benchmarks.run import HERE, LOAD_CORE, free_port, running
from ratelimit_service import compiled
from ratelimit_service.algorithms import spec_of
from ratelimit_service.eventloop.clock import Clock, now_us
from ratelimit_service.model import Hit, Limit, Unit
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.stores import Settled, Store
from ratelimit_service.stores.local_cache import LocalCache
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.redis import RedisStore
from ratelimit_service.stores.redis.advances import Advances

_PROCESSES = 2
_TICK_SECONDS = 0.005
"""Calls come in bursts, this long apart."""

_REPORT_SECONDS = 0.1
_BATCH = 64
_HITS = 64_000
_PAIRS = 9
_WARM_SECONDS = 10.0
"""Until then it is not known how fast keys are used; an advance is for five seconds."""

_KEYS = 20_000
_CALLS = 5_000
_STORE_BATCHES = 500
_ASIDE = ("advance", "hand_back")
"""What is sent beside the hits that are charged one by one."""


class Decider(Protocol):
    """One process that decides hits."""

    async def hit(self, one: Hit, times: int) -> list[int]:
        """The window of each of so many hits at once that passes, by its number."""


class InStore:
    """Hits are settled by a store."""

    def __init__(self, store: Store, clock: Clock = now_us) -> None:
        self._store = store
        self._clock = clock

    async def hit(self, one: Hit, times: int) -> list[int]:
        """Waits for the store's answer, which says when its window ends.

        What is asked in one window may be counted in the next. So the end is the first one after
        the call by as much as the answer says; clocks may differ by a hundredth of a window.
        """
        window_us, asked_us = one.spec.window_us, self._clock()
        future: asyncio.Future[list[Settled]] = asyncio.get_running_loop().create_future()
        self._store.charge([[one]] * times, future.set_result)
        found = await future
        if self._clock() - asked_us > window_us // 2:
            raise SystemExit("leased.py: an answer took half a window: this machine is too busy")
        return [
            (asked_us + settled.outcomes[0].reset_us - window_us // 100) // window_us
            for settled in found
            if settled.verdict.passes and settled.outcomes[0] is not None
        ]


class Reporter:
    """Counts by itself in windows of the clock, and tells Redis every 100 ms what it counted."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._window, self._known, self._untold = 0, 0, 0
        self._told_at = time.monotonic()
        self.sent = 0

    async def hit(self, one: Hit, times: int) -> list[int]:
        """Decides by what Redis said last, and what was counted here since."""
        window = now_us() // one.spec.window_us
        if window != self._window:
            self._window, self._known, self._untold = window, 0, 0
        passed = max(0, min(times, one.spec.limit - self._known - self._untold))
        self._untold += passed
        if time.monotonic() - self._told_at >= _REPORT_SECONDS:
            self._told_at = time.monotonic()
            key = f"{one.key.decode()} {window}"
            self._known = int(self._client.incrby(key, self._untold))
            self._untold, self.sent = 0, self.sent + 1
        return [window] * passed


class Row(NamedTuple):
    """What came of one way to count."""

    admitted: int
    sent: int


async def _offered(deciders: Sequence[Decider], one: Hit, offered: int) -> int:
    """Offers so many hits over one window of the clock, to all in turns; how many it admitted.

    The last ones may be counted in the next window, of which they are few.
    """
    window_us = one.spec.window_us
    await asyncio.sleep((window_us - now_us() % window_us) / 1_000_000 + 0.001)
    begun, window = now_us(), now_us() // window_us
    asked, admitted = 0, Counter[int]()
    while now_us() // window_us == window and asked < offered:
        due = min(offered, offered * (now_us() - begun) * 10 // (9 * window_us))
        while asked < due and now_us() // window_us == window:
            for decider in deciders:
                times = min(_BATCH, due - asked)
                asked += times
                admitted.update(await decider.hit(one, times))
        await asyncio.sleep(_TICK_SECONDS)
    return max(admitted.values())


def _hit(limit: Limit, name: str) -> Hit:
    return Hit(b"{%08x}%b" % (crc32(name.encode()), name.encode()), spec_of(limit))


async def _stores(url: str) -> list[tuple[RedisStore, Stats]]:
    found = []
    for _ in range(_PROCESSES):
        stats = Stats()
        store = RedisStore(url, 1_000_000, stats, Health())
        await store.start()
        found.append((store, stats))
    while any(shard.processes < _PROCESSES for store, _ in found for shard in store.shards):
        await asyncio.sleep(0.1)
    return found


def _front(store: RedisStore, stats: Stats) -> Advances:
    """As a service has it: advances before the local cache before Redis."""
    cache = LocalCache(store, 1 << 20, stats)
    store.tell_of_give_backs(cache.given_back)
    return Advances(cache, store, stats, cache.known_over)


async def _row(url: str, way: str, limit: Limit, offered: int) -> Row:
    name = f"{way} {limit.requests_per_unit} {limit.window_us} {offered}"
    if way == "reporter":
        with redis.Redis.from_url(url) as client:
            reporters = [Reporter(client) for _ in range(_PROCESSES)]
            passed = await _offered(reporters, _hit(limit, name), offered)
        return Row(passed, sum(each.sent for each in reporters))
    limit = limit._replace(advances=way == "leased")
    stores = await _stores(url)
    fronts = [_front(store, stats) for store, stats in stores]
    passed = await _offered([InStore(each) for each in fronts], _hit(limit, name), offered)
    sent = sum(stats.local_cache["miss"] for _, stats in stores)
    sent += sum(stats.leased_sent[each] for _, stats in stores for each in _ASIDE)
    for each in fronts:
        await each.close()
    return Row(passed, sent)


async def _pace(store: Store, hits: Sequence[Hit]) -> float:
    """Calls a second of processor time that a store decides, in batches of one read."""
    begun = time.process_time()
    for start in range(0, len(hits), _BATCH):
        future: asyncio.Future[list[Settled]] = asyncio.get_running_loop().create_future()
        store.charge([[one] for one in hits[start : start + _BATCH]], future.set_result)
        await future
    return len(hits) / (time.process_time() - begun)


async def _p50_us(store: Store, one: Hit) -> float:
    """How long one call takes at a time, at the median."""
    decider, took = InStore(store), []
    for _ in range(_CALLS):
        begun = time.perf_counter_ns()
        await decider.hit(one, 1)
        took.append(time.perf_counter_ns() - begun)
    return statistics.median(took) / 1_000


async def _store_us(url: str, store: Store, one: Hit) -> float:
    """Redis' processor time for each decision."""
    with redis.Redis.from_url(url) as client:
        begun = _cpu_us(client)
        decider = InStore(store)
        for _ in range(_STORE_BATCHES):
            await decider.hit(one, _BATCH)
        return (_cpu_us(client) - begun) / (_STORE_BATCHES * _BATCH)


def _cpu_us(client: redis.Redis) -> float:
    used = client.info("cpu")
    return 1_000_000 * float(used["used_cpu_user"] + used["used_cpu_sys"])


_Measure = Callable[[], Awaitable[float]]


async def _pairs(
    what: str, ours: _Measure, theirs: _Measure, told: Callable[[float, float], float], goal: str
) -> None:
    """Measures both in turns, once for warming up, and prints a row."""
    found: tuple[list[float], list[float]] = [], []
    for number in range(_PAIRS + 1):
        for at in (0, 1) if number % 2 else (1, 0):
            value = await (ours, theirs)[at]()
            if number:
                found[at].append(value)
    middle, low, high = interval(map(told, *found))
    print(
        f"| {what} | {statistics.median(found[0]):,.1f} | {statistics.median(found[1]):,.1f} "
        f"| {middle:.2f} ({low:.2f} to {high:.2f}) | {goal} |",
        flush=True,
    )


async def _costs(url: str) -> None:
    """Prints what one process does, leased on Redis, beside counters in memory and exact ones."""
    limit = Limit(4_000_000_000, Unit.DAY, advances=True)
    chance = Random(1)
    hot = [_hit(limit, "hot")] * _HITS
    keys = [_hit(limit, f"key {number}") for number in range(_KEYS)]
    weights = list(accumulate(1 / (number + 1) for number in range(_KEYS)))
    zipf = chance.choices(keys, cum_weights=weights, k=_HITS)
    (store, stats), (other, _) = await _stores(url)
    leased, memory = _front(store, stats), MemoryStore(2 * _KEYS, Stats(), Health())
    build = "compiled" if compiled() else "interpreted"
    print(f"\n| one process, {build} | leased | beside it | compared | required |")
    print("|---|---|---|---|---|")
    for name, hits in (("one hot key", hot), (f"Zipf over {_KEYS:,} keys", zipf)):
        warm_at = time.monotonic() + _WARM_SECONDS
        while time.monotonic() < warm_at:
            await _pace(leased, hits)
        await _pairs(
            f"calls a second, {name}; memory",
            partial(_pace, leased, hits),
            partial(_pace, memory, hits),
            truediv,
            "at least 0.8",
        )
    await _pairs(
        "one call at a time, p50 in us; memory",
        partial(_p50_us, leased, hot[0]),
        partial(_p50_us, memory, hot[0]),
        sub,
        "at most 20 more",
    )
    exact = _hit(limit._replace(advances=False), "exact")
    await _pairs(
        "Redis' CPU for a decision in us; exact",
        partial(_store_us, url, leased, hot[0]),
        partial(_store_us, url, leased, exact),
        truediv,
        "at most 0.1",
    )
    await leased.close()
    await other.close()


def costs(url: str) -> None:
    """What one process costs, of the interpreter that runs this."""
    asyncio.run(_costs(url))


async def _run(url: str) -> None:
    print("| window | limit | offered | way | admitted | over | sent per admitted hit |")
    print("|---|---|---|---|---|---|---|")
    for seconds in (1, 10):
        for number in (1_000, 10_000):
            for share in (95, 200):
                for way in ("exact", "leased", "reporter"):
                    limit = Limit(number, Unit.SECOND, seconds)
                    offered = number * share // 100
                    row = await _row(url, way, limit, offered)
                    over = 100 * max(0, row.admitted - number) / number
                    sent = row.sent / row.admitted
                    print(
                        f"| {seconds} s | {number:,} | {share / 100:g} | {way} "
                        f"| {row.admitted:,} | {over:.1f} % | {sent:.3f} |",
                        flush=True,
                    )


def main() -> None:
    """Prints the table and the paces."""
    port = free_port()
    command = ["redis-server", "--port", str(port), "--save", "", "--appendonly", "no"]
    # The package of the interpreter goes before the one of this tree.
    code = (
        "import sys; sys.path.append('.'); from benchmarks.leased import costs; costs(sys.argv[1])"
    )
    with running(LOAD_CORE, command, port):
        url = f"redis://127.0.0.1:{port}/0"
        asyncio.run(_run(url))
        for python in (sys.executable, *sys.argv[1:]):
            subprocess.run([python, "-P", "-c", code, url], cwd=HERE.parent, check=True)


if __name__ == "__main__":
    main()
