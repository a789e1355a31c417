"""Whether reservations keep their promises: `make bench` has it, docs/benchmarks.md the figures.

    .venv/bin/python -m benchmarks.reservations

The first table has what a budget admits while answers are still coming (`reservations_simulated`).
The second has holds whose callers died, settles whose replies got lost, and what reserving costs
(`reservations_costs`). Each row says what is required of it, and whether that holds. Exits with 1
if something required does not. It takes some five minutes.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from itertools import compress
from pathlib import Path

import grpc
import uvloop

from benchmarks.reservations_costs import HOLDS, ONE, costs, serving
from benchmarks.reservations_simulated import (
    ESTIMATES,
    STORES,
    TENANTS,
    ask_message,
    certain,
    commit_message,
    reserve_message,
    ring_file,
    simulated,
)
from benchmarks.run import told
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.settings import Settings
from ratelimit_service.stores.redis import RedisStore
from ratelimit_service.wire.messages import RateLimitResponse
from ratelimit_service.wire.reservations import RESERVING_SERVICE, ReserveResponse
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer
from tests.service.asking import Asking
from tests.stores.redis_store import started

_MOST_CALLS = 16
"""At the same time, where it is not the load that matters."""

_STREAMS = 1_000
_TTL_SECONDS = 3
_LIMIT = 1_000
_HITS = 100
_RULES = f"""
domain: llm
reservations: true
descriptors:
- key: tenant
  rate_limit: {{unit: year, requests_per_unit: {_LIMIT}}}
- key: team
  rate_limit: {{unit: year, requests_per_unit: {_LIMIT}}}
"""
_TIMES = 40
"""So many settles are sent twice, of each kind."""

_USED_LEAST = 0.95


class Table:
    """Rows, each of which says whether what it requires holds."""

    def __init__(self) -> None:
        self.failed = 0

    def say(self, *cells: object, holds: bool | None) -> None:
        """Prints a row; None if nothing is required."""
        self.failed += holds is False
        told = {True: "yes", False: "NO", None: ""}[holds]
        print(f"| {' | '.join(map(str, cells))} | {told} |", flush=True)


def _budgets(table: Table) -> None:
    """What is admitted, on each store and with all estimates."""
    print(
        "| store | estimates | streams in flight | over the limits | beyond estimates ",
        end="",
    )
    print("| budget used | required | holds |\n|---|---|---|---|---|---|---|---|", flush=True)
    cases = [(where, named) for where in STORES for named in ESTIMATES]
    with ProcessPoolExecutor(2) as pool:
        for (where, named), found in zip(cases, pool.map(simulated, cases), strict=True):
            enough = found.used >= _USED_LEAST and found.in_flight >= _STREAMS
            required, holds = "0 over, 95 % used", enough and not found.over
            if ESTIMATES[named].least < 1:
                required, holds = "at most beyond estimates, 95 % used", enough and found.explained
            if not ESTIMATES[named].reserves:
                required, holds = "shows its overrun", found.over > 0
            over, beyond = (f"{each / found.budget:.1%}" for each in (found.over, found.beyond))
            if not ESTIMATES[named].reserves:
                beyond = ""
            cells = (f"{found.in_flight:,}", over, beyond, f"{found.used:.1%}")
            table.say(where, named, *cells, required, holds=holds)


async def _dead_callers(where: str, table: Table) -> None:
    """A thousand streams reserve, a tenth of them die: when there is room again for all."""
    turns = asyncio.Semaphore(_MOST_CALLS)
    with serving(where, _RULES) as (port, _, _):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:

            async def call(method: str, message: bytes) -> bytes:
                called: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
                    f"/{RESERVING_SERVICE}/{method}"
                )
                async with turns:
                    return await called(message, timeout=10)

            async def stream(number: int) -> tuple[str, float]:
                tenant = f"tenant={number % TENANTS}"
                message = reserve_message([tenant], _HITS, ttl=_TTL_SECONDS)
                answer = ReserveResponse.FromString(await call("Reserve", message))
                reserved = time.monotonic()
                if not answer.held:
                    raise SystemExit("reservations.py: nothing was held")
                if number % 10:
                    await call("Commit", commit_message([tenant], answer.reservation_id, 0))
                    return "", 0.0
                return tenant, reserved

            async def is_free(tenant: str) -> bool:
                answer = await call("CheckRateLimit", ask_message(tenant, _LIMIT))
                code = RateLimitResponse.FromString(answer).overall_code
                return code == RateLimitResponse.OK

            streams = await asyncio.gather(*map(stream, range(_STREAMS)))
            died = dict(sorted(streams, key=lambda one: one[1]))  # of each tenant the last one
            del died[""]
            gone: list[float] = []
            while died and max(gone, default=0) < 10 * _TTL_SECONDS:
                free = await asyncio.gather(*map(is_free, died))
                now = time.monotonic()
                gone += [now - died.pop(one) for one in [*compress(died, free)]]
    cells = ("holds of dead callers gone", where, f"after {max(gone):.2f} s, ttl {_TTL_SECONDS} s")
    table.say(*cells, "ttl + 1 s", holds=max(gone) <= _TTL_SECONDS + 1)


@asynccontextmanager
async def _behind_proxies(
    directory: Path, servers: Sequence[RedisServer]
) -> AsyncIterator[tuple[Asking, list[Proxy]]]:
    """A service on a ring of these servers, of which each is behind a proxy."""
    proxies = [Proxy(server.port) for server in servers]
    url = ring_file(directory, [await proxy.start() for proxy in proxies])
    rules = directory / "rules"
    rules.mkdir()
    asking = Asking(rules, _RULES)
    store = RedisStore(url, 1_000_000, Stats(), Health())
    await started(store)
    asking.service = asking.served_by(store, Settings())
    yield asking, proxies
    await store.close()
    for proxy in proxies:
        await proxy.close()


async def _sent_twice(table: Table) -> None:
    """Settles whose replies get lost, and which are then sent once more by their callers."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        servers = [RedisServer(directory) for _ in range(2)]
        for server in servers:
            server.start()
            stack.callback(server.kill)
        async with _behind_proxies(directory, servers) as (asking, proxies):
            call = asking.service.reservations.call
            for homes in (1, 2):
                keys = ("tenant", "team")[:homes]
                number = once = rounds = 0
                while rounds < _TIMES:
                    number += 1
                    texts = [f"{key}={homes}-{number}" for key in keys]
                    reserve = reserve_message(texts, _HITS)
                    answer = ReserveResponse.FromString(certain(await call("Reserve", reserve)))
                    commit = commit_message(texts, answer.reservation_id, _HITS)
                    lost = await _losing_replies(proxies, call("Commit", commit))
                    await call("Commit", commit)
                    if lost < homes:
                        continue  # both counters lie in one home
                    rounds += 1
                    decision = await asking.ask(*texts, domain="llm", hits=1)
                    left = {status.remaining for status in decision.statuses}
                    once += left == {_LIMIT - _HITS - 1}
                what = f"a settle sent twice to {homes} home{'s'[: homes - 1]}, its replies lost"
                told = f"counted once in {once} of {_TIMES}"
                table.say(what, "a ring of two", told, "all", holds=once == _TIMES)


