"""Calls that balances can pay, in one read with calls that ask Redis, which is slow or away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from ratelimit_service import wire
from ratelimit_service.grpc.h2.frames import FrameType
from ratelimit_service.model import Hit, Request
from ratelimit_service.stores import NEVER, Done, Wanted, always, unknown
from ratelimit_service.stores.redis.advances import Advances
from tests.grpc.ends import come
from tests.grpc.served_ends import Beside, Ends, rounds
from tests.grpc.test_traces import Keeping
from tests.servers.redis import RedisServer
from tests.service.asking import Asking, Away, Heard, descriptor
from tests.service.overriding import BAN, GRANT, override
from tests.stores.conftest import Time
from tests.stores.leasing import Process, processes_on

_RULES = """\
domain: edge
descriptors:
- key: user
  rate_limit: {unit: hour, requests_per_unit: 10000, sync: leased}
- key: tenant
  rate_limit: {unit: hour, requests_per_unit: 10000, sync: leased}
- key: plan
  rate_limit: {unit: hour, requests_per_unit: 1000, failure_policy: closed}
"""

_PATIENT = "10000S"
_READ_US = 1_000
"""What has waited for so long is looked at, whether there is time for it."""


class Slow(Away):
    """A store in which each request would wait for so long that callers without patience go."""

    def wait_us(self, priority: int) -> int:
        return 90_000_000


class Broken(Away):
    """A store that has a fault of its own, if it is told so."""

    fault = False

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted = always,
        deadline_us: int = NEVER,
        priority: int = 0,
    ) -> None:
        if self.fault:
            raise RuntimeError("a fault of the store")
        super().charge(requests, done, wanted, deadline_us, priority)


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """Where rules lie, and nothing else."""
    directory = tmp_path / "rules"
    directory.mkdir()
    return directory


@pytest.fixture
async def process(own_redis: RedisServer) -> AsyncIterator[Process]:
    async with processes_on(own_redis.url, Time()) as (one, _):
        yield one


def frames(ends: Ends, *texts: str, timeout: str = "100S") -> bytes:
    """A call for each text, which names its descriptors."""
    calls = b""
    for text in texts:
        body = wire.encode_request(Request("edge", tuple(map(descriptor, text.split()))))
        calls += ends.client.headers([("grpc-timeout", timeout)]) + ends.client.data(body)
    return calls


async def decided(ends: Ends) -> None:
    """Waits until the store has settled what was asked of it, and all calls are answered."""
    while ends.served.undecided:
        await asyncio.sleep(0)
    await rounds()
    ends.turn()


async def held(ends: Ends, process: Process, *texts: str) -> None:
    """Calls are made until Redis has given this process hits of these limits ahead."""
    for _ in range(40):
        ends.receive(frames(ends, *texts, timeout=_PATIENT))
        await decided(ends)
        await process.quiet()
    ends.wire.kinds()


def answered(said: list[int]) -> int:
    return said.count(FrameType.DATA)


async def test_who_needs_no_store_does_not_wait_for_one(
    rules: Path, own_redis: RedisServer, process: Process
) -> None:
    """Of one read those that balances pay are answered at once, the others when Redis answers."""
    ends = Ends(Asking(rules, _RULES, store=process.advances))
    await held(ends, process, "user=a", "tenant=b", "user=a tenant=b")
    own_redis.stop()

    at_once = ends.receive(
        frames(ends, "plan=x", "user=a", "user=a tenant=b", "user=a plan=x", "tenant=b")
    )
    assert answered(at_once) == 3
    assert ends.served.undecided == 5

    own_redis.cont()
    await decided(ends)

    assert answered(ends.wire.kinds()) == 2
    assert ends.served.undecided == 0


async def test_who_needs_no_store_is_decided_while_it_is_away(
    rules: Path, own_redis: RedisServer, process: Process
) -> None:
    """The failure policy decides for the others of the read, and for nobody else."""
    ends = Ends(Asking(rules, _RULES, store=process.advances))
    await held(ends, process, "user=a")
    own_redis.kill()
    while any(state.address for state in process.store.shard_states()):
        await asyncio.sleep(0)
    ends.stats.take()

    ends.receive(frames(ends, "plan=x", "user=a", "plan=y", "user=a"))

    assert ends.stats.policy_decisions.total() == 2
    assert ends.stats.decisions == {"ok": 2, "over_limit": 2}


async def test_calls_of_several_connections(
    rules: Path, own_redis: RedisServer, process: Process
) -> None:
    """Each connection gets the answers to its own calls, whichever are decided first."""
    ends = Ends(Asking(rules, _RULES, store=process.advances))
    await held(ends, process, "user=a")
    other = Beside(ends)
    own_redis.stop()

    for each in (ends, other):
        come(each.served, frames(each, "user=a", "plan=x", "user=a"))
    ends.turn()
    assert [answered(each.wire.kinds()) for each in (ends, other)] == [2, 2]

    own_redis.cont()
    await decided(ends)
    assert [answered(each.wire.kinds()) for each in (ends, other)] == [1, 1]


async def test_beside_a_grant(rules: Path, own_redis: RedisServer, process: Process) -> None:
    """A caller whose grant lies in Redis waits for it, and nobody beside him."""
    ends = Ends(Asking(rules, _RULES, store=process.advances))
    await held(ends, process, "user=a", "user=bob")
    ends.service.overrides.add([override(GRANT, number=5)])
    own_redis.stop()

    assert answered(ends.receive(frames(ends, "user=bob", "user=a"))) == 1

    own_redis.cont()
    await decided(ends)
    assert answered(ends.wire.kinds()) == 1


async def test_listeners_hear_of_each_call_once(rules: Path, process: Process) -> None:
    """What is told of a read does not depend on how it was divided."""
    ends = Ends(Asking(rules, _RULES, store=process.advances))
    await held(ends, process, "user=a")
    heard = Heard(ends.service)

    ends.receive(frames(ends, "plan=x", "user=a", "user=c"))
    await decided(ends)

    assert [record.body[-1:] for record in heard] == [b"a", b"x", b"c"]


async def test_each_call_has_the_span_of_its_caller(rules: Path, process: Process) -> None:
    """Spans are told of the calls that they are for, however their read was divided."""
    ends = Ends(Asking(rules, _RULES, store=process.advances))
    await held(ends, process, "user=a")
    ends.service.events.tracer = tracer = Keeping()
    read = b""
    for number, text in enumerate(("plan=x", "user=a", "plan=y", "user=a")):
        body = wire.encode_request(Request("edge", (descriptor(text),)))
        headers = [("traceparent", str(number))]
        read += ends.client.headers(headers) + ends.client.data(body)

    ends.receive(read)
    await decided(ends)

    told = [(headers, record.body[-1:]) for headers, record in tracer.heard]
    assert told == [
        ([(b"traceparent", b"%d" % number)], value)
        for number, value in ((1, b"a"), (3, b"a"), (0, b"x"), (2, b"y"))
    ]


async def test_a_ban_is_not_paid(rules: Path, process: Process) -> None:
    """Who is banned is denied in any read, whatever is held of his limit."""
    ends = Ends(Asking(rules, _RULES, store=process.advances))
    await held(ends, process, "user=a", "user=bob")
    ends.service.overrides.add([override(BAN)])
    ends.stats.take()

    ends.receive(frames(ends, "user=bob", "user=a", "user=bob"))
    await decided(ends)

    assert ends.stats.decisions == {"ok": 1, "over_limit": 2}


async def test_a_fault_of_the_store_costs_only_those_who_need_it(
    rules: Path, process: Process
) -> None:
    """Calls that were paid have their answers; the others of the read are refused."""
    store = Broken()
    advances = Advances(store, process.store, process.stats, unknown, process.clock)
    ends = Ends(Asking(rules, _RULES, store=advances))
    await held(ends, process, "user=a")
    store.fault = True

    said = ends.receive(frames(ends, "plan=x", "user=a", "plan=y"))

    assert (answered(said), said.count(FrameType.HEADERS)) == (1, 4)
    assert ends.stats.refusals == {"internal": 2}
    assert ends.served.undecided == 0


async def test_a_slow_store_refuses_nobody_who_does_not_need_it(
    rules: Path, process: Process
) -> None:
    """Calls that would wait in the store for too long are refused, but not those balances pay."""
    advances = Advances(Slow(), process.store, process.stats, unknown, process.clock)
    ends = Ends(Asking(rules, _RULES, store=advances))
    await held(ends, process, "user=a")

    said = ends.receive(frames(ends, "user=a", "user=a", "user=a"), waited_us=_READ_US)
    assert answered(said) == 3
    assert not ends.stats.overloaded
    assert not ends.health.faults

    said = ends.receive(frames(ends, "plan=x", "user=a", "plan=y", "user=a"), waited_us=_READ_US)
    assert (answered(said), said.count(FrameType.RST_STREAM)) == (2, 2)
    assert ends.stats.overloaded == {"refused": 2}


async def test_who_is_too_late_for_this_process_is_refused(rules: Path, process: Process) -> None:
    """What a process holds gives it no time: that is nothing that Redis could mend."""
    advances = Advances(Slow(), process.store, process.stats, unknown, process.clock)
    ends = Ends(Asking(rules, _RULES, store=advances))
    await held(ends, process, "user=a")

    said = ends.receive(frames(ends, "user=a", "user=a"), waited_us=80_000_000, evenly=False)

    assert (answered(said), said.count(FrameType.RST_STREAM)) == (0, 2)


async def test_with_exact_rules_a_slow_store_refuses_as_ever(rules: Path, process: Process) -> None:
    """A limit that nobody leases is refused where its calls would wait for too long."""
    advances = Advances(Slow(), process.store, process.stats, unknown, process.clock)
    ends = Ends(Asking(rules, _RULES, store=advances))
    await held(ends, process, "plan=x")

    said = ends.receive(frames(ends, "plan=x", "plan=x"), waited_us=_READ_US)

    assert (answered(said), said.count(FrameType.RST_STREAM)) == (0, 2)
