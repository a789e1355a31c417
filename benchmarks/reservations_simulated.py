"""What a budget of tokens admits while answers are still coming: real services, simulated time.

`reservations.py` prints it. Streams of 200 tenants come at twice what is allowed; their costs are
log-normal, and each takes as long as it costs. A tenth of their callers die, and report nothing.
The services and their stores are those of `ratelimit serve`; only the stores' clock is set here.
"""

from __future__ import annotations

import asyncio
import heapq
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import NamedTuple

from ratelimit_service.model import Request
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.service import Refusal, Service
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Store
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.redis import RedisStore
from ratelimit_service.wire import encode_request
from ratelimit_service.wire.messages import RateLimitDescriptor, RateLimitRequest, RateLimitResponse
from ratelimit_service.wire.reservations import (
    CommitRequest,
    ReserveRequest,
    ReserveResponse,
)
from tests.servers.redis import RedisServer
from tests.service.asking import Asking, descriptor
from tests.stores.redis_store import started

__all__ = [
    "ESTIMATES",
    "STORES",
    "TENANTS",
    "ask_message",
    "certain",
    "commit_message",
    "reserve_message",
    "ring_file",
    "simulated",
]

STORES = ("memory", "one Redis", "a ring of two", "two processes")

TENANTS = 200
_OFFERED = 2
_DIE = 0.1
_MEDIAN_SECONDS, _SIGMA = 4.0, 0.8
_TOKENS_A_SECOND = 100
_TTL_SECONDS = 12
_ESTIMATES_IN_LIMIT = 50
_WINDOWS = 3
"""In the first one nothing was held before, so its budget is not looked at."""

_TICK_US = 100_000
_START_US = 1_700_000_400_000_000
"""Windows of all lengths here begin at it."""


class Estimates(NamedTuple):
    """How streams are estimated, and how long they last at most."""

    least: float
    most: float
    """In parts of what a stream costs."""
    window_seconds: int
    longest_seconds: float
    reserves: bool = True
    """Else streams ask with 0 hits, and report."""


ESTIMATES = {
    "upper bounds": Estimates(1.0, 3.0, 60, _TTL_SECONDS - 0.5),
    "0.3 to 3 times": Estimates(0.3, 3.0, 40, 20.0),
    "ask with 0, report later": Estimates(0.3, 3.0, 40, 20.0, reserves=False),
}
"""Windows are of 15 and of 10 median streams. Some of the second ones outlast their holds."""


class Found(NamedTuple):
    """What came of it."""

    in_flight: int
    """Streams, on average."""
    budget: int
    """Tokens, of all windows of all tenants."""
    over: int
    """Tokens above the limit, in all windows of all tenants."""
    worst: int
    """The same, in the worst of them."""
    beyond: int
    """Of the windows that are over: what their last streams had used beyond what they held."""
    explained: bool
    """Whether no window is over by more than that."""
    used: float
    """Of the budget."""


class _Stream(NamedTuple):
    """One under way."""

    ends_us: int
    number: int
    tenant: int
    cost: int
    estimate: int
    began_us: int
    reservation_id: str


def reserve_message(texts: Sequence[str], amount: int, hold_id: str = "", ttl: int = 0) -> bytes:
    """A ReserveRequest for descriptors like `tenant=a`; a `ttl` is in seconds."""
    message = ReserveRequest(
        domain="llm", descriptors=_descriptors(*texts), amount=amount, reservation_id=hold_id
    )
    if ttl:
        message.ttl.seconds = ttl
    return message.SerializeToString()


def commit_message(texts: Sequence[str], hold_id: str, used: int) -> bytes:
    """A CommitRequest."""
    message = CommitRequest(
        domain="llm",
        descriptors=_descriptors(*texts),
        reservation_id=hold_id,
        actual_amount=used,
    )
    return message.SerializeToString()


def ask_message(text: str, hits: int) -> bytes:
    """A RateLimitRequest."""
    return encode_request(Request("llm", (descriptor(text, addend=hits),)))


@cache
def _descriptors(*texts: str) -> Sequence[RateLimitDescriptor]:
    request = Request("llm", tuple(map(descriptor, texts)))
    return RateLimitRequest.FromString(encode_request(request)).descriptors


def ring_file(directory: Path, ports: Sequence[int]) -> str:
    """The URL of a ring of these Redis servers."""
    shards = [f"- {{name: s{port}, store: 'redis://127.0.0.1:{port}/0'}}" for port in ports]
    (directory / ".shards").write_text("\n".join(["shards:", *shards]))
    return f"file:{directory / '.shards'}"