async def _losing_replies(proxies: Sequence[Proxy], asked: Awaitable[object]) -> int:
    """Waits while the next reply of each server gets lost; how many did."""
    lost = 0
    for proxy in proxies:
        proxy.lose = re.compile(b".")
    asking = asyncio.ensure_future(asked)
    while not asking.done():
        for proxy in proxies:
            lost += proxy.refuse  # it has lost one
            proxy.refuse = False
        await asyncio.sleep(0.001)
    for proxy in proxies:
        proxy.lose, proxy.refuse = None, False
    return lost


def _costs(table: Table) -> None:
    """What reserving takes."""
    for where in ("memory", "one Redis"):
        for name, found in uvloop.run(costs(where)).items():
            most = {ONE: 2.0, HOLDS: 1.2}.get(name)
            kinds = {"the service": found.ours, "Redis": found.redis}
            for whose, (one, other) in kinds.items():
                if not other:
                    continue
                beside = "" if name == HOLDS else " to charge and refund"
                what = f"reserve and settle{beside}, {name}: CPU of {whose}"
                told = f"{one / other:.2f} ({one:.0f} to {other:.0f} µs a call)"
                required = "" if most is None else f"at most {most:g}"
                table.say(
                    what, where, told, required, holds=None if most is None else one / other <= most
                )


def main() -> None:
    """Prints the tables."""
    table = Table()
    _budgets(table)
    print("\n| what | store | measured | required | holds |\n|---|---|---|---|---|", flush=True)
    for where in STORES:
        uvloop.run(_dead_callers(where, table))
    uvloop.run(_sent_twice(table))
    _costs(table)
    if table.failed:
        told(f"{table.failed} rows do not hold")
        sys.exit(1)


if __name__ == "__main__":
    main()
