"""What it takes to reserve and settle, in processor time of a service and of its Redis.

`reservations.py` prints it. A service is asked over gRPC in pairs of turns. In one turn streams
reserve and settle, in the other they are charged and get something back, by the same rule.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from os import urandom
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.cpu import Load, processes, turn
from benchmarks.load import BLOCK, Call, call, header_block
from benchmarks.reservations_simulated import (
    TENANTS,
    commit_message,
    reserve_message,
    ring_file,
)
from benchmarks.run import LOAD_CORE, RATELIMIT, SERVER_CORE, free_port, running
from ratelimit_service.model import Request
from ratelimit_service.wire import encode_request
from ratelimit_service.wire.reservations import RESERVING_SERVICE
from tests.service.asking import descriptor

__all__ = ["HOLDS", "ONE", "costs", "serving"]

ONE, EIGHT = "one call at a time", "eight calls at a time"
HOLDS = "beside 10,000 holds, to one"
_PAIRS = 7
_RULES = """
domain: llm
reservations: true
descriptors:
- key: tenant
  rate_limit: {unit: year, requests_per_unit: 8000000}
"""
_ESTIMATE, _USED = 800, 650
"""As much as the least hold of this limit: 10,000 of them fill it."""

_IN_FLIGHT = 1_000
_MANY_HOLDS = 9_999
_RESERVE = header_block(f"/{RESERVING_SERVICE}/Reserve")
_COMMIT = header_block(f"/{RESERVING_SERVICE}/Commit")


class Ratio(NamedTuple):
    """Microseconds of processor time for a call, in the one way and in the other."""

    ours: tuple[float, float]
    redis: tuple[float, float]


def _framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


def _reserve(tenant: str) -> tuple[Call, str]:
    """A call and its id, which is given here, so that no answer has to be read."""
    hold_id = urandom(16).hex()
    return call(_RESERVE, _framed(reserve_message([tenant], _ESTIMATE, hold_id))), hold_id


def _settle(tenant: str, hold_id: str, used: int) -> Call:
    return call(_COMMIT, _framed(commit_message([tenant], hold_id, used)))


def _reserving() -> Iterator[Call]:
    """Streams that reserve and settle, a thousand in flight."""
    flying = deque[tuple[str, str]]()
    for number in count():
        tenant = f"tenant={number % TENANTS}"
        reserve, hold_id = _reserve(tenant)
        yield reserve
        flying.append((tenant, hold_id))
        if len(flying) > _IN_FLIGHT:
            yield _settle(*flying.popleft(), _USED)


def _charging() -> Iterator[Call]:
    """The same streams, charged with their estimates; they get back what they have not used."""

    def charge(number: int, hits: int, *, refund: bool = False) -> Call:
        each = descriptor(f"tenant={number % TENANTS}", addend=hits, refund=refund)
        return call(BLOCK, _framed(encode_request(Request("llm", (each,)))))

    for number in count():
        yield charge(number, _ESTIMATE)
        if number >= _IN_FLIGHT:
            yield charge(number, _ESTIMATE - _USED, refund=True)


def _beside(tenant: str, number: int) -> Iterator[Call]:
    """So many holds on one counter, and then streams on it, one after the other."""
    for _ in range(number):
        yield _reserve(tenant)[0]
    while True:
        reserve, hold_id = _reserve(tenant)
        yield reserve
        yield _settle(tenant, hold_id, 0)


@contextmanager
def serving(where: str, rules: str) -> Iterator[tuple[int, int, Sequence[int]]]:
    """A service on this store: its gRPC port, its pid, and those of its Redis servers."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (directory / "rules.yaml").write_text(rules)
        ports = [free_port() for _ in range({"memory": 0, "a ring of two": 2}.get(where, 1))]
        pids = []
        for port in ports:
            redis = ["redis-server", "--port", str(port), "--save", "", "--dir", str(directory)]
            pids.append(stack.enter_context(running(LOAD_CORE, redis, port)).pid)
        port = free_port()
        serve = [RATELIMIT, "serve", "--rules", str(directory / "rules.yaml")]
        serve += ["--log-level", "error", "--store-timeout", "1s"]
        serve += ["--grpc", f"127.0.0.1:{port}", "--http", f"127.0.0.1:{free_port()}"]
        if ports:
            serve += ["--store", ring_file(directory, ports)]
        if where == "two processes":
            serve += ["--workers", "2"]
        process = stack.enter_context(running(SERVER_CORE, serve, port))
        yield port, process.pid, pids


async def costs(where: str) -> dict[str, Ratio]:
    """What is measured on this store, memory or Redis, by what stands against what."""
    found: dict[str, Ratio] = {}
    with serving(where, _RULES) as (port, service, redis):
        pids = [*redis, *processes(service)]

        async def spent(calls: Iterator[Call], load: Load) -> tuple[float, float]:
            each = (await turn(port, pids, calls, load)).each
            beside = sum(each[: len(redis)])
            return sum(each) - beside, beside

        async def ratio(one: Iterator[Call], other: Iterator[Call], load: Load) -> Ratio:
            ours: tuple[list[float], list[float]] = ([], [])
            theirs: tuple[list[float], list[float]] = ([], [])
            for number in range(_PAIRS + 1):
                for at in (0, 1) if number % 2 else (1, 0):
                    used = await spent((one, other)[at], load)
                    if number:  # the first turn is for warming up
                        ours[at].append(used[0])
                        theirs[at].append(used[1])
            return Ratio((median(ours[0]), median(ours[1])), (median(theirs[0]), median(theirs[1])))

        for name, load in ((ONE, Load(2_000, 1, 1)), (EIGHT, Load(2_000, 4, 2))):
            found[name] = await ratio(_reserving(), _charging(), load)
        many = _beside("tenant=many", _MANY_HOLDS)
        await spent(many, Load(_MANY_HOLDS, 1, 1))
        found[HOLDS] = await ratio(many, _beside("tenant=one", 1), Load(1_000, 1, 1))
    return found