class _World:
    """The services, their time, and what their tenants have used."""

    def __init__(self, services: Sequence[Service], estimates: Estimates, limit: int) -> None:
        self.now_us = _START_US
        self.services = services
        self._estimates = estimates
        self._window_us = estimates.window_seconds * 1_000_000
        self._limit = limit
        self.counted: Counter[tuple[int, int]] = Counter()
        """By tenant and window."""
        self.beyond: Counter[tuple[int, int]] = Counter()
        """What was used, since the last stream began, beyond what was held at that moment."""
        self._began_us = [0] * TENANTS

    def _of(self, stream: _Stream) -> tuple[int, int]:
        return stream.tenant, (self.now_us - _START_US) // self._window_us

    async def begin(self, stream: _Stream) -> _Stream | None:
        """The stream if there is room for it."""
        service = self.services[stream.number % len(self.services)]
        text, reservation_id = f"tenant={stream.tenant}", ""
        if self._estimates.reserves:
            message = reserve_message([text], stream.estimate, ttl=_TTL_SECONDS)
            answer = await service.reservations.call("Reserve", message)
            reserved = ReserveResponse.FromString(certain(answer))
            code, reservation_id = reserved.code, reserved.reservation_id
        else:
            (answer,) = await service.decide([ask_message(text, 0)])
            code = RateLimitResponse.FromString(certain(answer)).overall_code
        if code != RateLimitResponse.OK:
            return None
        self._began_us[stream.tenant] = self.now_us
        self.beyond[self._of(stream)] = 0
        return stream._replace(reservation_id=reservation_id)

    async def end(self, stream: _Stream) -> None:
        """Counts what a stream has used: by another service than began it, if there is one."""
        service = self.services[(stream.number + 1) % len(self.services)]
        message = commit_message([f"tenant={stream.tenant}"], stream.reservation_id, stream.cost)
        certain(await service.reservations.call("Commit", message))
        holds_until_us = stream.began_us + _TTL_SECONDS * 1_000_000
        held = stream.estimate if self._began_us[stream.tenant] < holds_until_us else 0
        self.counted[self._of(stream)] += stream.cost
        self.beyond[self._of(stream)] += max(0, stream.cost - held)

    def found(self, in_flight: float) -> Found:
        """What came of it."""
        over = {of: used - self._limit for of, used in self.counted.items() if used > self._limit}
        used = [
            min(self._limit, self.counted[tenant, window]) / self._limit
            for tenant in range(TENANTS)
            for window in range(1, _WINDOWS)
        ]
        return Found(
            round(in_flight),
            self._limit * TENANTS * _WINDOWS,
            sum(over.values()),
            max(over.values(), default=0),
            sum(self.beyond[of] for of in over),
            all(self.beyond[of] >= above for of, above in over.items()),
            fmean(used),
        )


def certain(answer: bytes | Refusal) -> bytes:
    if isinstance(answer, Refusal):
        raise SystemExit(f"reservations_simulated.py: refused: {answer}")
    return answer


def _drawn(chance: Random, estimates: Estimates) -> tuple[int, int]:
    """What a stream costs, and its estimate."""
    seconds = _MEDIAN_SECONDS * chance.lognormvariate(0, _SIGMA)
    cost = 1 + round(_TOKENS_A_SECOND * min(estimates.longest_seconds, seconds))
    off = estimates.least * (estimates.most / estimates.least) ** chance.random()
    return cost, max(1, -(-cost * round(1_000 * off) // 1_000))


async def _simulated(where: str, estimates: Estimates) -> Found:
    chance = Random(20261128)
    sample = [_drawn(chance, estimates) for _ in range(20_000)]
    limit = round(_ESTIMATES_IN_LIMIT * median(estimate for _, estimate in sample))
    offered = _OFFERED * TENANTS * limit / fmean(cost for cost, _ in sample)  # in a window
    async with _services(where, estimates, limit) as world:
        flying: list[_Stream] = []
        in_flight: list[int] = []
        number, due = 0, 0.0
        for tick in range(_TICK_US, _WINDOWS * estimates.window_seconds * 1_000_000, _TICK_US):
            world.now_us = _START_US + tick
            ended = []
            while flying and flying[0].ends_us <= world.now_us:
                ended.append(heapq.heappop(flying))
            await asyncio.gather(*(world.end(one) for one in ended if chance.random() >= _DIE))
            begun = []
            while due <= tick:
                cost, estimate = _drawn(chance, estimates)
                tenant = chance.randrange(TENANTS)
                ends_us = world.now_us + cost * 1_000_000 // _TOKENS_A_SECOND
                begun.append(_Stream(ends_us, number, tenant, cost, estimate, world.now_us, ""))
                number += 1
                due += chance.expovariate(offered / estimates.window_seconds) * 1_000_000
            for one in await asyncio.gather(*map(world.begin, begun)):
                if one is not None:
                    heapq.heappush(flying, one)
            in_flight.append(len(flying))
        return world.found(fmean(in_flight))


@asynccontextmanager
async def _services(where: str, estimates: Estimates, limit: int) -> AsyncIterator[_World]:
    """The services on a store that is empty, in a world where no time has passed."""
    rules = (
        "domain: llm\nreservations: true\ndescriptors:\n- key: tenant\n  rate_limit: "
        f"{{unit: second, unit_multiplier: {estimates.window_seconds}, requests_per_unit: {limit}}}"
    )
    services: list[Service] = []
    world = _World(services, estimates, limit)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        asking = Asking(directory, rules)
        servers = [RedisServer(directory) for _ in range(2 if where == "a ring of two" else 1)]
        url = servers[0].url
        if len(servers) > 1:
            url = ring_file(directory, [server.port for server in servers])
        stores: list[Store] = []
        try:
            if where == "memory":
                stores.append(
                    MemoryStore(1_000_000, asking.stats, asking.health, lambda: world.now_us)
                )
            else:
                for server in servers:
                    server.start()
                for _ in range(2 if where == "two processes" else 1):
                    redis = RedisStore(url, 10_000_000, Stats(), Health(), lambda: world.now_us)
                    await started(redis)
                    stores.append(redis)
            services += [asking.served_by(store, Settings()) for store in stores]
            yield world
            for store in stores:
                await store.close()
        finally:
            if where != "memory":
                for server in servers:
                    server.kill()


def simulated(case: tuple[str, str]) -> Found:
    """What comes of this store and these estimates, by their names."""
    where, named = case
    return asyncio.run(_simulated(where, ESTIMATES[named]))
